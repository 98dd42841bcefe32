"""Settings of training: what a run is measured on, and the classes that it learns in place of captions."""

from typing import Literal, Self

from pydantic import Field, model_validator

from altalign.eval.settings import CaptionSettings
from altalign.settings.common import Settings
from altalign.train.settings.types import Path, Positive, Share, Whole


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


class RetrievalSettings(CaptionSettings):
    """A set of images and captions to search in both directions."""

    kind: Literal["held_out", "run", "webdataset", "parquet"] = "held_out"
    """Pairs that `[data] held_out` keeps back, of other runs, of tars, or of Parquet tables."""
    paths: list[Path] = Field(default_factory=list)
    """Run folders, or globs of tars or tables. `held_out` has none."""

    @model_validator(mode="after")
    def _has_paths(self) -> Self:
        if (self.kind == "held_out") == bool(self.paths):
            raise ValueError(
                'held_out takes no paths: they are those of [data] runs; leave them out, or give kind = "run"'
                if self.paths
                else "give paths"
            )
        return self


class EvaluationSettings(Settings):
    """What the model is measured on."""

    retrieval: list[RetrievalSettings] = Field(default_factory=list)
    """Sets for image-text retrieval (section 5.1), one `[[evaluation.retrieval]]` each."""
    resize_px: Whole = 0
    """Side of the square before the central crop. `0`: as in training."""
    crop_px: Whole = 0
    """Side of the central crop. `0`: as in training."""
    keep_aspect_ratio: bool = False
    """Resize the short side instead of to a square before the crop (ZeroVL)."""
    batch: Positive = 256
    """Images, or captions, that are encoded at a time."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [chosen.name for chosen in self.retrieval]
        if len(set(names)) != len(names):
            raise ValueError(f"two sets of one name among {', '.join(names)}; give each its own")
        return self
