"""Goes through the sets of an evaluation: opens each, runs its task, resamples, leaves near-duplicates out.

A set that cannot be read is missing, with the reason, and the others are measured. A curation that names a set in
`[decontaminate] test_sets` has dropped the near-duplicates of its images, and writes which test images these are. So of
a model that was trained on that run they are no leak; for one that was trained on the same pool without
decontamination they are.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from altalign import storage
from altalign.data.audit_tables import NEAR_TEST_IMAGES
from altalign.errors import AltalignError, UsageError
from altalign.eval import captioning, choices, classification, composed, linear_probe, outcomes, ratings, retrieval
from altalign.eval.class_names import Classes, templates
from altalign.eval.encoded import Features
from altalign.eval.image_sources import folder_of, reading
from altalign.eval.outcomes import Intervals, Measure, Result
from altalign.eval.sets import HeldOut, captioned, captioned_set, labelled_set
from altalign.eval.settings import EvalSets, Set

MEASURES: Mapping[str, Measure] = {
    "retrieval": retrieval.measured,
    "zero_shot": classification.measured,
    "knn": classification.measured_neighbours,
    "linear_probe": classification.measured,
    "vtab": linear_probe.measured_of_vtab,
    "cxc": ratings.measured,
    "captioning": captioning.measured,
    "multilingual": retrieval.measured_by_language,
    "word_similarity": ratings.measured_of_words,
    "choices": choices.measured,
    "composed": composed.measured,
}


class Without(NamedTuple):
    """Metrics without the images that have a near-duplicate."""

    run: str  # the curation that looked for them
    images: int  # how many are left out
    metrics: dict[str, float]  # of the others; empty where none are left


class Evaluated(NamedTuple):
    """A set and what a model makes of it."""

    settings: Set
    result: Result
    intervals: Intervals
    without: Sequence[Without]  # the same without images that have near-duplicates, by the run that looked for them

    @property
    def name(self) -> str:
        """TASK/NAME."""
        return f"{self.settings.task}/{self.settings.name}"

    @property
    def score(self) -> float:
        """The metric that stands for the set."""
        return self.result.metrics[self.settings.metric]


class Evaluation(NamedTuple):
    """All sets."""

    evaluated: Sequence[Evaluated]
    missing: Mapping[str, str]  # sets that could not be measured, by name: the reason

    @property
    def means(self) -> list[str]:
        """The mean of each task with several sets, in words: over those that were measured, each by its own metric."""
        lines = list[str]()
        for task in dict.fromkeys(each.settings.task for each in self.evaluated):
            scores = [each.score for each in self.evaluated if each.settings.task == task]
            all_sets = len(scores) + sum(name.startswith(f"{task}/") for name in self.missing)
            if all_sets > 1:
                lines.append(f"{task}: mean {sum(scores) / len(scores):.1f} of {len(scores):,} of {all_sets:,} sets")
        return lines


def evaluate(
    sets: EvalSets,
    features: Features,
    *,
    held_out: HeldOut | None = None,
    runs: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Evaluation:
    """Measure a model, which was trained on curations `runs`, on every set; `say` gets the name of each."""
    evaluated, missing = list[Evaluated](), dict[str, str]()
    for each in sets.set:
        name, measure = f"{each.task}/{each.name}", MEASURES[each.task]
        say(name)
        try:
            result = _result(each, features, held_out)
        except AltalignError as error:
            missing[name] = str(error)
            continue
        intervals = outcomes.intervals(result.outcomes, measure)
        apart = without(result, measure, test_set=each.name, runs=[*runs, *sets.near_duplicates.runs])
        evaluated.append(Evaluated(each, result, intervals, apart))
    return Evaluation(evaluated, missing)


def results_of(
    sets: EvalSets, features: Features, held_out: HeldOut | None
) -> tuple[dict[str, Result], dict[str, str]]:
    """What a model makes of each set, by TASK/NAME, without intervals; and why others could not be measured."""
    measured, missing = dict[str, Result](), dict[str, str]()
    for each in sets.set:
        name = f"{each.task}/{each.name}"
        try:
            measured[name] = _result(each, features, held_out)
        except AltalignError as error:
            missing[name] = str(error)
    return measured, missing


def _result(each: Set, features: Features, held_out: HeldOut | None) -> Result:
    columns = {"image_column": each.image_column, "label_column": each.label_column}
    classes = Classes.named(each.classes) if each.classes else None
    labelled = partial(labelled_set, **columns, split=each.split)
    train = partial(labelled_set, each.train, **columns, split="train", classes=classes, needs_names=False)
    if each.features == "before projection":
        features = features.before_projection()
    match each.task:
        case "retrieval":
            return retrieval.retrieval(captioned(each, held_out), features)
        case "zero_shot":
            tested = labelled(each.path, classes=classes, only_own_classes=each.only_own_classes)
            own = storage.join(each.path, "zeroshot_classification_templates.txt")
            has_own = storage.kind(each.path) == "folder" and storage.exists(own)
            prompts = templates(each.templates or [own if has_own else "{}"])
            return classification.zero_shot(tested, features, templates=prompts)
        case "knn":
            index = train()
            return classification.knn(labelled(each.path, classes=index.classes), index, features)
        case "linear_probe":
            fitted = train()
            held = labelled(each.validation, classes=fitted.classes) if each.validation else None
            return linear_probe.linear_probe(labelled(each.path, classes=fitted.classes), fitted, held, features)
        case "vtab":
            return linear_probe.vtab(each.path, features)
        case "cxc":
            pairs = captioned_set([each.path], "karpathy", images=each.images, split=each.split)
            pairs = pairs.with_captions(at_most=each.captions_at_most)
            ids = ratings.read_ids(each.path)
            return ratings.cxc(pairs, features, ids=ids, folder=each.ratings, split=each.split)
        case "captioning":
            return captioning.captioning(captioned(each, None), features)
        case "multilingual":
            if each.captions:
                names, languages = retrieval.read_lines(each.path, each.captions)
            else:
                names, languages = retrieval.read_xm3600(each.path, each.languages)
            return retrieval.multilingual(names, languages, each.images, features)
        case "word_similarity":
            encode = features.encoder.encode_word or features.encoder.encode_text
            return ratings.word_similarity(ratings.read_word_pairs(each.path), encode)
        case "choices":
            return choices.choices(choices.read_examples(each.path), each.images, features)
        case "composed":
            return composed.composed(folder_of(each.images), composed.read_queries(each.path), features)


def without(result: Result, measure: Measure, *, test_set: str, runs: Sequence[str]) -> list[Without]:
    """The metrics without images that have near-duplicates in the pool, for each run that knows this test set."""
    apart, images = list[Without](), result.images
    for run in runs:
        facts = storage.read_json(storage.join(run, "audit", "near_duplicates", "found.json"))
        path = storage.join(run, *NEAR_TEST_IMAGES.path.split("/"))
        if test_set not in facts.get("test_sets", {}) or not storage.exists(path):
            continue  # the run did not look for them
        with reading(path, "Parquet"), storage.open_read(path) as file:
            rows = pq.read_table(file, columns=["test_set", "test_image"], use_threads=False).to_pylist()
        named = {row["test_image"] for row in rows if row["test_set"] == test_set}
        # a set may have the same bytes under other names than the run's, which are as near
        near = {
            identity
            for identity, name in zip(images.identities, images.names, strict=True)
            if any("/".join(name.split("/")[first:]) in named for first in range(name.count("/") + 1))
        }
        if named and not near:
            why = f"no image of the set is called like {min(named)!r}, a test image of {test_set} there"
            raise UsageError(f"{run}: {why}; give the set another name")
        is_near = np.array([images.identities[row] in near for row in result.rows], bool)
        others = {} if is_near.all() else measure(outcomes.chosen(result.outcomes, ~is_near))
        apart.append(Without(run, int(is_near.sum()), others))
    return apart
