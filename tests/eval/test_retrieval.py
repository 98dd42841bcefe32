import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from altalign.errors import UnreadableError
from altalign.eval import search as module
from altalign.eval.encoded import Features
from altalign.eval.image_sources import UNDECODABLE
from altalign.eval.retrieval import (
    measured,
    multilingual,
    outcomes_of,
    read_lines,
    read_xm3600,
    retrieval,
)
from altalign.eval.sets import ImageSet
from tests.eval.one_hot import ENCODER, encode_image, images_of

KS = (1, 5, 10)


def recalls_of(images: torch.Tensor, texts: torch.Tensor, owner: torch.Tensor) -> dict[str, float]:
    return measured(outcomes_of(images, texts, owner))


def slow_recalls(images: np.ndarray, texts: np.ndarray, owner: list[int], ks: tuple[int, ...] = KS) -> dict[str, float]:
    """A plain loop over queries, candidates and k."""
    hits = {f"{direction}_r{k}": 0 for direction in ("image_to_text", "text_to_image") for k in ks}
    for image, vector in enumerate(images):
        best = max(
            (
                score
                for score in (vector @ texts[text] for text in range(len(texts)) if owner[text] == image)
                if score == score
            ),
            default=None,
        )
        others = [vector @ texts[text] for text in range(len(texts)) if owner[text] != image]
        for k in ks:
            hits[f"image_to_text_r{k}"] += best is not None and sum(not score < best for score in others) < k
    for text, vector in enumerate(texts):
        own = vector @ images[owner[text]]
        others = [vector @ images[image] for image in range(len(images)) if image != owner[text]]
        for k in ks:
            hits[f"text_to_image_r{k}"] += own == own and sum(not score < own for score in others) < k
    return {
        name: 100 * number / (len(images) if name.startswith("image") else len(texts)) for name, number in hits.items()
    }


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Embeddings of whole numbers (products are exact, ties many), some not a number; every image has a caption, in any
    order.
    """
    images, more, width = draw(st.integers(1, 14)), draw(st.integers(0, 20)), draw(st.integers(1, 3))
    owner = draw(
        st.permutations([*range(images), *draw(st.lists(st.integers(0, images - 1), min_size=more, max_size=more))])
    )
    number = st.sampled_from([-1.0, 0.0, 1.0, 2.0]) | st.sampled_from([-1.0, 0.0, 1.0, float("nan")])
    rows = draw(
        st.lists(
            st.lists(number, min_size=width, max_size=width), min_size=images + len(owner), max_size=images + len(owner)
        )
    )
    vectors = torch.tensor(rows, dtype=torch.float32)
    return vectors[:images], vectors[images:], torch.tensor(owner)


@given(cases())
def test_recalls_are_those_of_a_plain_loop(case: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    images, texts, owner = case
    found = recalls_of(images, texts, owner)
    expected = slow_recalls(images.numpy(), texts.numpy(), owner.tolist())
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["rsum"] == pytest.approx(sum(expected.values()))
    assert found["mean_recall"] == pytest.approx(sum(expected.values()) / 6)


@given(cases(), st.sampled_from([1, 7, 40]))
def test_blocks_change_nothing(case: tuple[torch.Tensor, torch.Tensor, torch.Tensor], scores: int) -> None:
    whole = recalls_of(*case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SCORES", scores)
        assert recalls_of(*case) == whole


def test_any_caption_of_an_image_is_a_hit_and_its_others_are_not_before_it() -> None:
    images = torch.eye(2)
    # the third is the second image's, and nearer to the first's than its second
    texts = torch.tensor([[0.9, 0.0], [0.8, 0.0], [0.85, 0.1], [0.1, 0.5]])
    found = recalls_of(images, texts, torch.tensor([0, 0, 1, 1]))
    assert found["image_to_text_r1"] == 100
    assert found["text_to_image_r1"] == 75
    assert found["text_to_image_r5"] == 100


@pytest.mark.parametrize("number", [2, 11, 37, 1003])
def test_a_model_that_embeds_all_alike_finds_nothing(number: int) -> None:
    vector = torch.nn.functional.normalize(torch.randn(1, 33, generator=torch.Generator().manual_seed(1)), dim=1)
    owner = torch.arange(number).repeat(2)
    found = recalls_of(vector.repeat(number, 1), vector.repeat(2 * number, 1), owner)
    assert found["image_to_text_r1"] == found["text_to_image_r1"] == 0


def test_a_model_of_no_numbers_finds_nothing_even_in_the_smallest_set() -> None:
    nothing = torch.full((2, 3), torch.nan)
    assert recalls_of(nothing, nothing, torch.arange(2))["rsum"] == 0
    assert recalls_of(nothing[:1], nothing[:1], torch.zeros(1, dtype=torch.long))["rsum"] == 0


# The evaluator -------------------------------------------------------------------------------------------------------


def features(encode_image: Callable[[torch.Tensor], torch.Tensor] = encode_image) -> Features:
    """Each image and each of its captions is the same one-hot vector."""
    return Features(replace(ENCODER, encode_image=encode_image), batch=8)


def image_set(images: Sequence[tuple[bytes, list[str]]]) -> ImageSet:
    return ImageSet(images_of([data for data, _ in images]), [captions for _, captions in images], {})


PAIRS = [
    *((b"image%d" % number, [f"{number} a", f"{number} b"][: 1 + number % 2]) for number in range(4)),
    (b"broken", ["8 a", "9 b"]),
    *((b"image%d" % number, [f"{number} a", f"{number} b"][: 1 + number % 2]) for number in range(4, 7)),
]


def test_a_set_is_searched_and_what_cannot_be_decoded_is_named() -> None:
    found = retrieval(image_set(PAIRS), features())
    assert found.left_out == {UNDECODABLE: ["file/4"]}
    assert found.metrics["rsum"] == 600
    assert (found.facts["images"], found.facts["captions"], found.facts["undecodable"]) == (7, 10, 1)
    assert found.facts["chance_r1"] == pytest.approx(100 / 7)
    assert found.rows == [0, 1, 2, 3, 5, 6, 7]
    assert found.outcomes["captions"].tolist() == [1, 2, 1, 2, 1, 2, 1]


@pytest.mark.parametrize(
    ("given", "said"), [([], "no image is in the set"), ([(b"?", ["a"])] * 3, "file/0: cannot be decoded.*3 im")]
)
def test_a_set_of_nothing_is_an_error_of_one_line(given: list[tuple[bytes, list[str]]], said: str) -> None:
    with pytest.raises(UnreadableError, match=said) as caught:
        retrieval(image_set(given), features())
    assert "\n" not in str(caught.value)


# Languages ------------------------------------------------------------------------------------------------------------


def written(folder: Path, number: int) -> str:
    for place in range(number):
        (folder / f"{place}.jpg").write_bytes(f"image{place}".encode())
    return str(folder)


def test_every_language_is_measured_as_retrieval_and_the_mean_is_theirs(tmp_path: Path) -> None:
    names = ["0.jpg", "1.jpg", "2.jpg", "lost.jpg"]
    captions = {
        "en": [["0 a", "0 b"], ["1 a", "2 b"], ["2 a", "2 c"], ["5", "5"]],
        "de": [["1"], ["0"], ["2"], ["5"]],
    }
    found = multilingual(names, captions, written(tmp_path, 3), Features(ENCODER, batch=2))
    metrics = found.metrics
    assert metrics["en/image_to_text_r1"] == pytest.approx(200 / 3)  # the third meets a caption of the second
    assert metrics["en/text_to_image_r1"] == pytest.approx(100 * 5 / 6)
    assert metrics["de/text_to_image_r1"] == pytest.approx(100 / 3)
    for name in ("mean_recall", "rsum", "text_to_image_r1"):
        assert metrics[name] == pytest.approx((metrics[f"en/{name}"] + metrics[f"de/{name}"]) / 2)
    assert found.facts == {"images": 3, "languages": 2}
    assert found.left_out == {"no such file": ["lost.jpg"]}
    assert list(found.images.names) == names[:3]


def test_multi30k_is_files_of_lines(tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text("0.jpg\n1.jpg\n")
    for name, lines in (("1.en", "a\nb\n"), ("2.en", "c\nd\n"), ("1.fr", "e\nf\n")):
        (tmp_path / name).write_text(lines)
    files = {"en": [str(tmp_path / "1.en"), str(tmp_path / "2.en")], "fr": [str(tmp_path / "1.fr")]}
    found = read_lines(str(tmp_path / "test.txt"), files)
    assert found == (["0.jpg", "1.jpg"], {"en": [("a", "c"), ("b", "d")], "fr": [("e",), ("f",)]})
    (tmp_path / "1.fr").write_text("e\n")
    with pytest.raises(UnreadableError, match=r"1 lines, and .* has 2"):
        read_lines(str(tmp_path / "test.txt"), files)


def test_xm3600_is_lines_of_json(tmp_path: Path) -> None:
    rows = [{"image/key": "0f", "locale": "en", "en": {"caption": ["a", "b"]}, "de": {"caption": ["c"]}}]
    path = tmp_path / "captions.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert read_xm3600(str(path), []) == (["0f.jpg"], {"de": [["c"]], "en": [["a", "b"]]})
    assert read_xm3600(str(path), ["en"])[1] == {"en": [["a", "b"]]}
    for wrong in (["fr"], ["locale"]):
        with pytest.raises(UnreadableError, match=r"no captions\.jsonl of XM3600"):
            read_xm3600(str(path), wrong)
