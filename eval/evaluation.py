"""Goes through the sets of an evaluation: opens each, runs its task, resamples, leaves near-duplicates out.

A set that cannot be read is missing, with the reason, and the others are measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from altalign.errors import AltalignError
from altalign.eval import (
    captioned,
    captioning,
    choices,
    composed,
    crisscrossed,
    image_sets,
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
from altalign.eval.image_sets import ImageSet
from altalign.eval.labelled_sets import LabelledSet, labelled_set
from altalign.eval.near_duplicates import Without
from altalign.eval.outcomes import Measure, Result
from altalign.eval.places import Images, folder_of, nothing_read
from altalign.eval.settings import (
    CaptioningSet,
    ChoicesSet,
    ComposedSet,
    CxcSet,
    EvalSets,
    KnnSet,
    LabelledSetSettings,
    LinearProbeSet,
    MultilingualSet,
    RetrievalSet,
    SetSettings,
    VtabSet,
    WordSimilaritySet,
    ZeroShotSet,
)
from altalign.eval.web_folders import beside

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
HeldOut = Callable[[int], ImageSet]  # from the largest number of images


@dataclass(frozen=True)
class Evaluated:
    """A set and what a model makes of it.

    Attributes:
        images: those of the set, by their numbers in it.
        intervals: of each metric, the lower and the upper end.
        without: the same without images that have near-duplicates, by the run that looked for them.
    """

    task: str
    settings: SetSettings
    images: Images
    result: Result
    intervals: Mapping[str, tuple[float, float]]
    without: Sequence[Without]

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
    """All sets.

    Attributes:
        missing: sets that could not be measured, by name: the reason.
    """

    evaluated: Sequence[Evaluated]
    missing: Mapping[str, str]

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
    for task, chosen in sets.by_task:
        name = f"{task}/{chosen.name}"
        say(name)
        try:
            images, result = _result(chosen, features, held_out)
        except AltalignError as error:
            missing[name] = str(error)
            continue
        measure, drawn = MEASURES[task], sets.intervals
        intervals = (
            outcomes.intervals(result.outcomes, measure, resamples=drawn.resamples, seed=drawn.seed)
            if drawn.resamples
            else {}
        )
        without = near_duplicates.without(
            result, images, measure, test_set=chosen.test_set or chosen.name, runs=[*runs, *sets.near_duplicates.runs]
        )
        evaluated.append(Evaluated(task, chosen, images, result, intervals, without))
    return Evaluation(evaluated, missing)


def _result(chosen: SetSettings, features: Features, held_out: HeldOut | None) -> tuple[Images, Result]:
    match chosen:
        case RetrievalSet():
            pairs = captioned.opened(chosen, held_out)
            found = retrieval.retrieval(pairs, features, shared_captions=chosen.shared_captions)
            return pairs.files, found
        case ZeroShotSet():
            labelled = _labelled(chosen, only_own_classes=chosen.only_own_classes)
            beside_it = beside(chosen.path, "zeroshot_classification_templates.txt")
            prompts = templates(chosen.templates or [beside_it or "{}"])
            return labelled.images, zero_shot.zero_shot(labelled, features, templates=prompts)
        case KnnSet():
            index = _labelled(chosen, path=chosen.index, split=chosen.index_split, needs_names=False)
            labelled = _labelled(chosen, classes=index.classes)
            return labelled.images, knn.knn(labelled, index, features)
        case LinearProbeSet():
            train = _labelled(chosen, path=chosen.train, split=chosen.train_split, needs_names=False)
            held = _labelled(chosen, path=chosen.validation, classes=train.classes) if chosen.validation else None
            labelled = _labelled(chosen, classes=train.classes)
            return labelled.images, linear_probe.linear_probe(labelled, train, held, features)
        case VtabSet():
            return vtab.of_folder(chosen.path, features)
        case CxcSet():
            of = image_sets.karpathy_set(chosen.path, images=chosen.images, split=chosen.split)
            of = of.with_captions(at_most=chosen.captions_at_most)
            ids = crisscrossed.read_ids(chosen.path)
            given = {"folder": chosen.ratings, "split": chosen.split, "samples": chosen.samples}
            return of.files, crisscrossed.of_set(of, features, ids=ids, **given)
        case CaptioningSet():
            of = captioned.at(chosen, chosen.path).with_captions(at_most=chosen.captions_at_most)
            return of.files, captioning.captioning(of, features)
        case MultilingualSet():
            if chosen.captions:
                captions = languages.read_lines(chosen.path, chosen.captions)
            else:
                captions = languages.read_xm3600(chosen.path, chosen.languages)
            return languages.of_set(captions, chosen.images, features)
        case WordSimilaritySet():
            words = word_similarity.read_word_pairs(chosen.path)
            names = [f"{pair.first} {pair.second}" for pair in words]
            return nothing_read(names), word_similarity.word_similarity(words, features.encode_word)
        case ChoicesSet():
            return choices.of_examples(choices.read_examples(chosen.path), chosen.images, features)
        case ComposedSet():
            searched = folder_of(chosen.images)
            weights = {"text_weight": chosen.text_weight, "image_weight": chosen.image_weight}
            return searched, composed.of_set(searched, composed.read_queries(chosen.path), features, **weights)
    raise TypeError(f"no task of {type(chosen).__name__}")


def _labelled(
    chosen: LabelledSetSettings,
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
