"""Shared by tests of embedders: two images and a flat one, and that an image has the same vector whoever asks."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from altalign.pipelines.images import embedders
from tests.support.pictures import picture

IMAGE = np.asarray(picture(320, 240))
OTHER = np.ascontiguousarray(IMAGE[::-1, :, ::-1])
FLAT = np.full((240, 320, 3), (200, 30, 30), np.uint8)


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    a, b = first.astype(float), second.astype(float)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def features(embedder: embedders.Embedder, image: np.ndarray) -> np.ndarray:
    """Of an image that is not flat: as it should be for the embedder."""
    found = embedder.features(image)
    assert found is not None
    assert (found.dtype, found.shape) == (np.int16, (embedder.dimensions,))
    return found


def check_same_whoever_asks(embedder: embedders.Embedder) -> None:
    """Many threads at once, views of memory, read-only pixels: the same vector each time."""
    expected = features(embedder, IMAGE)
    wide = np.zeros((240, 640, 3), np.uint8)
    wide[:, ::2] = IMAGE
    frozen = IMAGE.copy()
    frozen.flags.writeable = False
    together = threading.Barrier(4)

    def ask(number: int) -> list[bytes]:
        together.wait()
        return [features(embedder, (IMAGE, OTHER, wide[:, ::2], frozen)[(number + i) % 4]).tobytes() for i in range(4)]

    with ThreadPoolExecutor(4) as threads:
        answers = [vector for answer in threads.map(ask, range(4)) for vector in answer]
    assert {vector for vector in answers if vector != features(embedder, OTHER).tobytes()} == {expected.tobytes()}
    assert answers.count(expected.tobytes()) == 12
