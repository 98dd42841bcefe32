from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from altalign.eval.encoded import Encoder, Features
from tests.eval.one_hot import ENCODER, encode_image, encode_text, images_of, one_hot

IMAGES = images_of([b"image1", b"broken", b"image2", b"image2", b"image7"])


class Counting:
    """Counts what it encodes."""

    def __init__(self, digest: str = "a") -> None:
        self.images, self.texts = list[int](), list[int]()
        self.encoder = Encoder(ENCODER.decode, self.encode_image, self.encode_text, digest)

    def encode_image(self, images: torch.Tensor) -> torch.Tensor:
        self.images.append(len(images))
        return encode_image(images)

    def encode_text(self, texts: Sequence[str]) -> torch.Tensor:
        self.texts.append(len(texts))
        return encode_text(texts)


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
@pytest.mark.parametrize("threads", [1, 3])
def test_images_keep_their_order_and_numbers_in_any_batches(batch: int, threads: int) -> None:
    found = Features(ENCODER, batch=batch, threads=threads).of_images(IMAGES)
    assert torch.equal(found.embeddings, one_hot([1, 2, 2, 7]))
    assert found.embeddings.dtype == torch.float32
    assert (found.rows.tolist(), found.undecodable) == ([0, 2, 3, 4], [1])


def test_ensembles_are_means_of_length_1() -> None:
    """Prompts 1, 1, 2 of a class: (2, 1) / 3, scaled."""
    model = Counting()
    found = Features(model.encoder, batch=2).of_ensembles([["1", "1", "2"], ["3"]])
    assert found[0, 1:3].tolist() == pytest.approx([2 / 5**0.5, 1 / 5**0.5])
    assert torch.equal(found[1], one_hot([3])[0])
    assert model.texts == [2, 2]


def test_what_is_kept_is_not_encoded_again_but_for_another_model_or_set(tmp_path: Path) -> None:
    model = Counting()

    def encoded(of: Counting) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        features = Features(of.encoder, batch=9, folder=str(tmp_path))
        return features.of_images(IMAGES).embeddings, features.of_texts(["1", "2"]), features.of_ensembles([["1", "2"]])

    first, second = encoded(model), encoded(model)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert (model.images, model.texts) == ([4], [2, 2])
    again = Features(model.encoder, batch=9, folder=str(tmp_path)).of_images(IMAGES)
    assert (again.rows.tolist(), again.undecodable) == ([0, 2, 3, 4], [1])
    other = Counting("b")
    encoded(other)
    assert (other.images, other.texts) == ([4], [2, 2])
    Features(model.encoder, batch=9, folder=str(tmp_path)).of_images(images_of([b"image1"]))
    assert model.images == [4, 1]


@pytest.mark.parametrize("harm", ["cut", "flipped", "empty", "of another kind"])
def test_what_is_kept_and_damaged_is_made_anew(tmp_path: Path, harm: str) -> None:
    model = Counting()
    features = Features(model.encoder, batch=9, folder=str(tmp_path))
    before = features.of_texts(["1", "2"])
    (kept,) = tmp_path.glob("*.npz")
    data = kept.read_bytes()
    match harm:
        case "cut":
            kept.write_bytes(data[:-3])
        case "flipped":
            place = data.index(b"\n") + 9  # a number of the first array
            kept.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        case "empty":
            kept.write_bytes(b"")
        case _:
            np.savez(kept, other=np.zeros(3))
    assert torch.equal(features.of_texts(["1", "2"]), before)
    assert model.texts == [2, 2]
    assert torch.equal(features.of_texts(["1", "2"]), before)
    assert model.texts == [2, 2]


def test_embeddings_of_a_model_of_half_precision_are_float32() -> None:
    half = replace(ENCODER, encode_text=lambda texts: encode_text(texts).half())
    assert Features(half, batch=2).of_texts(["1", "2", "3"]).dtype == torch.float32
    assert np.isfinite(Features(half, batch=2).of_ensembles([["1"]]).numpy()).all()


def test_kept_embeddings_are_where_the_models_are(tmp_path: Path) -> None:
    """A task has kept embeddings beside new ones: both must be on one device."""
    on_cpu = Features(replace(ENCODER, digest="same"), batch=2, folder=str(tmp_path))
    assert on_cpu.of_texts(["1", "2"]).device.type == "cpu"
    elsewhere = Features(replace(ENCODER, digest="same", device="meta"), batch=2, folder=str(tmp_path))
    assert elsewhere.of_texts(["1", "2"]).device.type == "meta"
