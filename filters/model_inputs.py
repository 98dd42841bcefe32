"""The input of an image model in an ONNX file, described by the TOML beside it. Pure; `pipelines` runs the models."""

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image
from pydantic import Field

from altalign.settings.common import Settings

Channels = Annotated[list[float], Field(min_length=3, max_length=3)]
Side = Annotated[int, Field(ge=1, le=4096)]


class ModelInput(Settings):
    """The input of a model: `(pixel * scale - mean) / std`, float32, one image at a time.

    Attributes:
        input_size: height and width in pixels, or one number for both; the image is resized to it and loses its shape.
        mean: mean of each channel after `scale`, in the order of `channels`.
        std: standard deviation of each channel, likewise.
        layout: nchw = (1, 3, height, width), nhwc = (1, height, width, 3).
        scale: factor of a pixel (0 to 255).
        channels: order of the channels.
        crop: whether the short side is resized, and the middle taken, so that the image keeps its shape.
        interpolation: how it is resized.
    """

    input_size: Side | Annotated[list[Side], Field(min_length=2, max_length=2)]
    mean: Channels
    std: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=3, max_length=3)]
    layout: Literal["nchw", "nhwc"]
    scale: Annotated[float, Field(gt=0)] = 1 / 255
    channels: Literal["rgb", "bgr"] = "rgb"
    crop: bool = False
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"

    @property
    def height_and_width(self) -> tuple[int, int]:
        """Height and width of the input in pixels."""
        height, width = self.input_size if isinstance(self.input_size, list) else (self.input_size, self.input_size)
        return height, width

    @property
    def short_side_px(self) -> int:
        """The short side, at least, to which an image must be decoded so that nothing is enlarged."""
        return max(self.height_and_width)


def prepare(pixels: npt.NDArray[np.uint8], model_input: ModelInput) -> npt.NDArray[np.float32]:
    """One image, uint8[height, width, 3] or gray uint8[height, width], as a batch of one in the model's layout."""
    height, width = model_input.height_and_width
    image = Image.fromarray(pixels)
    image, kernel = image.convert("RGB"), Image.Resampling[model_input.interpolation.upper()]
    if model_input.crop:  # as torchvision does: the short side first, rounded down, then the middle, rounded
        scale = max(width / image.width, height / image.height)
        sides = [max(least, int(side * scale)) for side, least in zip(image.size, (width, height), strict=True)]
        left, top = (round((side - least) / 2) for side, least in zip(sides, (width, height), strict=True))
        image = image.resize((sides[0], sides[1]), kernel).crop((left, top, left + width, top + height))
    else:
        image = image.resize((width, height), kernel)
    small = np.asarray(image)
    # float32[256, 3]: what each value of a channel becomes. To look it up takes half as long as to compute it
    becomes = np.arange(256, dtype=np.float32)[:, None] * np.float32(model_input.scale) - np.array(
        model_input.mean, np.float32
    )
    becomes /= np.array(model_input.std, np.float32)
    order = (2, 1, 0) if model_input.channels == "bgr" else (0, 1, 2)
    planes = [becomes[:, number][small[:, :, channel]] for number, channel in enumerate(order)]
    return np.stack(planes, axis=0 if model_input.layout == "nchw" else 2)[None]


class Classifier(ModelInput):
    """The TOML beside the ONNX file of a classifier of pornographic images.

    ALIGN removes such images (section 3) and names no classifier; `pipelines.images.measuring` runs one of the user's.

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
