"""ScoreConfig: what `altalign score` measures.

The docstring of a setting is its line in docs/reference/scores.md (`make docs`).
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from altalign.data.schema import SAMPLE
from altalign.settings.common import Settings, twice
from altalign.settings.curate import FUNCTION

Share = Annotated[float, Field(ge=0, le=1)]
Kind = Literal["text", "language", "image", "embedding", "similarity", "linear", "noise", "own"]

# What a kind needs, and what it may have beside that.
_NEEDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "text": ((), ("profanity",)),
    "language": ((), ("model", "margin_at_least")),
    "image": ((), ("faces", "text_boxes")),
    "embedding": ((), ("model",)),
    "similarity": (("model",), ()),
    "linear": (("model", "weights"), ("side",)),
    "noise": (("model",), ()),
    "own": (("function",), ("settings",)),
}


class ScoreSettings(Settings):
    """One score. Its columns begin with its name."""

    name: Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
    """Name of the score: small letters, digits and `_`. Columns are `NAME` or `NAME_…`."""
    kind: Kind
    """What is measured."""
    model: str = ""
    """Language: a fastText file, by default the installed lid.176.ftz. Similarity and linear: `onnx:FOLDER`,
    `open_clip:DIR`, `open_clip:MODEL:CHECKPOINT`, `align:FOLDER` or `run:TRAINING_RUN`. Embedding: the same, or an
    image tower alone; by default the lowest frequencies of the image. Noise: `run:TRAINING_RUN` with
    `noise/losses.parquet`.
    """
    margin_at_least: Share = 0.0
    """Language: least lead of the likeliest language; else the label is `und`."""
    profanity: str = ""
    """Text: file of words to count, one a line."""
    faces: str = ""
    """Image: an ONNX face detector, with a TOML of its name beside it."""
    text_boxes: str = ""
    """Image: an ONNX text detector, likewise."""
    weights: str = ""
    """Linear: safetensors (`weight`, `bias`), or an ONNX file from embeddings to a number."""
    side: Literal["image", "text"] = "image"
    """Linear: whose embedding it takes."""
    function: Annotated[str, Field(pattern=f"^({FUNCTION})?$")] = ""
    """Own: `MODULE:FUNCTION`, beside the settings file or on the Python path."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Own: keyword arguments of the function."""

    @field_validator("name")
    @classmethod
    def _name_is_of_a_column(cls, value: str) -> str:
        if value in SAMPLE.names:
            raise ValueError(f'"{value}": samples have a column of this name; give another')
        return value

    @model_validator(mode="after")
    def _has_what_its_kind_takes(self) -> Self:
        needed, more = _NEEDS[self.kind]
        if missing := [name for name in needed if not getattr(self, name)]:
            raise ValueError(f'{missing[0]}: kind = "{self.kind}" needs it')
        if self.kind == "noise" and not self.model.startswith("run:"):
            raise ValueError(f'model = "{self.model}": kind = "noise" takes a training run, "run:TRAINING_RUN"')
        others = self.model_fields_set - {"name", "kind", *needed, *more}
        if others:
            raise ValueError(f'{min(others)}: kind = "{self.kind}" has no such setting; leave it out')
        return self


class ScoreConfig(Settings):
    """All scores of a command."""

    score: Annotated[list[ScoreSettings], Field(min_length=1)]

    @field_validator("score")
    @classmethod
    def _names_differ(cls, value: list[ScoreSettings]) -> list[ScoreSettings]:
        if name := twice([each.name for each in value]):
            raise ValueError(f'two scores are named "{name}"; rename one')
        return value
