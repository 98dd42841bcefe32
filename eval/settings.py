"""Settings of `altalign eval --sets FILE`: the sets that models are measured on, each of a task."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import Field, SerializerFunctionWrapHandler, StringConstraints, model_serializer, model_validator

from altalign.settings.common import TAKE_IT_OUT, Removed, Settings, without_removed

Text = Annotated[str, StringConstraints(min_length=1)]
Whole = Annotated[int, Field(ge=0)]
TaskName = Literal[
    "retrieval", "zero_shot", "knn", "linear_probe", "vtab", "cxc", "captioning", "multilingual", "word_similarity",
    "choices", "composed",
]  # fmt: skip


class Task(NamedTuple):
    """What a set of a task is given, beside `task`, `name` and `metric`."""

    metrics: tuple[str, ...]  # those that may stand for the set; the first does where nothing is given
    needs: tuple[str, ...] = ("path",)  # settings without which there is no set
    takes: tuple[str, ...] = ()  # others


_CAPTIONED = ("split", "images", "image_column", "caption_column", "images_at_most", "captions_at_most")
_LABELLED = ("split", "image_column", "label_column", "classes")
_RECALLS = tuple(f"{direction}_r{k}" for direction in ("image_to_text", "text_to_image") for k in (1, 5, 10))
_ACCURACIES = ("top1", "top5", "mean_per_class")
_OF_CXC = ("image_to_text_r1", "text_to_image_r1", "text_to_text_r1", "image_to_image_r1")
TASKS: Mapping[str, Task] = {
    "retrieval": Task(("mean_recall", "rsum", *_RECALLS), (), ("path", "held_out", *_CAPTIONED)),
    "zero_shot": Task(_ACCURACIES, takes=(*_LABELLED, "templates", "only_own_classes")),
    "knn": Task(("r1", "r10"), ("path", "train"), (*_LABELLED, "features")),
    "linear_probe": Task(_ACCURACIES, ("path", "train"), (*_LABELLED, "validation", "features")),
    "vtab": Task(
        ("mean_there", "mean_all", "mean_natural", "mean_specialised", "mean_structured"), takes=("features",)
    ),
    "cxc": Task(_OF_CXC, ("path", "images", "ratings"), ("split", "captions_at_most")),
    "captioning": Task(("cider", "bleu_4"), takes=_CAPTIONED),
    "multilingual": Task(("mean_recall", "rsum"), ("path", "images"), ("captions", "languages")),
    "word_similarity": Task(("spearman",)),
    "choices": Task(("right", "mean_of_files", "text", "image", "group"), ("path", "images")),
    "composed": Task(("r1", "r5", "r10"), ("path", "images")),
}
_OF_ALL = ("task", "name", "metric")
# which settings of earlier runs may still have
_REMOVED: Removed = {"repeated_captions": (True, TAKE_IT_OUT), "shared_captions": ("own", TAKE_IT_OUT)}


class Set(Settings):
    """A set: `TASKS` says which of these settings a task needs, and which it takes."""

    name: Text
    """What its metrics are called, after their task: `retrieval/NAME`."""
    image_column: Text = "image"
    """Table: column of image bytes."""
    caption_column: Text = "caption"
    """Table: column of a caption or a list of captions. Rows of the same bytes are one image."""
    images_at_most: Whole = 0
    """Images taken, chosen by a hash of their identity. `0`: all."""
    captions_at_most: Whole = 0
    """First captions of an image that are taken (5 give MSCOCO's 25,000). `0`: all."""

    task: TaskName
    """What is measured."""
    metric: str = ""
    """Metric that stands for the set in the table and in means. Empty: the task's first."""
    path: str = ""
    """Where the set is; what each task takes is above."""
    split: str = "test"
    """The split: images in Karpathy's JSON, tars in CLIP_benchmark's folders."""
    images: str = ""
    """Folder of the images that `path` names."""
    held_out: bool = False
    """In place of `path`: the pairs that the run's `[data] held_out` keeps back."""
    label_column: Text = "label"
    """Table: column of the class, a number or a name."""
    classes: str = ""
    """`imagenet`, or a file with a class a line: its name, or folder, tab, name. Empty: as the set says."""
    templates: list[Text] = Field(default_factory=list)
    """Prompts with `{}` or `{c}` for the class, files of them, or `imagenet` (CLIP's 80). Empty: as the set says, or
    the bare class name.
    """
    only_own_classes: bool = False
    """Choose only among the set's own classes (ImageNet-R and ImageNet-A)."""
    train: str = ""
    """Images that the probe is fitted on or neighbours come from; as `path`."""
    validation: str = ""
    """Images that choose the penalty; as `path`. Empty: a random fifth of `train`."""
    features: Literal["embeddings", "before projection"] = "embeddings"
    """Of an image: its embedding of length 1, or what the image tower makes before any projection, not scaled (CLIP's
    probes).
    """
    ratings: str = ""
    """Folder of `sts_test.csv`, `sis_test.csv` and `sits_test.csv`, plain or gzipped."""
    captions: dict[str, list[Text]] = Field(default_factory=dict)
    """Caption files by language, a line an image, as in Multi30K."""
    languages: list[Text] = Field(default_factory=list)
    """XM3600: these languages. Empty: all."""

    @model_validator(mode="before")
    @classmethod
    def _of_its_task(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values, name = without_removed(values, _REMOVED), str(values.get("task"))
        defaults: dict[str, Any] = {"metric": TASKS[name].metrics[0]} if name in TASKS else {}
        return {**defaults, **({"captions_at_most": 5} if name == "cxc" else {}), **values}

    @model_validator(mode="after")
    def _fits_its_task(self) -> Self:
        task = TASKS[self.task]
        taken = (*task.needs, *task.takes)
        for name in self.model_fields_set.difference(_OF_ALL, taken):
            raise ValueError(f'{name}: task = "{self.task}" takes no such setting; it takes {", ".join(taken)}')
        if missing := [name for name in task.needs if not getattr(self, name)]:
            raise ValueError(f'{missing[0]}: missing; task = "{self.task}" needs it')
        if self.metric not in task.metrics:
            raise ValueError(f'metric = "{self.metric}": give {", ".join(task.metrics)}')
        if self.task == "retrieval" and self.held_out == bool(self.path):
            raise ValueError("give a path or held_out = true, one of both")
        return self

    @model_serializer(mode="wrap")
    def _without_those_of_other_tasks(self, dumped: SerializerFunctionWrapHandler) -> dict[str, Any]:
        names = {*_OF_ALL, *TASKS[self.task].needs, *TASKS[self.task].takes}
        return {name: value for name, value in dumped(self).items() if name in names}


class NearDuplicateSettings(Settings):
    """Test images that have near-duplicates in the pool."""

    runs: list[Text] = Field(default_factory=list)
    """Finished curations with near-duplicates, beside those that the model was trained on."""


class EvalSets(Settings):
    """The sets of an evaluation."""

    set: list[Set] = Field(default_factory=list)
    near_duplicates: NearDuplicateSettings = NearDuplicateSettings()

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [f"{each.task}/{each.name}" for each in self.set]
        if twice := next((name for number, name in enumerate(names) if name in names[:number]), ""):
            raise ValueError(f"two sets are called {twice}; give each its own name")
        if not names:
            raise ValueError(f"no set; add a [[set]] with a name and task = {', '.join(get_args(TaskName))}")
        return self
