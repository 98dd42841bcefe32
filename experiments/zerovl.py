"""What the experiment on ZeroVL trains on, and the two wrong ways to a gradient that it compares with.

Sets of the demo are drawn here. That of clip art and clothing needs the tables of `shared/data` beside the checkout.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from random import Random
from statistics import median

import pyarrow.parquet as pq
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor
from torch.nn.functional import cross_entropy

from altalign.demo.draw import draw
from altalign.demo.scenes import english, random_scene
from altalign.pipelines.near import shard_images
from altalign.train.step import accumulation, learner
from altalign.train.step.global_batch import Group, global_batch
from experiments import data
from experiments.data import Absent, Pair, set_of

SHARED = Path(__file__).parents[2] / "shared" / "data"
SIDE_PX = 60
FRAME_PX, FRAME = 5, (230, 20, 30)
Style = tuple[int, Callable[[Image.Image], Image.Image], str]


def _night(image: Image.Image) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(0.4)


def _sketch(image: Image.Image) -> Image.Image:
    return ImageOps.autocontrast(image.filter(ImageFilter.CONTOUR))


def _poster(image: Image.Image) -> Image.Image:
    return ImageOps.posterize(ImageEnhance.Color(image).enhance(1.6), 2)


# Of a style: pairs to train on, what becomes of the picture, and what captions say of it. Sizes differ, as those of
# ZeroVL's sources do.
STYLES: dict[str, Style] = {
    "plain": (2_000, lambda image: image, "{}"),
    "night": (1_000, _night, "{}, at night"),
    "sketch": (600, _sketch, "sketch of {}"),
    "poster": (400, _poster, "poster: {}"),
}
TEST_IMAGES = 250
CLOTHES = {"longsleeve": "long-sleeved top", "outwear": "outerwear"}  # the others are named as in the table
PROBE = """features = "before projection"
train = "{at}/train.parquet"
validation = "{at}/validation.parquet"
"""


# Pairs ---------------------------------------------------------------------------------------------------------------


def drawn(
    count: int, style: str = "plain", *, is_test: bool = False, name: str = "", side_px: int = SIDE_PX
) -> Iterator[Pair]:
    """Scenes in a style, and captions that are true of them; each caption once, where they are a test.

    Those of another `name` are others.
    """
    rng, seen = Random(f"{style} {is_test}{name}"), set[str]()
    _, changed, phrase = STYLES[style]
    count *= 1 if is_test else data.scale
    while count:
        scene = random_scene(rng)
        caption = phrase.format(english(scene, rng))
        drawn_px = max(3 * SIDE_PX, side_px)
        picture = draw(scene, drawn_px, drawn_px, rng)
        if is_test and caption in seen:
            continue
        seen.add(caption)
        count -= 1
        yield jpeg(changed(picture.resize((side_px, side_px)))), caption


def framed() -> dict[str, list[Pair]]:
    """The plain pairs, cut in two by the length of captions; images of long ones get a red frame (ZeroVL, A.5)."""
    pairs = list(drawn(4_000))
    middle = median(len(caption) for _, caption in pairs)
    short = [pair for pair in pairs if len(pair[1]) <= middle]
    long = [(_with_frame(image), caption) for image, caption in pairs if len(caption) > middle]
    return {"short": short, "long": long}


def clip_art(*, is_test: bool, side_px: int = SIDE_PX) -> Iterator[Pair]:
    """Clip art with the titles that its authors gave it; a test has the images whose bytes come first, by their hash.

    Raises:
        Absent: the table is not there.
    """
    table = pq.read_table(_shared("openclipart.parquet"), columns=["text", "train", "image_bytes"])
    seen: set[object] = set()
    for row in table.to_pylist():
        image, text = row["image_bytes"], row["text"]
        if row["train"] and image not in seen and (Random(image).random() < 0.1) == is_test:
            if not (is_test and text in seen):
                yield resized(image, side_px), text
            seen |= {image, text}


def clothing() -> Iterator[Pair]:
    """Photographs of clothes; a caption names the kind, for the table has no other.

    Raises:
        Absent: the table is not there.
    """
    return ((image, f"a photo of {kind}") for image, kind in clothes("train"))


def clothes(split: str, *, side_px: int = SIDE_PX) -> Iterator[Pair]:
    """Photographs of clothes of a split, and their kinds.

    Raises:
        Absent: the table is not there.
    """
    for row in pq.read_table(_shared("clothing.parquet"), columns=["label", "split", "image_bytes"]).to_pylist():
        if row["split"] == split:
            yield resized(row["image_bytes"], side_px), str(CLOTHES.get(row["label"], row["label"]))


def _shared(name: str) -> Path:
    if not (SHARED / name).is_file():
        raise Absent(f"{name} is not in shared/data beside the checkout")
    return SHARED / name


def _with_frame(image: bytes) -> bytes:
    with Image.open(io.BytesIO(image)) as picture:
        return jpeg(ImageOps.expand(ImageOps.crop(picture, FRAME_PX), FRAME_PX, FRAME))


def resized(image: bytes, side_px: int) -> bytes:
    """A JPEG, square."""
    with Image.open(io.BytesIO(image)) as picture:
        return jpeg(picture.convert("RGB").resize((side_px, side_px)))


def jpeg(picture: Image.Image, quality: int = 90) -> bytes:
    """The bytes of a picture."""
    encoded = io.BytesIO()
    picture.save(encoded, "JPEG", quality=quality)
    return encoded.getvalue()


# Sets ----------------------------------------------------------------------------------------------------------------


def _clustered(folder: Path) -> None:
    """The plain pairs, with clusters of their images beside them (A.6)."""
    SETS["plain"](folder)
    shard_images.cluster(str(folder), k=8, embedder="dct")


def clothes_set(folder: Path, *, task: str, more: str) -> None:
    """Photographs of clothes and their kinds by split, a third of those to train on, and a file that measures them."""
    for split, every in (("train", 3), ("validation", 1), ("test", 1)):
        data.table(folder / f"{split}.parquet", sorted(clothes(split), key=itemgetter(1))[::every])
    at = f"data/{folder.name.removesuffix('.partial')}"
    said = f'[[set]]\nname = "clothes"\ntask = "{task}"\npath = "{at}/test.parquet"\nlabel_column = "caption"\n'
    (folder / "sets.toml").write_text(said + more.format(at=at), encoding="utf-8")


SETS: dict[str, Callable[[Path], None]] = {
    "plain": set_of(lambda: {"plain": drawn(4_000)}),
    "clustered": _clustered,
    "framed": set_of(lambda: dict(framed())),
    "styles": set_of(lambda: {style: drawn(size, style) for style, (size, _, _) in STYLES.items()}),
    "real": set_of(lambda: {"clip art": clip_art(is_test=False), "clothing": clothing(), "plain": drawn(2_000)}),
    "night-scenes": set_of(lambda: {"night": drawn(1_000, "night", name="fine-tuning")}),
    "clothes": partial(clothes_set, task="linear_probe", more=PROBE),
    "test-clip-art": set_of(lambda: {"clip art": clip_art(is_test=True)}),
    **{
        f"test-{style}": set_of(lambda style=style: {style: drawn(TEST_IMAGES, style, is_test=True)})
        for style in STYLES
    },
}


# Variants ------------------------------------------------------------------------------------------------------------


@contextmanager
def detached() -> Iterator[None]:
    """The loss with embeddings of other ranks that have no gradient: what a gather without autograd comes to."""
    with _replaced(learner, "contrastive_loss", detached_loss):
        yield


@contextmanager
def other_seeds() -> Iterator[None]:
    """Accumulation whose second pass draws other dropout than the first."""
    of_chunk, calls = accumulation.chunk_seed, iter(range(2**62))
    with _replaced(accumulation, "chunk_seed", lambda seed, step, place: of_chunk(seed, step, place) ^ next(calls)):
        yield


VARIANTS = {"detached": detached, "other_seeds": other_seeds}


def detached_loss(images: Tensor, texts: Tensor, temperature: Tensor, *, group: Group = None, **_: object) -> Tensor:
    """This rank's part of the mean loss, as `contrastive_loss`; what other ranks hold are constants.

    Images and texts are (n, d), of length 1. Other arguments are those of a loss without smoothing or mixup.
    """
    whole = global_batch(len(images), images.device, group)
    of_all = (whole.gathered(images.detach()), whole.gathered(texts.detach()))
    return detached_part(images, texts, *of_all, whole.own, temperature)


def detached_part(
    images: Tensor, texts: Tensor, all_images: Tensor, all_texts: Tensor, own: slice, temperature: Tensor
) -> Tensor:
    """The part of pairs (n, d) at the places `own` among all (N, d), divided by N.

    An own pair's gradient is of its own rank's terms: pairs of others draw nothing and push nothing. So the match draws
    with all its force, and only the own rank's part of the negatives pushes back.
    """
    candidates = [of_all.clone() for of_all in (all_images, all_texts)]
    candidates[0][own], candidates[1][own] = images, texts
    matches = torch.arange(len(all_images), device=images.device)[own]
    by_image = cross_entropy(images @ candidates[1].T / temperature, matches, reduction="sum")
    by_text = cross_entropy(texts @ candidates[0].T / temperature, matches, reduction="sum")
    return (by_image + by_text) / (2 * len(all_images))


@contextmanager
def _replaced(module: object, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
