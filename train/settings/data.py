"""Settings of what is trained on and measured: pairs, their order and tokenizer, classes, sets of evaluation.

The docstring of a setting is its line in docs/reference/training-settings.md (`make docs`).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from altalign.eval.settings import Set
from altalign.filters import where
from altalign.settings.common import Settings
from altalign.train.settings.types import AtLeast0, Path, Positive, Share, Whole


class DataSettings(Settings):
    """What is trained on, and in which order (section 4.1)."""

    runs: list[Path] = Field(default_factory=lambda: ["runs/demo"])
    """Run folders of `altalign curate`: local paths, `s3://…` or `gs://…`. `[]`: only `files`."""
    files: list[Path] = Field(default_factory=list)  # ours
    """Globs of WebDataset tars (`.tar`) of images with `.txt` or `.json`, or of Parquet tables, without lineage, packed
    once.
    """
    image_column: str = "image"
    """Tables: column of image bytes."""
    caption_column: str = "caption"
    """Tables: column of a caption or a list of captions."""
    captions: Literal["each", "drawn"] = "each"  # ours
    """`each`: every caption of an image is a pair to train on. `drawn`: an image is drawn, and one of its captions by
    its share, anew at each visit.
    """
    caption_shares: dict[str, AtLeast0] = Field(default_factory=dict)  # ours
    """With `captions = "drawn"`: weights of an image's captions by the name of their input. Empty: those of each run's
    `[shards]`, or all alike."""
    held_out: Share = 0.0  # ours
    """Share of images kept for evaluation, chosen by the hash of `image_id`."""
    pairs: Whole = 0
    """Train on exactly this many pairs, chosen by a hash; fewer are a subset of more (table 10). `0`: all."""
    where: str = ""  # ours
    """Train on pairs that meet this condition, as in `altalign select`. Held-out pairs stay. Empty: all."""
    weight_by: str = ""  # ours
    """A numeric column: pairs are drawn in proportion to it. Empty: all alike."""
    soft_cap: AtLeast0 = 0.0
    """Above 0: soft-cap sampling by `weight_by` (FLYT: 0.15): each draw of a pair takes this from the logarithm of its
    weight.
    """
    nulls: Literal["", "drop", "keep"] = ""  # ours
    """Pairs without a value that `where` or `weight_by` reads; required if there may be some. `keep` gives no weight.
    """
    source_weights: dict[str, AtLeast0] = Field(default_factory=dict)  # ours
    """Share of an epoch of each source by name, divided by the sum. Empty: by size, or by the sums of `weight_by`."""
    sources: Literal["inputs", "clusters"] = "inputs"  # ours
    """A source is an input of the curation, or a cluster by `altalign score --clusters` (ZeroVL, A.6), called
    `runs/mine#07`.
    """
    sampling: Literal["random", "distinct_images", "sequential", "one_source"] = "random"
    """Mix sources at random; the same, no image twice in a global batch (ours); source after source; or one source a
    global batch (ZeroVL, 3.1).
    """
    read_together: Annotated[Positive, Field(le=100_000)] = 1  # ours
    """Consecutive pairs of a shard that one read brings into a batch. Captions of one image are neighbours: use
    `sampling = "distinct_images"`.
    """
    resize_px: Positive = 346
    """Side of the square that images are resized to; the aspect ratio is not kept."""
    crop_px: Positive = 289
    """Side of the random crop. Not above `resize_px`."""
    crop_area_at_least: Share = 0.0
    """Above 0: least share of the area of a random crop, of ratio 3:4 to 4:3, resized to `crop_px` (ZeroVL, 2.2: 0.6).
    `0`: ALIGN's crop.
    """
    flip: bool = True
    """Flip half of the images from left to right."""
    auto_augment: bool = False
    """AutoAugment with torchvision's ImageNet policy (ZeroVL, 5.1)."""
    word_corruption: Share = 0.0
    """Share of a caption's words corrupted in training (ZeroVL, 2.2: 0.2): half masked, a tenth replaced, the rest
    deleted.
    """
    decoding: Literal["full", "scaled", "device"] = "full"  # ours
    """`full`: workers decode JPEGs at full size. `scaled`: at 1/8 to 7/8, faster for large images; pixels differ by a
    level or two. `device`: the training device, a GPU by nvJPEG (extra `torchcodec`); pixels differ by two levels on
    average, 14 at most.
    """
    workers: Annotated[Whole, Field(le=1024)] = 2  # ours
    """Reader processes for each training process; `0`: the training process reads. The order stays the same."""

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
        if self.soft_cap and not self.weight_by:
            raise ValueError("soft_cap without weight_by, whose draws it caps; leave it out")
        if self.caption_shares and self.captions == "each":
            raise ValueError('caption_shares without captions = "drawn"; leave it out')
        if self.source_weights and not sum(self.source_weights.values()):
            raise ValueError("source_weights are all 0: nothing would be drawn; give one source a weight above 0")
        return self


class TokenizerSettings(Settings):
    """WordPiece, trained on the captions of the shards (section 5)."""

    file: str = ""
    """A `tokenizer.json`, a folder of transformers, or `run:FOLDER`. Empty: that of the text tower's `weights`, or a
    new one.
    """
    vocabulary_size: Annotated[Positive, Field(ge=16, le=10_000_000)] = 100_000
    """Word pieces with special tokens; 250,000 in the multilingual model (section 8). Few captions give fewer."""
    lower_case: bool = True  # the paper's sample captions are lower case (figures 1 and 2)
    """Lower the case of captions."""
    tokens_at_most: Annotated[Positive, Field(ge=3)] = 64
    """Most word pieces of a caption, `[CLS]` and `[SEP]` included; the rest is cut."""


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
        values = {"task": "retrieval", **values} if isinstance(values, Mapping) else values
        return super()._of_its_task(values)  # type: ignore[operator]


class EvaluationSettings(Settings):
    """What the model is measured on."""

    retrieval: list[RetrievalSet] = Field(default_factory=list)
    """Sets for image-text retrieval (section 5.1), one `[[evaluation.retrieval]]` each."""
    sets: str = ""  # ours
    """Sets of any task measured with them: a file of `altalign eval --sets`. Empty: none."""
    resize_px: Whole = 0
    """Side of the square before the central crop. `0`: as in training."""
    crop_px: Whole = 0
    """Side of the central crop. `0`: as in training."""
    keep_aspect_ratio: bool = False
    """Resize the short side instead of to a square before the crop (ZeroVL)."""
    averaged: bool = False  # ours
    """Evaluate, encode and export the moving average of `[optimizer] average`, not the last weights."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [chosen.name for chosen in self.retrieval]
        if len(set(names)) != len(names):
            raise ValueError(f"two sets of one name among {', '.join(names)}; give each its own")
        return self
