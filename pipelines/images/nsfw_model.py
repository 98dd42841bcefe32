"""The classifier of pornographic images in an ONNX file."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from altalign.errors import UsageError
from altalign.filters import model_inputs
from altalign.models import onnx


@dataclass(frozen=True, eq=False)
class NsfwModel:
    """A loaded classifier."""

    graph: onnx.ImageGraph[model_inputs.Classifier]

    @property
    def classifier(self) -> model_inputs.Classifier:
        """The TOML beside the file."""
        return self.graph.input

    def score(self, pixels: npt.NDArray[np.uint8]) -> float:
        """The score of one image (uint8[height, width, 3]), 0 to 1.

        It is scored alone: in a batch, the last bits depend on the other images.
        """
        (output, *_) = self.graph.run(self.graph.prepare(pixels))
        return model_inputs.score(output, self.classifier)


def load(path: str) -> NsfwModel:
    """Load `[image.nsfw] model` and try it on a gray image.

    It is an ONNX file with a TOML of its name beside it (`altalign.filters.model_inputs.Classifier`).

    Raises:
        UsageError: either file is missing or wrong, they do not fit each other, or the package onnxruntime is missing.
    """
    model = NsfwModel(onnx.image_graph(path, f"[image.nsfw] model = {path!r}", model_inputs.Classifier, extra="nsfw"))
    try:
        model.graph.tried(model.score)
    except IndexError:
        wrong = f"output_index = {model.classifier.output_index}: the model has fewer outputs"
        raise UsageError(f"{model.graph.toml} {wrong}") from None
    return model
