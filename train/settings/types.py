"""Types of training's settings: ranges that several of them have."""

from typing import Annotated, Literal

from pydantic import Field

LARGEST = 2**63 - 1  # what TOML and Arrow hold
LARGEST_FACTOR = 1e30  # products of two are still near what float32 holds
LARGEST_BATCH = 2**30  # the order of a batch is in memory
Whole = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
BatchSize = Annotated[int, Field(ge=1, le=LARGEST_BATCH)]
Share = Annotated[float, Field(ge=0, lt=1)]
AtLeast0 = Annotated[float, Field(ge=0, le=LARGEST_FACTOR)]
Above0 = Annotated[float, Field(gt=0, le=LARGEST_FACTOR)]
Excluded = Literal["bias", "norm", "batch_norm"]
Epsilon = Annotated[float, Field(ge=1e-30, le=LARGEST_FACTOR)]  # less is 0 in float32
Temperature = Annotated[float, Field(ge=1e-6, le=1e6)]
Factor = Annotated[float, Field(ge=0, le=100)]
Device = Literal["auto", "cpu", "cuda"]
Part = Literal[  # of a model
    "image_tower",
    "image_projection",
    "text_tower",
    "text_projection",
    "image_decoder",
    "captioner",
    "temperature",
    "head",
]
Path = Annotated[str, Field(min_length=1)]
