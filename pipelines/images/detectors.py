"""Detectors in ONNX files, of faces or boxes of text: an image at a time, on one thread."""

import hashlib
import importlib.util
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from altalign.errors import UsageError, bring
from altalign.filters import detections
from altalign.filters.detections import Detector, Found
from altalign.filters.model_inputs import prepare
from altalign.pipelines.images import onnx

Pixels = npt.NDArray[np.uint8]  # uint8[height, width, 3]
Find = Callable[[Pixels], Found | None]


def load(path: str, where: str) -> tuple[Find, str]:
    """What finds things on an image, None where the model refuses it; and the digest of all that it rests on.

    Raises:
        UsageError: the file, its TOML or a package is missing, or they do not fit each other.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise UsageError(f'{where} = "{path}": the package onnxruntime is missing; {bring("onnx")}')
    if Path(path).suffix != ".onnx" or not Path(path).is_file():
        said = "no such file of the name *.onnx; give a path relative to the working directory"
        raise UsageError(f'{where} = "{path}": {said}')
    settings = Path(path).with_suffix(".toml")
    wanted = Detector.load(settings)
    session = onnx.load(path, f'{where} = "{path}"')
    given, outputs = session.get_inputs()[0].name, [output.name for output in session.get_outputs()]
    if unknown := next((name for name in wanted.outputs if name not in outputs), None):
        raise UsageError(f"{settings}: the model has no output {unknown}, it has {', '.join(outputs)}")

    def find(pixels: Pixels) -> Found:
        return detections.found(session.run(wanted.outputs or outputs[:1], {given: prepare(pixels, wanted)}), wanted)

    def found(pixels: Pixels) -> Found | None:
        with suppress(*onnx.errors()):
            return find(pixels)
        return None

    try:
        find(np.full((*wanted.height_and_width, 3), 128, np.uint8))
    except onnx.errors() as error:
        said = " ".join(str(error).split())
        raise UsageError(f"{path}: does not do what {settings} describes ({said:.160})") from None
    parts = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (Path(path), settings)]
    return found, hashlib.sha256(json.dumps([*parts, onnx.version()]).encode()).hexdigest()
