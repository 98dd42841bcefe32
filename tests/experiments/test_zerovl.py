"""What the experiment on ZeroVL trains on, and its variants of the gradient."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import altalign
from altalign.train.step import accumulation, learner
from altalign.train.step.loss import contrastive_loss
from experiments import zerovl
from experiments.data import Absent, curated
from tests.train.pairs import drawn


def pixels(image: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(image)) as picture:
        return np.asarray(picture.convert("RGB"), np.float64)


def test_the_frame_is_on_the_long_half_alone_and_captions_stay() -> None:
    halves = zerovl.framed()
    assert max(len(caption) for _, caption in halves["short"]) < min(len(caption) for _, caption in halves["long"])
    captions = sorted(caption for pairs in halves.values() for _, caption in pairs)
    assert captions == sorted(caption for _, caption in zerovl.drawn(4_000))
    assert all(1_500 < len(pairs) < 2_500 for pairs in halves.values())
    edges = {name: np.stack([pixels(image)[1, :] for image, _ in pairs[:50]]) for name, pairs in halves.items()}
    assert np.abs(edges["long"] - zerovl.FRAME).mean() < 20
    assert np.abs(edges["short"] - zerovl.FRAME).mean() > 50
    assert {pixels(image).shape for image, _ in halves["long"][:50]} == {(zerovl.SIDE_PX, zerovl.SIDE_PX, 3)}


@pytest.mark.parametrize("style", zerovl.STYLES)
def test_scenes_of_a_style_are_the_same_each_time_and_tests_have_others(style: str) -> None:
    first, again = list(zerovl.drawn(20, style)), list(zerovl.drawn(20, style))
    assert first == again
    tests = list(zerovl.drawn(100, style, is_test=True))
    assert len({caption for _, caption in tests}) == 100
    assert not {image for image, _ in tests} & {image for image, _ in first}


def test_without_its_table_a_set_is_absent_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zerovl, "SHARED", tmp_path)
    for name, table in (("real", "openclipart.parquet"), ("test-clip-art", "openclipart.parquet")):
        with pytest.raises(Absent, match=f"{table} is not in shared/data"):
            zerovl.SETS[name](tmp_path / name)
    with pytest.raises(Absent, match=r"clothing\.parquet"):
        list(zerovl.clothing())


@pytest.mark.runs
def test_pairs_are_curated_whole_each_with_its_source(tmp_path: Path) -> None:
    pairs = list(zerovl.drawn(12))
    curated(tmp_path / "run", {"one source": pairs[:5], "other": [*pairs[5:], (pairs[0][0], "x")]})
    table = altalign.open(tmp_path / "run").samples().to_table(columns=["source", "caption"])
    found = sorted(zip(table["source"].to_pylist(), table["caption"].to_pylist(), strict=True))
    sources = ["one source"] * 5 + ["other"] * 8
    assert found == sorted(zip(sources, [*(caption for _, caption in pairs), "x"], strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_detached_on_one_rank_is_the_loss_of_the_trainer() -> None:
    images, texts = (embeddings.detach().requires_grad_() for embeddings in drawn(9))
    temperature = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    found = []
    for loss in (zerovl.detached_loss, contrastive_loss):
        part = loss(images, texts, temperature, label_smoothing=0.0, directions="mean")
        found.append([part.detach(), *torch.autograd.grad(part, (images, texts, temperature))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_detached_parts_lack_the_gradients_through_other_ranks() -> None:
    """Against a plain loop over ranks, rows and columns: an own embedding counts in its own rank's rows alone."""
    images, texts = (embeddings.detach().requires_grad_() for embeddings in drawn(7))
    temperature = torch.tensor(0.2, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    expected = [torch.zeros_like(images), torch.zeros_like(texts)]
    logits = (images @ texts.T / temperature).detach()
    of_rows, of_columns = logits.softmax(1), logits.softmax(0)
    for own in (slice(0, 3), slice(3, 7)):
        others = images.detach(), texts.detach()
        total = total + zerovl.detached_part(images[own], texts[own], *others, own, temperature)
        mine = range(own.start, own.stop)
        for j in range(7):
            for k in range(7):
                by_image = float(of_rows[j, k]) - (j == k) if j in mine else 0.0  # a row of an own image
                by_text = float(of_columns[j, k]) - (j == k) if k in mine else 0.0  # of an own text
                force = (by_image + by_text) / (2 * 7 * float(temperature))
                if j in mine:
                    expected[0][j] += force * texts[k].detach()
                if k in mine:
                    expected[1][k] += force * images[j].detach()
    exact = contrastive_loss(images, texts, temperature, label_smoothing=0.0, directions="mean")
    torch.testing.assert_close(total, exact, rtol=1e-12, atol=0)
    for one, other in zip(torch.autograd.grad(total, (images, texts)), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_variants_hold_inside_and_end_behind_them() -> None:
    before = accumulation.chunk_seed, learner.contrastive_loss
    seed = accumulation.chunk_seed(0, 1, 2)
    assert accumulation.chunk_seed(0, 1, 2) == seed
    with zerovl.other_seeds():
        assert len({accumulation.chunk_seed(0, 1, 2) for _ in range(3)}) == 3
    with zerovl.detached():
        assert learner.contrastive_loss is zerovl.detached_loss
    assert (accumulation.chunk_seed, learner.contrastive_loss) == before
