"""Settings of training with noisy pairs, after NLIP (arXiv 2212.07086)."""

from typing import Annotated, Any, Literal

from pydantic import Field

from altalign.settings.common import Settings
from altalign.train.settings.types import AtLeast0, Positive, Share

OF_MIXTURE = {"one_group_by_bic", "means_apart_at_least", "clean_below_lower_mean"}  # of the settings below


class NoiseSettings(Settings):
    """How noisy pairs are held for, and what the loss makes of it (NLIP, equations 7 to 11)."""

    one_group_by_bic: bool = True
    """`altalign nlip noise`: no pair is noisy where one Gaussian explains the losses as well, by the Bayesian
    information criterion (ours).
    """
    means_apart_at_least: AtLeast0 = 0.5
    """Nor where the means of both Gaussians are nearer than this many of the smaller deviation (ours). `0`: never."""
    clean_below_lower_mean: bool = True
    """eps is 0 below the lower mean, where the wider of both Gaussians may have the greater density (ours). `false`:
    equation 8 as printed.
    """
    estimates: str = ""
    """Estimates by `altalign nlip noise`: a losses.parquet, or `run:FOLDER`. Empty: none."""
    smoothing: Share = 0.0
    """Smoothing w of a pair: this times its probability of noise (NLIP: 0.5). `0`: none."""
    form: Literal["intended", "printed"] = "intended"
    """Targets are 1 - w for the match and w/(N - 1) for others; or equation 10 as printed, where a pair with w = 0
    costs nothing.
    """
    captions: str = ""
    """Captions by `altalign nlip caption`: a captions.parquet, or `run:FOLDER`. One replaces a pair's own with its
    probability of noise (NLIP, stage 3). Empty: none.
    """


class ReconstructionSettings(Settings):
    """MAE's decoder beside the image tower, a ViT with `token_drop` (NLIP, equation 1)."""

    weight: AtLeast0 = 0.0
    """Factor of its loss beside the contrastive one (NLIP: 1). `0`: no decoder."""
    blocks: Annotated[Positive, Field(le=1_000)] = 4
    """Blocks, with heads of 64."""
    width: Annotated[Positive, Field(ge=4)] = 512  # MAE's; NLIP does not say
    """Width of its states."""


class CaptionerSettings(Settings):
    """The cross-modal decoder, of BART's shape, that learns captions (NLIP, equation 13)."""

    weight: AtLeast0 = 0.0
    """Factor alpha of its loss beside the contrastive one (NLIP: 1). `0`: no decoder."""
    layers: Annotated[Positive, Field(le=1_000)] = 6
    """Layers; width, heads and dropout are those of the text tower, which must be `bart`."""
    weights: str = ""
    """Initial weights (safetensors): a folder of BART, or `run:FOLDER`. Empty: from scratch."""
    concepts: str = ""
    """q: a concepts.parquet of `altalign nlip concepts`, whose words follow p, "a picture of". Empty: none."""
    mask_share: Share = 0.5  # the paper does not say
    """Share of the caption's words masked in its input (y^m), drawn at each visit."""
    tokens_at_most: Annotated[Positive, Field(ge=3)] = 64  # ours
    """Most word pieces of its input [p, q, y^m]; the rest is cut."""
    beams: Annotated[Positive, Field(le=1_000)] = 3  # BLIP's; the paper does not say
    """Beams of the search that writes captions."""


class PhaseSettings(Settings):
    """One of the phases that a training goes through in turn, each in a folder of its own: `RUN/phases/NAME`.

    In its settings `phase:NAME` stands for an earlier phase, as `run:FOLDER` for its folder.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    """Name of its folder: small letters, digits and hyphens."""
    does: Literal["train", "noise", "captions"] = "train"
    """Train; `altalign nlip noise` of the training before it; or `altalign nlip caption` of all pairs of the whole's
    `[data]`.
    """
    settings: dict[str, Any] = Field(default_factory=dict)
    """`train`: what differs from the settings of the whole, by section."""
