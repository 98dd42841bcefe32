"""Models in ONNX files: sessions of one thread, and files whose input of images a TOML of their name describes."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from altalign.errors import UsageError, check_package, one_line
from altalign.filters.model_inputs import ModelInput, prepare

Input = TypeVar("Input", bound=ModelInput)
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class ImageGraph(Generic[Input]):
    """An ONNX file that takes images, and what the TOML beside it says of them."""

    path: Path
    toml: Path  # beside it
    input: Input
    session: Any  # onnxruntime.InferenceSession

    @property
    def digest(self) -> str:
        """Of both files and of onnxruntime, on which results rest."""
        return digest([self.path, self.toml])

    def outputs(self) -> list[str]:
        """The names of the outputs."""
        return [output.name for output in self.session.get_outputs()]

    def prepare(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """The input of an image (uint8[height, width, 3], or gray), a batch of one."""
        return prepare(pixels, self.input)

    def run(self, prepared: npt.NDArray[np.float32], outputs: list[str] | None = None) -> list[npt.NDArray[Any]]:
        """The outputs of these names (None: all) for prepared images."""
        return self.session.run(outputs, {self.session.get_inputs()[0].name: prepared})

    def tried(self, function: Callable[[npt.NDArray[np.uint8]], Result]) -> Result:
        """What a function makes of a gray image of the input's size.

        Raises UsageError: the graph does not take its input.
        """
        try:
            return function(np.full((*self.input.height_and_width, 3), 128, np.uint8))
        except errors() as error:
            why = f"does not take the input that {self.toml} describes: {one_line(error)}"
            raise UsageError(f"{self.path}: {why}") from None


def image_graph(path: str, where: str, settings: type[Input], *, extra: str = "onnx") -> ImageGraph[Input]:
    """Open an ONNX file, which the setting `where` names, and the TOML of its name; `extra` brings onnxruntime.

    Raises UsageError: a file or the package is missing, or a file is not what it should be.
    """
    check_package("onnxruntime", where, extra=extra)
    if Path(path).suffix != ".onnx" or not Path(path).is_file():
        raise UsageError(f"{where}: no such file of the name *.onnx; give a path relative to the working directory")
    toml = Path(path).with_suffix(".toml")
    return ImageGraph(Path(path), toml, settings.load(toml), load(path, where))


def load(path: str, where: str) -> Any:
    """The session of an ONNX file. It computes on one thread, in one order of steps: the same input, the same output.

    Raises UsageError: onnxruntime cannot load it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.log_severity_level = 3  # errors; they come as exceptions too
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except errors() as error:
        raise UsageError(f"{where}: onnxruntime cannot load it: {error}") from None


def digest(files: list[Path], *more: object) -> str:
    """Of files, of onnxruntime, which may add up in another order in another version, and of more, as JSON has it."""
    import onnxruntime

    parts = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    return hashlib.sha256(json.dumps([*parts, *more, f"onnxruntime {onnxruntime.__version__}"]).encode()).hexdigest()


def errors() -> tuple[type[Exception], ...]:
    """What onnxruntime raises: its own exceptions share no base class."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state  # pyright: ignore[reportAttributeAccessIssue] (compiled, without stubs)

    own = (getattr(state, name) for name in dir(state))
    return (*(kind for kind in own if isinstance(kind, type) and issubclass(kind, Exception)), ValueError, RuntimeError)
