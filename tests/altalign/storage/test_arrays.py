import errno
import io
import resource
from pathlib import Path

import numpy as np
import pytest

from altalign.errors import UnreadableError
from altalign.storage import arrays

ARRAYS = [
    np.arange(12, dtype=np.int16).reshape(3, 4),
    np.zeros((0, 64), np.int16),
    np.array([(1, 2.5)], [("a", "<i4"), ("b", "<f8")]),
    np.arange(12).reshape(3, 4)[:, ::2],
    np.array([True, False]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_an_array_is_the_file_that_numpy_writes(tmp_path: Path, array: np.ndarray) -> None:
    path = str(tmp_path / "a.npy")
    arrays.save(path, array)
    by_numpy = io.BytesIO()
    np.save(by_numpy, array)
    assert (tmp_path / "a.npy").read_bytes() == by_numpy.getvalue()
    for found in (arrays.read(path), arrays.mapped(path)):
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


def test_a_file_that_can_grow_no_further_is_said_with_its_cause(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # as on a full disk some of it is written, and then no more
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            arrays.save(str(tmp_path / "a.npy"), np.arange(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data.replace(b"{", b"("),
        lambda data: data.replace(b"'", b"\xff"),
        lambda _: b"",
    ],
)
def test_a_damaged_array_is_said_to_be_no_array(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "a.npy"
    arrays.save(str(path), np.arange(100))
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(UnreadableError, match="not a whole NumPy array"):
        arrays.read(str(path))
