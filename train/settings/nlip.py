"""Settings of training with noisy pairs, after NLIP (arXiv 2212.07086)."""

from typing import Annotated, Any, Literal

from pydantic import Field

from altalign.settings.common import Settings
from altalign.train.settings.types import AtLeast0, Positive, Share


class NoiseSettings(Settings):
    """How noisy pairs are held for, and what the loss makes of it (NLIP, equations 7 to 11)."""

    estimates: str = ""
    """What `altalign nlip noise` found: a losses.parquet, or `run:FOLDER`, the training that it was of. Empty: none."""
    smoothing: Share = 0.0
    """A pair that is noisy with probability eps has the smoothing w, which is this times eps (NLIP: 0.5). `0`: none."""
    form: Literal["intended", "printed"] = "intended"
    """Of the loss: targets 1 - w for the match and w/(N - 1) for the others; or equation 10 as it is printed, by which
    a pair with w = 0 costs nothing."""
    captions: str = ""
    """Captions that a model wrote (`altalign nlip caption`): a captions.parquet, or `run:FOLDER`. That of a pair stands
    for its own with probability eps, drawn at each visit (NLIP, stage 3). Empty: none."""


class ReconstructionSettings(Settings):
    """MAE's decoder beside the image tower, a ViT with `token_drop` (NLIP, equation 1)."""

    weight: AtLeast0 = 0.0
    """Factor of its loss, which is added to the contrastive one (NLIP: 1). `0`: no decoder."""
    blocks: Annotated[Positive, Field(le=1_000)] = 4
    """Blocks, with heads of 64."""
    width: Annotated[Positive, Field(ge=4)] = 512  # MAE's; NLIP does not say
    """Width of its states."""


class CaptionerSettings(Settings):
    """The cross-modal decoder, of BART's shape, that learns captions (NLIP, equation 13)."""

    weight: AtLeast0 = 0.0
    """Factor of its loss, alpha, which is added to the contrastive one (NLIP: 1). `0`: no decoder."""
    layers: Annotated[Positive, Field(le=1_000)] = 6
    """Its layers; width, heads and dropout are those of the text tower, which is `architecture = "bart"`."""
    weights: str = ""
    """Weights (safetensors) to start from: a folder of BART, or `run:FOLDER`. Empty: from scratch."""
    prompt: str = "a picture of"  # the paper does not say
    """p: what its text begins with."""
    concepts: str = ""
    """q: a concepts.parquet of `altalign nlip concepts`, whose words stand after the prompt. Empty: none."""
    mask_share: Share = 0.5  # the paper does not say
    """Share of the caption's words that are masked in the text that it sees (y^m), drawn for each pair and visit."""
    tokens_at_most: Annotated[Positive, Field(ge=3)] = 64  # ours
    """Word pieces of that text, [p, q, y^m]; longer ones are cut."""
    beams: Annotated[Positive, Field(le=1_000)] = 3  # BLIP's; the paper does not say
    """Beginnings that beam search goes on with when captions are written."""


class PhaseSettings(Settings):
    """One of the phases that a training goes through in turn, each in a folder of its own: `RUN/phases/NAME`.

    In its settings `phase:NAME` stands for an earlier phase, as `run:FOLDER` for its folder.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    """What its folder is called: small letters, digits and hyphens."""
    does: Literal["train", "noise", "captions"] = "train"
    """Train; or measure how noisy the pairs of the training phase before it are, as `altalign nlip noise` does; or
    write its captions of all pairs of the whole's `[data]`, as `altalign nlip caption` does."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """`train`: what differs from the settings of the whole, section by section."""
