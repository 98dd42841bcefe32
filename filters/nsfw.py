"""The input of a classifier of pornographic images, and the score in its output: pure.

`pipelines.images.measuring` runs it. ALIGN removes pornographic images (section 3) and names no classifier; here it is
an ONNX file with a TOML beside it.
"""

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from altalign.filters.model_inputs import ModelInput
from altalign.filters.model_inputs import prepare as prepare


class Classifier(ModelInput):
    """The TOML beside an ONNX file.

    Attributes:
        output_index: index of the score in the first output.
        activation: turns the output into a probability: softmax over all numbers, sigmoid of one, or none where the
            model includes it.
    """

    output_index: Annotated[int, Field(ge=0)]
    activation: Literal["none", "sigmoid", "softmax"] = "none"


def score(output: npt.NDArray[np.floating], classifier: Classifier) -> float:
    """The score, 0 to 1, in a classifier's output for one image (any shape).

    It is rounded to four decimals. Differences between processors are far smaller, so their verdicts agree.
    """
    numbers = np.asarray(output, np.float64).ravel()
    if classifier.activation == "softmax":
        powers = np.exp(numbers - numbers.max())
        numbers = powers / powers.sum()
    number = numbers[classifier.output_index]
    if classifier.activation == "sigmoid":
        number = 0.5 * (1 + np.tanh(0.5 * number))  # the same function, without overflow
    return round(float(number), 4)
