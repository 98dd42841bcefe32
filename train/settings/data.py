"""Settings of what is trained on: pairs and their order, and the tokenizer of their captions.

The docstring of a setting is its line in docs/reference/training-settings.md (`make docs`).
"""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from altalign.filters import where
from altalign.settings.common import Settings
from altalign.train.settings.types import AtLeast0, Path, Positive, Share, Whole


class DataSettings(Settings):
    """What is trained on, and in which order (section 4.1)."""

    runs: list[Path] = Field(default_factory=lambda: ["runs/demo"])
    """Finished run folders of `altalign curate`: local paths, `s3://…` or `gs://…`. `[]`: tars and tables alone."""
    tars: list[Path] = Field(default_factory=list)  # ours
    """Globs of WebDataset tars of others: images with `.txt` or `.json`. They have no lineage, and are packed once."""
    tables: list[Path] = Field(default_factory=list)  # ours
    """Globs of Parquet tables of images and captions, likewise."""
    image_column: str = "image"
    """`tables`: column of the image's bytes."""
    caption_column: str = "caption"
    """`tables`: column of the caption, or of a list of them."""
    held_out: Share = 0.0  # ours
    """Share of the images, chosen by the hash of `image_id`, that training never sees: pairs for evaluation."""
    pairs: Whole = 0
    """Train on exactly this many pairs, chosen by a hash: fewer are a subset of more (table 10). `0`: all."""
    where: str = ""  # ours
    """Train on pairs for which this condition on columns, kept columns and scores holds, as `altalign select` takes it.
    Pairs that are held out stay. Empty: all."""
    weight_by: str = ""  # ours
    """A column of numbers: pairs are drawn in proportion to it, and never where it is 0. Empty: all alike."""
    nulls: Literal["", "drop", "keep"] = ""  # ours
    """What becomes of pairs without a value that `where` or `weight_by` reads. It must be said where there may be some;
    `keep` gives no weight."""
    source_weights: dict[str, AtLeast0] = Field(default_factory=dict)  # ours
    """Weights of sources by name, divided by their sum: shares of an epoch. Empty: in proportion to sizes, or to the
    sums of `weight_by`."""
    sources: Literal["inputs", "clusters"] = "inputs"  # ours
    """What a source is: an input of the curation, or a cluster of images by `altalign score --clusters` (ZeroVL, A.6):
    of 100, cluster 7 of `runs/mine` is called `runs/mine#07`."""
    sampling: Literal["random", "distinct_images", "sequential", "one_source"] = "random"
    """Sources mixed at random; the same, and a pair of an image that its global batch has already waits for the next
    batch (ours); one source after another in each epoch; or a global batch of one source each (ZeroVL, 3.1)."""
    read_together: Annotated[Positive, Field(le=100_000)] = 1  # ours
    """Pairs that follow one another in a shard and come into a batch together, by one read: for object stores and disks
    that seek slowly. `1`: each by itself. Captions of one image are neighbours: see `sampling = "distinct_images"`."""
    resize_px: Positive = 346
    """An image is resized to a square of this side; its aspect ratio is not kept."""
    crop_px: Positive = 289
    """Side of the random crop of that. Not above `resize_px`."""
    crop_area_at_least: Share = 0.0
    """Above 0: crop at random this share of the area or more, of an aspect ratio from 3:4 to 4:3, and resize that to
    `crop_px` (ZeroVL, 2.2: 0.6). `0`: ALIGN's crop."""
    flip: bool = True
    """Flip half of the images from left to right."""
    auto_augment: bool = False
    """Augment by AutoAugment's policy of ImageNet (ZeroVL, section 5.1), as torchvision has it."""
    word_corruption: Share = 0.0
    """Share of a caption's words that are corrupted in training (ZeroVL, 2.2: 0.2): half of them masked, a tenth
    replaced by others, the rest deleted."""
    decoding: Literal["full", "scaled", "device"] = "full"  # ours
    """Of JPEGs. `full`: workers decode them at their size. `scaled`: at 1/8 to 7/8 of it, as small as leaves the crop
    all of its pixels; faster where images are larger than `resize_px`, and pixels differ by a level or two. `device`:
    the device that trains decodes them, a GPU by nvJPEG (extra `torchcodec`), where pixels differ by two levels in the
    mean, and 14 at most."""
    workers: Annotated[Whole, Field(le=1024)] = 2  # ours
    """Processes that read and decode, per process that trains; `0`: that process itself. The order stays the same."""

    @field_validator("where")
    @classmethod
    def _where_is_a_condition(cls, value: str) -> str:
        if value:
            where.parsed(value)
        return value

    @model_validator(mode="after")
    def _crop_fits(self) -> Self:
        if self.crop_px > self.resize_px:
            raise ValueError(
                f"crop_px ({self.crop_px}) is above resize_px ({self.resize_px}); lower the one or raise the other"
            )
        if self.decoding == "device" and self.auto_augment:
            raise ValueError('decoding = "device" with auto_augment, which workers do; leave one of both out')
        if self.nulls and not (self.where or self.weight_by):
            raise ValueError("nulls without where or weight_by, which read values; leave it out")
        if self.source_weights and not sum(self.source_weights.values()):
            raise ValueError("source_weights are all 0: nothing would be drawn; give one source a weight above 0")
        return self


class TokenizerSettings(Settings):
    """WordPiece, trained on the captions of the shards (section 5)."""

    file: str = ""
    """A `tokenizer.json`, a folder of transformers, or `run:FOLDER`, to take instead of training one. Empty: that of
    `[text_tower] weights` where they are a folder's or a run's."""
    vocabulary_size: Annotated[Positive, Field(ge=16, le=10_000_000)] = 100_000
    """Word pieces with special tokens; 250,000 in the multilingual model (section 8). Few captions give fewer."""
    lower_case: bool = True  # the paper's sample captions are lower case (figures 1 and 2)
    """Lower the case of captions."""
    tokens_at_most: Annotated[Positive, Field(ge=3)] = 64
    """Word pieces of a caption, `[CLS]` and `[SEP]` among them; longer ones are cut."""
