import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.filters import image_scores, languages, text_scores, unicode_data
from altalign.filters.one_caption import words_of
from tests.strategies import nasty_captions


@given(st.lists(nasty_captions(), max_size=8))
@settings(max_examples=60)
def test_measures_of_captions_are_those_of_a_plain_loop(texts: list[str]) -> None:
    listed = {"red", "кот"}
    found = text_scores.measure(pa.array(texts, pa.string()), text_scores.listed_hashes(["red КОТ"])).to_pylist()
    for text, row in zip(texts, found, strict=True):
        letters = [c for c in text if unicode_data.entry(c) & unicode_data.LETTER]
        capitals = [c for c in letters if unicode_data.entry(c) & unicode_data.FOLD]
        words = words_of(text)
        digits = sum("0" <= c <= "9" for c in text)
        assert row == {
            "characters": len(text),
            "digits": share(digits, len(text)),
            "capitals": share(len(capitals), len(letters)),
            "repeated": share(len(words) - len({*words}), len(words)),
            "listed": sum(word in listed for word in words),
        }


def test_repeated_words_of_a_long_caption_are_counted() -> None:
    texts = [" ".join(f"w{n % 70}" for n in range(size)) for size in (69, 71, 200)]
    found = text_scores.measure(pa.array(texts), text_scores.listed_hashes([]))["repeated"].to_pylist()
    assert found == [share(0, 69), share(1, 71), share(130, 200)]


def share(part: int, whole: int) -> float:
    return float(np.rint(part / max(1, whole) * 4096)) / 4096


def test_what_is_no_number_stays_none() -> None:
    found = text_scores.rounded(np.array([0.1, np.nan, np.inf]))
    assert found[0] == np.float32(410 / 4096)
    assert np.isnan(found[1:]).all()


@pytest.mark.parametrize("shape", [(40, 30, 3), (300, 700, 3), (1, 9, 3), (5, 1, 3)])
def test_measures_of_an_image_are_those_of_a_plain_loop(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, shape, np.uint8)
    found = image_scores.measure(pixels)
    small, luma = scaled(pixels)
    luma = luma.astype(int)
    counts = Counter(luma.ravel().tolist())
    entropy = -sum(n / luma.size * math.log2(n / luma.size) for n in counts.values())
    assert abs(found.entropy - entropy) <= 1 / 64
    laplacian = [
        luma[y - 1, x] + luma[y + 1, x] + luma[y, x - 1] + luma[y, x + 1] - 4 * luma[y, x]
        for y in range(1, luma.shape[0] - 1)
        for x in range(1, luma.shape[1] - 1)
    ]
    assert abs(found.sharpness - (np.var(laplacian) if laplacian else 0)) <= 1 / 64
    red, green, blue = (small[..., channel].astype(float) for channel in range(3))
    rg, yb = red - green, (red + green) / 2 - blue
    colour = math.hypot(rg.std(), yb.std()) + 0.3 * math.hypot(rg.mean(), yb.mean())
    assert abs(found.colour - colour) <= 1 / 64


def scaled(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from PIL import Image

    image, longest = Image.fromarray(pixels), max(pixels.shape[:2])
    if longest > 256:
        image = image.resize([max(1, round(side * 256 / longest)) for side in image.size], Image.Resampling.BOX)
    return np.asarray(image), np.asarray(image.convert("L"))


def test_a_gray_image_is_flat_and_without_colour() -> None:
    assert image_scores.measure(np.full((50, 60), 128, np.uint8)) == (0.0, 0.0, 1.0, 0.0)


def test_a_language_is_vetoed_by_a_script_that_it_is_not_written_in() -> None:
    rows = [
        ("a red dog", "en", False),
        ("красный дом", "en", True),
        ("красный дом", "ru", False),
        ("12 !", "ru", False),
    ]
    rows += [("赤い犬", "ja", False), ("a dog", "ja", True), ("a dog", "xx", False), ("a dog", None, False)]
    texts, labels, wanted = zip(*rows, strict=True)
    found = languages.is_vetoed(pa.array(texts, pa.string()), pa.array(labels, pa.string()))
    assert found.tolist() == list(wanted)
