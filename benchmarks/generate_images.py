"""Writes images to measure with, from a seed: WebDataset tars that `altalign curate` and the benchmarks of images read.

    python -m benchmarks.generate_images FOLDER --kind web|damaged|mixed [--images 300] [--seed 2021]

web: JPEGs of the web's size (long side 640 to 1,600, quality 85, every third progressive). damaged: 8 baseline and 8
progressive ones of them, each harmed in five ways, in a folder a way. mixed: all formats, long side 64 to 800, one in a
hundred damaged, every one with a caption that passes ALIGN's rules and a URL. A few hundred pictures a format are drawn
and encoded; the rest are these with another comment in the bytes, so that each has a SHA-256 of its own and costs what
the others cost.

Pictures are photographs where the shared data lie beside the checkout, else drawings of the demo.
"""

import argparse
import io
import itertools
import json
import struct
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
from PIL import Image, ImageOps

from altalign.demo import scenes
from altalign.demo.draw import SHADE_PX, draw, encode
from altalign.demo.scenes import random_scene

SHARED = Path(__file__).parents[2] / "shared" / "data"
PER_TAR = 10_000
# Of a hundred images; CMYK and turned JPEGs and palettes as the demo has them.
FORMS = {"jpeg": 55, "progressive": 14, "turned": 1, "cmyk": 1, "png": 7, "png8": 5, "webp": 9, "gif": 3}
FORMS |= {"avif": 3, "bmp": 1, "tiff": 1}
BASES = {"jpeg": 240, "progressive": 100}  # pictures of a form; 40 of all others
SUFFIX = {"progressive": "jpg", "turned": "jpg", "cmyk": "jpg", "jpeg": "jpg", "png8": "png"}
DAMAGES: dict[str, Callable[[bytes, Random], bytes]] = {
    "cut_50_percent": lambda data, _: data[: len(data) // 2],
    "cut_99_percent": lambda data, _: data[: len(data) * 99 // 100],
    "last_2_bytes": lambda data, _: data[:-2],
    "200_random_bytes": lambda data, rng: _overwritten(data, rng.randbytes(200), rng),
    "2000_zeros": lambda data, rng: _overwritten(data, bytes(2_000), rng),
}


def main() -> int:
    """Write the tars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=("web", "damaged", "mixed"), required=True)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--seed", type=int, default=2021)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rng = Random(arguments.seed)
    images = {"web": web, "damaged": damaged, "mixed": mixed}[arguments.kind](arguments.images, rng)
    for number in itertools.count():
        part = list(itertools.islice(images, 1))
        if not part:
            break
        with tarfile.open(
            arguments.folder / f"{arguments.kind}-{number:03}.tar", "w", format=tarfile.USTAR_FORMAT
        ) as tar:
            for name, data, caption in itertools.islice(itertools.chain(part, images), PER_TAR):
                stem = name.rpartition(".")[0]
                row = json.dumps({"url": f"https://images.example/{name}"}).encode()
                for member, content in (
                    (name, data),
                    *(((f"{stem}.txt", caption.encode()), (f"{stem}.json", row)) if caption else ()),
                ):
                    header = tarfile.TarInfo(member)
                    header.size = len(content)
                    tar.addfile(header, io.BytesIO(content))
    return 0


Image_ = tuple[str, bytes, str]  # file name, bytes, caption


def web(count: int, rng: Random) -> Iterator[Image_]:
    """JPEGs of the web's size."""
    picture = pictures(rng)
    for number in range(count):
        yield (
            f"{number:06}.jpg",
            _web_jpeg(picture(rng.randint(640, 1600)), is_progressive=number % 3 == 2),
            _caption(number, rng),
        )


def damaged(_count: int, rng: Random) -> Iterator[Image_]:
    """8 baseline and 8 progressive JPEGs, each intact and damaged in every way of `DAMAGES`."""
    picture = pictures(rng)
    sound = [
        (
            f"{'progressive' if number % 2 else 'baseline'}-{number}.jpg",
            _web_jpeg(picture(1000), is_progressive=number % 2 == 1),
        )
        for number in range(16)
    ]
    for way, harm in (("sound", lambda data, _: data), *DAMAGES.items()):
        for name, data in sound:
            yield f"{way}/{name}", harm(data, rng), ""


def mixed(count: int, rng: Random) -> Iterator[Image_]:
    """All formats and sizes, one in a hundred damaged."""
    picture = pictures(rng)
    bases = {form: [encode(picture(rng.randint(64, 800)), form) for _ in range(BASES.get(form, 40))] for form in FORMS}
    forms = rng.choices(list(FORMS), list(FORMS.values()), k=count)
    for number, form in enumerate(forms):
        data = _with_comment(rng.choice(bases[form]), SUFFIX.get(form, form), f"image {number} of seed".encode())
        if number % 100 == 99:
            data = rng.choice(list(DAMAGES.values()))(data, rng)
        yield f"{number:07}.{SUFFIX.get(form, form)}", data, _caption(number, rng)


def pictures(rng: Random) -> Callable[[int], Image.Image]:
    """A function of the long side in pixels that gives one RGB picture after the other: photographs, or drawings."""
    photographs = list(_photographs())
    if not photographs:
        sys.stderr.write(f"{SHARED}: no photographs there; drawings instead\n")

    def next_of(long_side_px: int) -> Image.Image:
        ratio = rng.uniform(0.55, 1)
        width, height = (
            (long_side_px, round(long_side_px * ratio))
            if rng.random() < 0.7
            else (round(long_side_px * ratio), long_side_px)
        )
        if not photographs:
            shrunk = min(1, SHADE_PX / long_side_px)
            return draw(random_scene(rng), round(width * shrunk), round(height * shrunk), rng).resize((width, height))
        photograph = Image.open(io.BytesIO(rng.choice(photographs))).convert("RGB")
        # A piece of it: photographs are few.
        part = rng.uniform(0.8, 1)
        box = [round(side * part) for side in photograph.size]
        left, top = (rng.randint(0, side - piece) for side, piece in zip(photograph.size, box, strict=True))
        return ImageOps.fit(
            photograph.crop((left, top, left + box[0], top + box[1])), (width, height), Image.Resampling.LANCZOS
        )

    return next_of


def _photographs() -> Iterator[bytes]:
    """The few photographs of 640 x 480 and more, and as many smaller ones, which are enlarged."""
    if not (SHARED / "near_duplicates_images.parquet").is_file():
        return
    rows = pq.read_table(SHARED / "near_duplicates_images.parquet").to_pylist()
    large = [
        row["image_bytes"]
        for row in rows
        if row["image"].endswith(".jpg") and ("base_images" in row["image"] or row["image"].endswith("_0.jpg"))
    ]
    yield from large
    if (SHARED / "clothing.parquet").is_file():
        small = (
            pq.ParquetFile(SHARED / "clothing.parquet").read_row_group(0, ["image_bytes"])["image_bytes"].to_pylist()
        )
        yield from small[:: len(small) // len(large)]


def _web_jpeg(picture: Image.Image, *, is_progressive: bool) -> bytes:
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=85, progressive=is_progressive)
    return data.getvalue()


def _caption(number: int, rng: Random) -> str:
    return f"{scenes.english(random_scene(rng), rng)}, number {number}"


def _overwritten(data: bytes, by: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data) // 3, max(len(data) // 3 + 1, len(data) - len(by)))
    return data[:at] + by + data[at + len(by) :]


def _with_comment(data: bytes, suffix: str, words: bytes) -> bytes:
    """The same image with a comment in its bytes, where its format has a place for one."""
    match suffix:
        case "jpg":
            return data[:2] + b"\xff\xfe" + struct.pack(">H", len(words) + 2) + words + data[2:]
        case "png":
            text = b"tEXtComment\0" + words
            return data[:33] + struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text)) + data[33:]
        case "gif":
            return data[:-1] + b"\x21\xfe" + bytes([len(words)]) + words + b"\0" + data[-1:]
        case "webp":
            piece = b"note" + struct.pack("<I", len(words)) + words + b"\0" * (len(words) % 2)
            return data[:4] + struct.pack("<I", len(data) - 8 + len(piece)) + data[8:] + piece
        case "avif":
            return data + struct.pack(">I", len(words) + 8) + b"free" + words
        case _:
            return data + words


if __name__ == "__main__":
    sys.exit(main())
