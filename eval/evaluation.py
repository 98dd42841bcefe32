"""Goes through the sets of an evaluation: opens each, runs its task, resamples, leaves near-duplicates out.

A set that cannot be read is missing, with the reason, and the others are measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from altalign import storage
from altalign.errors import AltalignError
from altalign.eval import (
    captioning,
    choices,
    composed,
    crisscrossed,
    knn,
    languages,
    linear_probe,
    near_duplicates,
    outcomes,
    retrieval,
    vtab,
    word_similarity,
    zero_shot,
)
from altalign.eval.class_names import Classes, templates
from altalign.eval.encoded import Features
from altalign.eval.image_sources import Images, folder_of
from altalign.eval.near_duplicates import Without
from altalign.eval.outcomes import Measure, Result
from altalign.eval.sets import HeldOut, LabelledSet, captioned, captioned_set, labelled_set
from altalign.eval.settings import EvalSets, Set

MEASURES: Mapping[str, Measure] = {
    "retrieval": retrieval.measured,
    "zero_shot": zero_shot.measured,
    "knn": knn.measured,
    "linear_probe": zero_shot.measured,
    "vtab": vtab.measured,
    "cxc": crisscrossed.measured,
    "captioning": captioning.measured,
    "multilingual": languages.measured,
    "word_similarity": word_similarity.measured,
    "choices": choices.measured,
    "composed": composed.measured,
}


@dataclass(frozen=True)
class Evaluated:
    """A set and what a model makes of it."""

    settings: Set
    images: Images  # those of the set, by their numbers in it
    result: Result
    intervals: Mapping[str, tuple[float, float]]  # of each metric, the lower and the upper end
    without: Sequence[Without]  # the same without images that have near-duplicates, by the run that looked for them

    @property
    def task(self) -> str:
        """Of the set."""
        return self.settings.task

    @property
    def name(self) -> str:
        """TASK/NAME."""
        return f"{self.task}/{self.settings.name}"

    @property
    def score(self) -> float:
        """The metric that stands for the set."""
        return self.result.metrics[self.settings.metric]


@dataclass(frozen=True)
class Mean:
    """The mean of a task over its sets, each by its own metric, and how many of them it is over."""

    task: str
    value: float
    sets: int
    of: int


@dataclass(frozen=True)
class Evaluation:
    """All sets."""

    evaluated: Sequence[Evaluated]
    missing: Mapping[str, str]  # sets that could not be measured, by name: the reason

    @property
    def means(self) -> list[Mean]:
        """Of each task with several sets."""
        found = []
        for task in dict.fromkeys(each.task for each in self.evaluated):
            scores = [each.score for each in self.evaluated if each.task == task]
            of = len(scores) + sum(name.startswith(f"{task}/") for name in self.missing)
            if of > 1:
                found.append(Mean(task, sum(scores) / len(scores), len(scores), of))
        return found


def evaluate(
    sets: EvalSets,
    features: Features,
    *,
    held_out: HeldOut | None = None,
    runs: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Evaluation:
    """Measure a model on every set.

    Args:
        sets: the settings.
        features: of the model.
        held_out: gives the pairs that the model's training kept back; None: there are none.
        runs: the curations that the model was trained on.
        say: is told of each set.
    """
    evaluated, missing = list[Evaluated](), dict[str, str]()
    for chosen in sets.set:
        name = f"{chosen.task}/{chosen.name}"
        say(name)
        try:
            images, result = _result(chosen, features, held_out)
        except AltalignError as error:
            missing[name] = str(error)
            continue
        measure = MEASURES[chosen.task]
        intervals = outcomes.intervals(result.outcomes, measure, resamples=outcomes.RESAMPLES)
        without = near_duplicates.without(
            result, images, measure, test_set=chosen.name, runs=[*runs, *sets.near_duplicates.runs]
        )
        evaluated.append(Evaluated(chosen, images, result, intervals, without))
    return Evaluation(evaluated, missing)


def _result(chosen: Set, features: Features, held_out: HeldOut | None) -> tuple[Images, Result]:
    match chosen.task:
        case "retrieval":
            pairs = captioned(chosen, held_out)
            return pairs.files, retrieval.retrieval(pairs, features, shared_captions=chosen.shared_captions)
        case "zero_shot":
            labelled = _labelled(chosen, only_own_classes=chosen.only_own_classes)
            own = storage.join(chosen.path, "zeroshot_classification_templates.txt")
            has_own = storage.kind(chosen.path) == "folder" and storage.exists(own)
            prompts = templates(chosen.templates or [own if has_own else "{}"])
            return labelled.images, zero_shot.zero_shot(labelled, features, templates=prompts)
        case "knn":
            index = _labelled(chosen, path=chosen.train, split="train", needs_names=False)
            labelled = _labelled(chosen, classes=index.classes)
            return labelled.images, knn.knn(labelled, index, features)
        case "linear_probe":
            train = _labelled(chosen, path=chosen.train, split="train", needs_names=False)
            held = _labelled(chosen, path=chosen.validation, classes=train.classes) if chosen.validation else None
            labelled = _labelled(chosen, classes=train.classes)
            return labelled.images, linear_probe.linear_probe(labelled, train, held, features)
        case "vtab":
            return vtab.of_folder(chosen.path, features)
        case "cxc":
            pairs = captioned_set([chosen.path], "karpathy", images=chosen.images, split=chosen.split)
            pairs = pairs.with_captions(at_most=chosen.captions_at_most)
            ids = crisscrossed.read_ids(chosen.path)
            split = chosen.split
            return pairs.files, crisscrossed.of_set(pairs, features, ids=ids, folder=chosen.ratings, split=split)
        case "captioning":
            pairs = captioned(chosen, None)
            return pairs.files, captioning.captioning(pairs, features)
        case "multilingual":
            if chosen.captions:
                captions = languages.read_lines(chosen.path, chosen.captions)
            else:
                captions = languages.read_xm3600(chosen.path, chosen.languages)
            return languages.of_set(captions, chosen.images, features)
        case "word_similarity":
            words = word_similarity.read_word_pairs(chosen.path)
            names = [f"{pair.first} {pair.second}" for pair in words]
            return Images(names, names), word_similarity.word_similarity(words, features.encode_word)
        case "choices":
            return choices.of_examples(choices.read_examples(chosen.path), chosen.images, features)
        case "composed":
            searched = folder_of(chosen.images)
            queries = composed.read_queries(chosen.path)
            return searched, composed.of_set(searched, queries, features)


def _labelled(
    chosen: Set,
    *,
    path: str = "",
    split: str = "",
    classes: Classes | None = None,
    only_own_classes: bool = False,
    needs_names: bool = True,
) -> LabelledSet:
    """The images of a set's settings; `path`, `split` and `classes` in place of its own."""
    return labelled_set(
        path or chosen.path,
        split=split or chosen.split,
        image_column=chosen.image_column,
        label_column=chosen.label_column,
        classes=classes or (Classes.named(chosen.classes) if chosen.classes else None),
        only_own_classes=only_own_classes,
        needs_names=needs_names,
    )
