"""Copies of an image as the web makes them: recoded, resized, cropped, recoloured, written on, framed, turned.

The descriptor's map is learned from these copies, and recall is counted on them by the transform's name. The web makes
more kinds than these. A map finds little of what it was not shown, so a kind removed from the list is no longer found.
All randomness comes from the pixels and the transform's name, so an image has the same copies in every run.
"""

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont

Pixels = npt.NDArray[np.uint8]
Random = np.random.Generator
Transform = Callable[[Image.Image, Random], Image.Image]

BLACK, WHITE = (0, 0, 0), (255, 255, 255)
WORDS = ("shop", "stock", "photo", "free", "gallery", "pictures", "sale", "best", "image", "online")


def copies_of(pixels: Pixels) -> Iterator[tuple[str, Pixels]]:
    """Yields the name of each transform and the copy that it makes of an RGB image, uint8[height, width, 3].

    A short side of 256 px is as good as a longer one for a descriptor of 32 x 32, and costs less.
    """
    image = Image.fromarray(pixels)
    for name, transform in TRANSFORMS.items():
        digest = hashlib.blake2b(f"{name} {pixels.shape} ".encode() + pixels.tobytes(), digest_size=16).digest()
        yield name, np.asarray(transform(image, np.random.default_rng(int.from_bytes(digest, "little"))))


def _recoded(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def _scaled(image: Image.Image, x: float, y: float) -> Image.Image:
    size = max(1, round(image.width * x)), max(1, round(image.height * y))
    return image.resize(size, Image.Resampling.BICUBIC)


def _shrunk(image: Image.Image, long_side_px: int) -> Image.Image:
    factor = min(1.0, long_side_px / max(image.size))
    return _scaled(image, factor, factor)


def _cropped(image: Image.Image, random: Random, share: float) -> Image.Image:
    """The image without this share of its width and of its height, cut off at two or four sides."""
    width, height = (max(1, round(side * (1 - share))) for side in image.size)
    left, top = int(random.integers(image.width - width + 1)), int(random.integers(image.height - height + 1))
    return image.crop((left, top, left + width, top + height))


def _written_on(image: Image.Image, random: Random) -> Image.Image:
    """A line of text in one of the image's quarters, white with a black edge."""
    written = image.copy()
    size = max(6, min(image.size) // 10)
    place = int(random.integers(max(1, image.width // 2))), int(random.integers(max(1, image.height - size)))
    text, font, edge = _words(random, 2), ImageFont.load_default(size), max(1, size // 12)
    ImageDraw.Draw(written).text(place, text, WHITE, font, stroke_width=edge, stroke_fill=BLACK)
    return written


def _captioned(image: Image.Image, random: Random) -> Image.Image:
    """The image with a black bar and text over its lowest tenth."""
    written, height = image.copy(), max(1, image.height // 10)
    top, font = image.height - height, ImageFont.load_default(max(6, height * 2 // 3))
    draw = ImageDraw.Draw(written)
    draw.rectangle((0, top, image.width, image.height), BLACK)
    draw.text((height // 2, top), _words(random, 4), WHITE, font)
    return written


def _watermarked(image: Image.Image, random: Random) -> Image.Image:
    """The image with translucent words across the middle, as wide as the image."""
    mask, text = Image.new("L", image.size, 0), _words(random, 2)
    font = ImageFont.load_default(max(6, 2 * image.width // len(text)))
    ImageDraw.Draw(mask).text((image.width // 2, image.height // 2), text, 115, font, anchor="mm")
    return Image.composite(Image.new("RGB", image.size, WHITE), image, mask)


def _words(random: Random, count: int) -> str:
    return " ".join(WORDS[i] for i in random.integers(len(WORDS), size=count))


def _framed(image: Image.Image, x: float, y: float, colour: tuple[int, int, int]) -> Image.Image:
    """The image on a larger ground: wider by the share x on the left and right each, higher by y above and below."""
    left, top = round(image.width * x), round(image.height * y)
    ground = Image.new("RGB", (image.width + 2 * left, image.height + 2 * top), colour)
    ground.paste(image, (left, top))
    return ground


def _turned(image: Image.Image, random: Random, degrees: float) -> Image.Image:
    """The image turned to the left or to the right in the same frame, with white corners."""
    return image.rotate(degrees if random.integers(2) else -degrees, Image.Resampling.BICUBIC, fillcolor=WHITE)


def _noisy(image: Image.Image, random: Random) -> Image.Image:
    noise = np.rint(random.normal(0.0, 12.0, (image.height, image.width, 3)))
    return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))


def _mixed(image: Image.Image, random: Random) -> Image.Image:
    """The image after what happens to pictures that are passed on: cropped, brightened, written on, shrunk, recoded."""
    image = ImageEnhance.Brightness(_cropped(image, random, 0.03)).enhance(1.1)
    return _recoded(_scaled(_written_on(image, random), 0.7, 0.7), 40)


TRANSFORMS: Mapping[str, Transform] = {
    "jpeg 75": lambda image, _: _recoded(image, 75),
    "jpeg 30": lambda image, _: _recoded(image, 30),
    "jpeg 10": lambda image, _: _recoded(image, 10),
    "half the size": lambda image, _: _scaled(image, 0.5, 0.5),
    "64 px": lambda image, _: _shrunk(image, 64),
    "crop 2 %": lambda image, random: _cropped(image, random, 0.02),
    "crop 5 %": lambda image, random: _cropped(image, random, 0.05),
    "crop 10 %": lambda image, random: _cropped(image, random, 0.10),
    "crop 20 %": lambda image, random: _cropped(image, random, 0.20),
    "width x 0.85": lambda image, _: _scaled(image, 0.85, 1.0),
    "width x 1.2": lambda image, _: _scaled(image, 1.2, 1.0),
    "brightness -20 %": lambda image, _: ImageEnhance.Brightness(image).enhance(0.8),
    "brightness +20 %": lambda image, _: ImageEnhance.Brightness(image).enhance(1.2),
    "contrast x 0.7": lambda image, _: ImageEnhance.Contrast(image).enhance(0.7),
    "contrast x 1.3": lambda image, _: ImageEnhance.Contrast(image).enhance(1.3),
    "grey": lambda image, _: ImageEnhance.Color(image).enhance(0.0),
    "saturation x 1.6": lambda image, _: ImageEnhance.Color(image).enhance(1.6),
    "text": _written_on,
    "caption bar": _captioned,
    "watermark": _watermarked,
    "white border 5 %": lambda image, _: _framed(image, 0.05, 0.05, WHITE),
    "black border 5 %": lambda image, _: _framed(image, 0.05, 0.05, BLACK),
    "letterbox 10 %": lambda image, _: _framed(image, 0.0, 0.10, BLACK),
    "turn 3 degrees": lambda image, random: _turned(image, random, 3.0),
    "blur": lambda image, _: image.filter(ImageFilter.GaussianBlur(min(image.size) / 100)),
    "noise": _noisy,
    "sharpen": lambda image, _: image.filter(ImageFilter.UnsharpMask(radius=2, percent=150, threshold=0)),
    "mix": _mixed,
}
