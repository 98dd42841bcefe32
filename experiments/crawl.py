"""A pool of pairs as a crawl has them, of which the truth is known: true pairs and each kind of noise are sources.

recipes/crawl.toml has the kinds, and where their rates are from. Pictures are larger than ALIGN's 200 px, where they
are not to be small. Clip art and photographs of clothes are those of `shared/data` beside the checkout.
"""

import io
import math
import shutil
import tomllib
from collections.abc import Callable, Iterator
from itertools import cycle, product
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image, ImageEnhance, ImageOps

from altalign.demo.draw import draw
from altalign.demo.scenes import BOILERPLATE, LANGUAGES, foreign, long_text, random_scene, rare_text, short_text
from experiments import data
from experiments.data import Pair, table
from experiments.zerovl import clip_art, clothes, drawn, jpeg

RECIPE: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("recipes").joinpath("crawl.toml").read_text(encoding="utf-8")
)
TRUE = "true"  # the source of true pairs
COPIED = "copy of a test image"
SIDE_PX = 216
TEST_SCENES = 400
CLIP_ART = ("clip art: {}", "{}, clip art", "picture of {}")  # of titles that are too short
KINDS_OF_CLOTHES = ("dress", "hat", "long-sleeved", "outerwear", "pants", "shirt", "shoes", "shorts", "skirt")
STARTS = ("a photo of", "photo of", "picture of", "a picture of", "photograph of", "image of", "snapshot of")
ENDS = ("", " in a photo collection", " as photographed", " for a wardrobe", ", clothing", ", clothes", ", in colour")
ENDS += (", something to wear", ", a piece of clothing", ", from a data set", ", one photo of many")

# Pairs ---------------------------------------------------------------------------------------------------------------


def true_pairs() -> list[Pair]:
    """All pairs to train on before any becomes noise, in a random order."""
    rng = Random("true")
    phrases = cycle(f"{start} {{}}{end}" for start, end in product(STARTS, ENDS))
    pairs = [
        *drawn(RECIPE["scenes"], name="crawl", side_px=SIDE_PX),
        *_clip_art(is_test=False),
        *((image, next(phrases).format(kind)) for image, kind in clothes("train", side_px=SIDE_PX)),
    ]
    rng.shuffle(pairs)
    return pairs


def test_pairs() -> dict[str, list[Pair]]:
    """Test scenes and clip art by set: those of which there are copies, `leaked-KIND`, and the others, `test-KIND`."""
    found: dict[str, list[Pair]] = {}
    scenes = drawn(TEST_SCENES, is_test=True, name="crawl", side_px=SIDE_PX)
    for kind, pairs in (("scenes", list(scenes)), ("clip-art", list(_clip_art(is_test=True)))):
        leaked = round(RECIPE["leaked"] * len(pairs))
        found |= {f"leaked-{kind}": pairs[:leaked], f"test-{kind}": pairs[leaked:]}
    return found


def _clip_art(*, is_test: bool) -> Iterator[Pair]:
    phrases = cycle(CLIP_ART)
    for image, title in clip_art(is_test=is_test, side_px=SIDE_PX):
        yield image, title if len(title.split()) > 2 else next(phrases).format(title)


# Noise ---------------------------------------------------------------------------------------------------------------

Change = Callable[[bytes, Random], bytes]


def _changed(change: Callable[[Image.Image, Random], Image.Image], quality: int = 90) -> Change:
    """A change of an image's bytes, by one of its picture."""

    def changed(image: bytes, rng: Random) -> bytes:
        with Image.open(io.BytesIO(image)) as picture:
            return jpeg(change(picture, rng), quality)

    return changed


def _recoloured(picture: Image.Image, rng: Random) -> Image.Image:
    return ImageEnhance.Brightness(ImageEnhance.Color(picture).enhance(rng.uniform(0.5, 0.8))).enhance(1.15)


def _cropped(picture: Image.Image, rng: Random) -> Image.Image:
    return ImageOps.crop(picture, round(rng.uniform(0.01, 0.03) * picture.width)).resize(picture.size)


def _small(picture: Image.Image, rng: Random) -> Image.Image:
    side = round(math.exp(rng.uniform(math.log(24), math.log(200))))
    return picture.resize((side, side))


def _elongated(picture: Image.Image, rng: Random) -> Image.Image:
    return ImageOps.pad(picture, (round(rng.uniform(3.1, 5) * picture.height), picture.height), color="white")


COPIES = {  # the ways in which an image comes again
    "recoded": _changed(lambda picture, _: picture, quality=40),
    "resized": _changed(lambda picture, rng: picture.resize([round(rng.uniform(1.1, 1.6) * SIDE_PX)] * 2)),
    "recoloured": _changed(_recoloured),
    "cropped": _changed(_cropped),
    "mirrored": _changed(lambda picture, _: ImageOps.mirror(picture)),
    "letterboxed": _changed(lambda picture, _: ImageOps.pad(picture, (288, 216), color="black")),
}
_SMALL, _ELONGATED = _changed(_small), _changed(_elongated)

