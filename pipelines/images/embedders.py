"""What turns a decoded image into a vector, by the name that `[decontaminate] embedder` gives it.

One image at a time: what a model says of an image depends, in its last bits, on what else is in its batch, and so would
the result on which images came together. A flat image, one without structure, has no vector: it resembles all others
that are as empty.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from altalign.dedup import embed
from altalign.errors import AltalignError, UsageError
from altalign.filters import pixels
from altalign.filters.thumbnails import thumbnail
from altalign.models import model

Pixels = npt.NDArray[np.uint8]
Vector = npt.NDArray[np.int16]

PHASH_BITS = 64
SHORT_SIDE_PX = 128  # twice the thumbnail of the descriptors and more: `pixels.decode` has the figures


@dataclass(frozen=True, eq=False)
class Embedder:
    """A descriptor of images: `of_image` takes pixels of one that is not flat, and its thumbnail (uint8[32, 32]).

    Pixels are uint8 of shape (height, width), or (height, width, 3) as RGB, upright and on white. Of `dct` the result
    is coefficients, which a map makes vectors of; of all others, vectors as they are compared.
    """

    name: str  # as the setting has it
    dimensions: int  # of the result, int16[dimensions]
    of_image: Callable[[Pixels, Pixels], Vector]
    is_mapped: bool = False  # whether a map is to be learned, or brought by a calibration
    colour: bool = False  # whether it needs RGB
    short_side_px: int = SHORT_SIDE_PX  # what an image is decoded to at least

    def features(self, image: Pixels) -> Vector | None:
        """int16[dimensions] of an image; None where it is flat."""
        small = thumbnail(pixels.gray(image))
        return None if embed.is_flat(small) else self.of_image(image, small)


def load(name: str) -> Embedder:
    """The embedder of a setting. `measuring.hooks_of` keeps it for as long as its files are the same."""
    if name == "dct":

        def coefficients(_image: Pixels, small: Pixels) -> Vector:
            return embed.dct_coefficients(small[np.newaxis])[0][0]

        return Embedder(name, embed.COEFFICIENTS, coefficients, is_mapped=True)
    if name != "phash":
        return _of_model(name)
    import imagehash  # and with it SciPy, which other embedders need not wait for

    def of_image(image: Pixels, _small: Pixels) -> Vector:
        """The bits of imagehash as +1 and -1: the cosine of two is 1 - d / 32 if d bits differ."""
        bits = imagehash.phash(Image.fromarray(pixels.gray(image))).hash
        return np.where(bits.ravel(), 1, -1).astype(np.int16)

    return Embedder(name, PHASH_BITS, of_image)


def _of_model(name: str) -> Embedder:
    """A model sees one image at a time, on one thread: its vector does not depend on what else the machine does."""
    setting = "[decontaminate] embedder"
    encoder = model.opened(name, setting, with_texts=False)
    try:
        embed.quantized(np.zeros((1, encoder.dimensions)))
    except ValueError as error:
        raise UsageError(f'{setting} = "{name}": {error}') from None

    def of_image(image: Pixels, _small: Pixels) -> Vector:
        try:
            return embed.quantized(encoder.images([encoder.prepare(image)]))[0]
        except ValueError as error:
            what = f"what the model makes of an image cannot be compared: {error}"
            raise AltalignError(f'{setting} = "{name}": {what}') from None

    return Embedder(name, encoder.dimensions, of_image, colour=True, short_side_px=encoder.short_side_px)
