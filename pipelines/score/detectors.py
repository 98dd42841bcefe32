"""Detectors in ONNX files, of faces or boxes of text: an image at a time, on one thread."""

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from altalign.errors import UsageError
from altalign.filters import detections
from altalign.filters.detections import Detector, Found
from altalign.models import onnx

Pixels = npt.NDArray[np.uint8]  # uint8[height, width, 3]
Find = Callable[[Pixels], Found | None]


def load(path: str, where: str) -> tuple[Find, str]:
    """What finds things on an image, None where the model refuses it; and the digest of all that it rests on.

    Raises:
        UsageError: the file, its TOML or a package is missing, or they do not fit each other.
    """
    graph = onnx.image_graph(path, f'{where} = "{path}"', Detector)
    outputs = graph.outputs()
    if unknown := next((name for name in graph.input.outputs if name not in outputs), None):
        raise UsageError(f"{graph.toml}: the model has no output {unknown}, it has {', '.join(outputs)}")

    def find(pixels: Pixels) -> Found:
        return detections.detected(graph.run(graph.prepare(pixels), graph.input.outputs or outputs[:1]), graph.input)

    def find_or_none(pixels: Pixels) -> Found | None:
        with suppress(*onnx.errors()):
            return find(pixels)
        return None

    graph.tried(find)
    return find_or_none, graph.digest