# Of a kind: the pair that becomes of an image, its caption and that of another.
NOISE: dict[str, Callable[[bytes, str, str, Random], Pair]] = {
    "wrong caption": lambda image, _caption, other, _rng: (image, other),
    "boilerplate": lambda image, _caption, _other, rng: (image, rng.choice(BOILERPLATE)),
    "repeated caption": lambda image, _caption, other, _rng: (image, other),  # the others are few
    "file name": lambda image, _caption, _other, rng: (image, f"upload_{rng.randint(10**4, 10**6)}-1024x768.jpg"),
    "too short": lambda image, _caption, _other, rng: (image, short_text(rng)),
    "too long": lambda image, caption, other, rng: (image, long_text(lambda: rng.choice((caption, other)))),
    "random tokens": lambda image, caption, _other, rng: (image, rare_text(caption, rng)),
    "small picture": lambda image, caption, _other, rng: (_SMALL(image, rng), caption),
    "elongated picture": lambda image, caption, _other, rng: (_ELONGATED(image, rng), caption),
}


def noisy(pairs: list[Pair]) -> dict[str, list[Pair]]:
    """The pool by source, of these pairs: noise takes its images from the first ones, the others stay true."""
    counts = noise_counts()
    sources: dict[str, list[Pair]] = {}
    rest = iter(pairs)
    captions = [caption for _, caption in pairs]
    for kind, become in NOISE.items():
        rng = Random(kind)
        others = rng.sample(captions, max(1, counts[kind] // 25)) if kind == "repeated caption" else captions
        own = [next(rest) for _ in range(counts[kind])]
        sources[kind] = [become(image, caption, _of_another(caption, others, rng), rng) for image, caption in own]
    true, rng = list(rest), Random("copies")
    of_many = next(iter(sources["wrong caption"]))[0]
    distinct = sorted({caption.lower() for caption in captions})
    tests = [pair for name, of in test_pairs().items() if name.startswith("leaked") for pair in of]
    return {
        TRUE: true,
        **sources,
        "too many texts": [(of_many, caption) for caption in rng.sample(distinct, counts["too many texts"])],
        COPIED: [copy(pair, rng) for pair in rng.sample(tests, min(counts[COPIED], len(tests)))],
        "repeated pair": rng.sample(true, counts["repeated pair"]),
        "near copy": [copy(pair, rng) for pair in rng.sample(true, counts["near copy"])],
        "other language": [_foreign(rng) for _ in range(counts["other language"])],
    }


def _of_another(caption: str, others: list[str], rng: Random) -> str:
    """A caption of the others that is not true here as well, as one of clothes may be."""
    while True:
        other = rng.choice(others)
        if other != caption and not any(kind in caption and kind in other for kind in KINDS_OF_CLOTHES):
            return other


def noise_counts() -> dict[str, int]:
    """The pairs of each kind."""
    kinds, whole = RECIPE["kinds"], sum(kind.get("rate", 0) for kind in RECIPE["kinds"].values())
    return {
        name: kind.get("pairs") or round(data.scale * RECIPE["noise"] * kind["rate"] / whole)
        for name, kind in kinds.items()
    }


def copy(pair: Pair, rng: Random, how: str = "") -> Pair:
    """The pair with its image changed in a way, a random one where none is named."""
    return COPIES[how or rng.choice(list(COPIES))](pair[0], rng), pair[1]


def _foreign(rng: Random) -> Pair:
    scene = random_scene(rng, common=True)
    return jpeg(draw(scene, SIDE_PX, SIDE_PX, rng)), foreign(scene, rng.choice(LANGUAGES), rng)


# Tables --------------------------------------------------------------------------------------------------------------


def tables(sets: Path) -> Path:
    """The folder of tables of all inputs, beside that of sets; made once.

    It has SOURCE.parquet, `copies/WAY.parquet` and `tests/SET.parquet`.

    Raises:
        Absent: the tables of `shared/data` are not there.
    """
    place = sets.parent / "crawl"
    if place.is_dir():
        return place
    partial = place.with_name("crawl.partial")
    shutil.rmtree(partial, ignore_errors=True)
    of_tests, rng = test_pairs(), Random("leaked")
    leaked = [pair for name, of in of_tests.items() if name.startswith("leaked") for pair in of]
    written = {
        **noisy(true_pairs()),
        **{f"tests/{name}": of for name, of in of_tests.items()},
        "tests/test-clothes": list(clothes("test", side_px=SIDE_PX)),
        **{f"copies/{how}": [copy(pair, rng, how) for pair in leaked] for how in COPIES},
    }
    for name, pairs in written.items():
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        table(partial / f"{name}.parquet", pairs)
    partial.rename(place)
    return place
