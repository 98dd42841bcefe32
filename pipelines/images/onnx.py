"""Runs models in ONNX files: sessions of one thread, and the classifier of pornographic images."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from altalign.errors import UsageError, bring
from altalign.filters import nsfw


@dataclass(frozen=True, eq=False)
class NsfwModel:
    """A loaded classifier of pornographic images."""

    classifier: nsfw.Classifier
    session: Any  # onnxruntime.InferenceSession
    input_name: str

    def score(self, pixels: npt.NDArray[np.uint8]) -> float:
        """The score of one image (uint8[height, width, 3]), 0 to 1.

        It is scored alone: in a batch, the last bits depend on the other images.
        """
        (output, *_) = self.session.run(None, {self.input_name: nsfw.prepare(pixels, self.classifier)})
        return nsfw.score(output, self.classifier)


def load_nsfw(path: str) -> NsfwModel:
    """Load `[image.nsfw] model` and try it on a gray image.

    It is an ONNX file with a TOML of its name beside it (`altalign.filters.nsfw.Classifier`).

    Raises:
        UsageError: either file is missing or wrong, they do not fit each other, or the package onnxruntime is missing.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise UsageError(f"[image.nsfw] model = {path!r} and the package onnxruntime is missing; {bring('nsfw')}")
    if Path(path).suffix != ".onnx" or not Path(path).is_file():
        raise UsageError(
            f"[image.nsfw] model = {path!r}: no such file of the name *.onnx; give a path relative to the working "
            "directory"
        )
    classifier = nsfw.Classifier.load(Path(path).with_suffix(".toml"))
    session = load(path, f"[image.nsfw] model = {path!r}")
    model = NsfwModel(classifier, session, session.get_inputs()[0].name)
    height, width = classifier.height_and_width
    try:
        model.score(np.full((height, width, 3), 128, np.uint8))
    except IndexError:
        raise UsageError(
            f"{Path(path).with_suffix('.toml')} output_index = {classifier.output_index}: the model has fewer outputs"
        ) from None
    except errors() as error:
        raise UsageError(
            f"{path}: does not take the input that {Path(path).with_suffix('.toml')} describes: {error}"
        ) from None
    return model


def load(path: str, where: str) -> Any:
    """The model of an ONNX file.

    It runs on one thread, in one order of steps: the same image always gives the same result.

    Raises:
        UsageError: onnxruntime cannot load it; `where` is the setting that names it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.log_severity_level = 3  # errors; they come as exceptions too
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except errors() as error:
        raise UsageError(f"{where}: onnxruntime cannot load it: {error}") from None


def version() -> str:
    """What runs the graphs: another one may add up in another order."""
    import onnxruntime

    return f"onnxruntime {onnxruntime.__version__}"


def errors() -> tuple[type[Exception], ...]:
    """What onnxruntime raises: its own exceptions share no base class."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state  # pyright: ignore[reportAttributeAccessIssue] (compiled, without stubs)

    own = (getattr(state, name) for name in dir(state))
    return (*(kind for kind in own if isinstance(kind, type) and issubclass(kind, Exception)), ValueError, RuntimeError)
