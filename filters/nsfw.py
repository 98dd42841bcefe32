"""What a classifier of pornographic images wants to see, and how its answer is read. Pure; `pipelines.models` runs it.

ALIGN removes pornographic images (section 3) and names no classifier; here it is an ONNX file with a TOML beside it.
"""

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image
from pydantic import Field

from altalign.settings import Settings

Channels = Annotated[list[float], Field(min_length=3, max_length=3)]
Side = Annotated[int, Field(ge=1, le=4096)]


class Classifier(Settings):
    """The TOML beside an ONNX file: its input is `(pixel * scale - mean) / std`, float32, one image at a time.

    Attributes:
        input_size: height and width in pixels, or one number for both; the image is squeezed into it, whatever its shape.
        mean: of each channel, in the order of `channels`, after `scale`.
        std: the same.
        layout: nchw = (1, 3, height, width), nhwc = (1, height, width, 3).
        output_index: which number of the first output is the score.
        scale: what a pixel (0 to 255) is multiplied by.
        channels: order of the channels.
        activation: what turns the output into a probability: softmax over its numbers, sigmoid of one, or none where the model has it.
    """

    input_size: Side | Annotated[list[Side], Field(min_length=2, max_length=2)]
    mean: Channels
    std: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=3, max_length=3)]
    layout: Literal["nchw", "nhwc"]
    output_index: Annotated[int, Field(ge=0)]
    scale: Annotated[float, Field(gt=0)] = 1 / 255
    channels: Literal["rgb", "bgr"] = "rgb"
    activation: Literal["none", "sigmoid", "softmax"] = "none"

    @property
    def height_and_width(self) -> tuple[int, int]:
        """Of the input, in pixels."""
        height, width = self.input_size if isinstance(self.input_size, list) else (self.input_size, self.input_size)
        return height, width

    @property
    def short_side_px(self) -> int:
        """What an image has to be decoded to at least, for nothing to be enlarged."""
        return max(self.height_and_width)


def prepare(pixels: npt.NDArray[np.uint8], classifier: Classifier) -> npt.NDArray[np.float32]:
    """One image, uint8 of shape (height, width, 3) or gray, as a batch of one in the classifier's layout."""
    height, width = classifier.height_and_width
    image = Image.fromarray(pixels).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    values = np.asarray(image)[:, :, :: -1 if classifier.channels == "bgr" else 1].astype(np.float32)
    values = (values * np.float32(classifier.scale) - np.array(classifier.mean, np.float32)) / np.array(classifier.std, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1) if classifier.layout == "nchw" else values)[None]


def score(output: npt.NDArray[np.floating], classifier: Classifier) -> float:
    """The score, 0 to 1, in a classifier's output for one image (any shape).

    Rounded to four decimals: what differs between processors lies far below, and so their verdicts agree.
    """
    numbers = np.asarray(output, np.float64).ravel()
    if classifier.activation == "softmax":
        powers = np.exp(numbers - numbers.max())
        numbers = powers / powers.sum()
    number = numbers[classifier.output_index]
    if classifier.activation == "sigmoid":
        number = 0.5 * (1 + np.tanh(0.5 * number))  # the same function, without overflow
    return round(float(number), 4)
