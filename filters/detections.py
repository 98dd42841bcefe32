"""What a detector finds on an image: how many boxes or regions, and what share of the image they cover. Pure.

Detectors say it in one of two ways: boxes with scores, as those of faces do, or a map with the probability of each
place, as those of text do.
"""

from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from altalign.filters.model_inputs import ModelInput

BOXES_AT_MOST = 1_000  # of an image, those with the highest scores
_GRID = 256  # cells a side, on which the share is measured

Share = Annotated[float, Field(ge=0, le=1)]
Floats = npt.NDArray[np.float32]


class Detector(ModelInput):
    """The TOML beside a detector in ONNX.

    Attributes:
        finds: boxes with scores, or a map of probabilities.
        boxes_output: the output with a box a row; empty: the first one.
        scores_output: the output with the scores of the boxes; empty: they stand in the boxes' rows.
        scores_column: which column of the scores is that of what is looked for; negative: counted from the last.
        map_output: the output that is the map, of height and width last; empty: the first one.
        corners: whether a box is left, top, right, bottom; otherwise middle x and y, width, height.
        unit: pixels of the input, or shares of its sides.
        score_at_least: what counts.
        overlap_at_most: of two boxes whose intersection has more of their union, the one with the lower score goes.
    """

    finds: Literal["boxes", "map"] = "boxes"
    boxes_output: str = ""
    scores_output: str = ""
    scores_column: int = -1
    map_output: str = ""
    corners: bool = True
    unit: Literal["pixels", "shares"] = "pixels"
    score_at_least: Share = 0.5
    overlap_at_most: Share = 0.5

    @model_validator(mode="after")
    def _boxes_or_a_map(self) -> Self:
        if self.finds == "map" and (self.boxes_output or self.scores_output):
            raise ValueError('finds = "map" has no boxes; leave boxes_output and scores_output out')
        if self.finds == "boxes" and self.map_output:
            raise ValueError('map_output is of finds = "map"; leave it out')
        if self.scores_output and not self.boxes_output:
            raise ValueError("scores_output: name boxes_output too")
        return self

    @property
    def outputs(self) -> list[str]:
        """The outputs that are asked for, in order; empty: the first one."""
        named = (self.map_output,) if self.finds == "map" else (self.boxes_output, self.scores_output)
        return [name for name in named if name]


class Found(NamedTuple):
    """How many there are, and what share of the image they cover, 0 to 1."""

    number: int
    share: float


def detected(outputs: list[Floats], detector: Detector) -> Found:
    """What the outputs of a detector say of one image; ValueError where they have not the shape that is described."""
    if detector.finds == "map":
        from scipy import ndimage  # which the package needs for this alone

        is_on = _rows(outputs[0]) >= detector.score_at_least
        if not is_on.size:
            return Found(0, 0.0)
        labelled: Any = ndimage.label(is_on)  # places that touch by a side are of one region
        return Found(int(labelled[1]), float(is_on.mean()))
    boxes = _rows(outputs[0])
    scores = _rows(outputs[1]) if detector.scores_output else boxes[:, 4:]
    if boxes.shape[1] < 4 or len(scores) != len(boxes):
        raise ValueError(f"boxes of shape {boxes.shape} and scores of shape {scores.shape}")
    try:
        column = scores[:, detector.scores_column]
    except IndexError:
        raise ValueError(f"scores of {scores.shape[1]} columns, and number {detector.scores_column} is meant") from None
    first, second = boxes[:, :2], boxes[:, 2:4]
    if not detector.corners:
        first, second = first - second / 2, first + second / 2
    height, width = detector.height_and_width if detector.unit == "pixels" else (1, 1)
    of_image = np.array([width, height, width, height], np.float32)
    corners = np.clip(np.concatenate([first, second], axis=1) / of_image, 0, 1).astype(np.float32)
    with np.errstate(invalid="ignore"):
        sides = corners[:, 2:] - corners[:, :2]
        counts = np.flatnonzero((column >= detector.score_at_least) & (sides > 0).all(axis=1))
    kept, areas = list[int](), sides.prod(axis=1)
    for box in counts[np.argsort(-column[counts], kind="stable")][:BOXES_AT_MOST].tolist():
        others = corners[kept]
        shared = np.minimum(corners[box, 2:], others[:, 2:]) - np.maximum(corners[box, :2], others[:, :2])
        both = np.clip(shared, 0, None).prod(axis=1)
        if (both / (areas[box] + areas[kept] - both) <= detector.overlap_at_most).all():
            kept.append(box)
    grid = np.zeros((_GRID, _GRID), bool)
    for left, top, right, bottom in np.rint(corners[kept] * _GRID).astype(int).tolist():
        grid[top:bottom, left:right] = True
    return Found(len(kept), float(grid.mean()))


def _rows(output: Floats) -> Floats:
    """An output as rows: what stands around the last two sides is one, of one image."""
    values = np.asarray(output, np.float32)
    if values.ndim < 2 or values.size != int(np.prod(values.shape[-2:])):
        raise ValueError(f"an output of shape {values.shape}, where rows of one image are meant")
    return values.reshape(values.shape[-2:])
