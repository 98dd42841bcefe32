"""Settings of training: what a run is measured on, and the classes that it learns in place of captions."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from altalign.eval.settings import Set
from altalign.settings.common import Settings
from altalign.train.settings.types import Share, Whole


class ClassificationSettings(Settings):
    """A linear layer on the image tower (section 5.3); captions, tokenizer, text tower, loss and temperature rest."""

    train: str = ""
    """Training images with classes, as `altalign eval --sets` reads them. Empty: train on captions."""
    test: str = ""
    """Images with classes to measure on."""
    label_column: str = "label"
    """Tables: column of the class, a number or a name."""
    classes: str = ""
    """`imagenet`, or a file with a class a line. Empty: as the images of `train` say."""
    label_smoothing: Share = 0.0
    """As in the loss of captions."""


class RetrievalSet(Set):
    """A set of images and captions to search in both directions: a `[[set]]` of an evaluation whose task is this."""

    task: Literal["retrieval"] = "retrieval"  # type: ignore[assignment]

    @model_validator(mode="before")
    @classmethod
    def _of_its_task(cls, values: Any) -> Any:
        return super()._of_its_task(_of_this_version(values))  # type: ignore[operator]


def _of_this_version(values: Any) -> Any:
    """The settings of a set with `path` or `held_out`, where those of earlier versions have `kind` and `paths`."""
    if not isinstance(values, Mapping):
        return values
    now = {"task": "retrieval", **{name: value for name, value in values.items() if name not in ("kind", "paths")}}
    if "kind" in values or "paths" in values:
        kind, paths = values.get("kind", "held_out"), values.get("paths", [])
        if kind == "held_out" and not paths:
            return {**now, "held_out": True}
        if not isinstance(paths, list) or len(paths) != 1:
            raise ValueError(
                "kind and paths are path or held_out = true now; give one, and each of several paths a table"
            )
        now["path"] = paths[0]
    return now


class EvaluationSettings(Settings):
    """What the model is measured on."""

    retrieval: list[RetrievalSet] = Field(default_factory=list)
    """Sets for image-text retrieval (section 5.1), one `[[evaluation.retrieval]]` each."""
    resize_px: Whole = 0
    """Side of the square before the central crop. `0`: as in training."""
    crop_px: Whole = 0
    """Side of the central crop. `0`: as in training."""
    keep_aspect_ratio: bool = False
    """Resize the short side instead of to a square before the crop (ZeroVL)."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [chosen.name for chosen in self.retrieval]
        if len(set(names)) != len(names):
            raise ValueError(f"two sets of one name among {', '.join(names)}; give each its own")
        return self
