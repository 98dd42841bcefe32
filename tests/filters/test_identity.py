from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from altalign.data import key
from altalign.filters import identity

derandomized = settings(derandomize=True, deadline=None, max_examples=100)

UINT64 = 2**64 - 1
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
EDGES = [0, 1, 7, 8, 9, 63, 64, 65, 126, 127, 128, 129, 254, 255, 256, 257, 383, 384, 385]

# Fixed for ever: stored tables hold such hashes.
GOLDEN_HASHES = {
    "": 0x2545F4914F6CDD1D,
    "a": 0xAED77AC5B1FED130,
    "http://a.example/1.jpg": 0xD298E3FA3B432F28,
    "http://a.example/2.jpg": 0x6B48F5266E0032C2,
    "https://xn--bcher-kva.example/%C3%BC.jpg": 0xE8FB8D6C19CEE92D,
    "http://a.example/ü.jpg": 0xBD48A7CA2FC44EB1,
    "12345678": 0x15B9E95C4438FAC1,
    "123456789": 0x7EB377B79EA1B3EB,
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855": 0x173A6EBADCE72664,
}


def plain_hash(text: str) -> int:
    """The hash of an image identity, as defined for version 1."""
    data = text.encode()
    h = (len(data) * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D) & UINT64
    for at in range(0, len(data), 8):
        h ^= int.from_bytes(data[at : at + 8], "little")
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            h = (h ^ h >> 33) * factor & UINT64
        h ^= h >> 33
    return h


def text_of(size: int, seed: int) -> str:
    return "".join(chr(33 + (seed * 7 + i * i) % 90) for i in range(size))


def hexes(rows: np.ndarray) -> list[str]:
    assert (rows.dtype, rows.shape[1:]) == (np.uint8, (16,))
    return [bytes(row).hex() for row in rows]


def check(identities: Any, captions: Any) -> None:
    image_ids, keys = identity.ids(identities, captions)
    plain = [text or "" for text in identities.to_pylist()]
    assert hexes(image_ids) == hexes(identity.image_ids(identities)) == [key.image_id(text) for text in plain]
    assert hexes(keys) == [
        key.sample_key(text, caption or "") for text, caption in zip(plain, captions.to_pylist(), strict=True)
    ]


# Ids ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_ids_of_every_length_around_the_blocks_are_those_of_hashlib(kind: pa.DataType) -> None:
    pairs = [(text_of(a, 1), text_of(b, 2)) for a in EDGES for b in EDGES]
    # the zero byte at every place of a whole block
    pairs += [(text_of(a, 3), text_of(126 - a, 4)) for a in range(127)]
    check(pa.array([a for a, _ in pairs], kind), pa.array([b for _, b in pairs], kind))


@given(
    st.lists(st.tuples(st.none() | texts, texts), max_size=20),
    st.integers(0, 5),
    st.integers(0, 20),
    st.sampled_from([pa.string(), pa.large_string()]),
)
@example([("a", "b")], 1, 5, pa.string())
@derandomized
def test_ids_of_slices_with_nulls_are_those_of_hashlib(
    rows: list[tuple[str | None, str]], begin: int, size: int, kind: pa.DataType
) -> None:
    check(
        pa.array([a for a, _ in rows], kind).slice(begin, size), pa.array([b for _, b in rows], kind).slice(begin, size)
    )


@given(st.permutations(range(40)))
@settings(derandomize=True, deadline=None, max_examples=10)
def test_an_id_does_not_depend_on_the_rows_beside_it(order: list[int]) -> None:
    identities, captions = [text_of(n * 11, n) for n in range(40)], [text_of(400 - n * 10, n) for n in range(40)]
    one_by_one = [identity.ids(pa.array([a]), pa.array([b])) for a, b in zip(identities, captions, strict=True)]
    image_ids, keys = identity.ids(pa.array([identities[n] for n in order]), pa.array([captions[n] for n in order]))
    assert image_ids.tolist() == [one_by_one[n][0][0].tolist() for n in order]
    assert keys.tolist() == [one_by_one[n][1][0].tolist() for n in order]


def test_long_texts_and_empty_columns() -> None:
    check(pa.array(["http://a.example/" + "x" * 100_000, ""]), pa.array(["y" * 70_001, ""]))
    check(pa.array([], pa.string()), pa.array([], pa.string()))
    check(pa.array([None, None], pa.string()), pa.array(["", "a"]))
    check(pa.nulls(3, pa.string()), pa.array(["a", "b", ""]))


def test_bytes_of_ids_sort_as_their_hex_does() -> None:
    rows = identity.image_ids(pa.array([str(n) for n in range(300)]))
    assert sorted(hexes(rows)) == [bytes(row).hex() for row in sorted(map(bytes, rows))]


def test_captions_with_nulls_are_refused() -> None:
    with pytest.raises(ValueError, match="nulls"):
        identity.ids(pa.array(["a"]), pa.array([None], pa.string()))
    with pytest.raises(ValueError, match="2 identities, 1 captions"):
        identity.ids(pa.array(["a", "b"]), pa.array(["a"]))


# Hex ------------------------------------------------------------------------------------------------------------------


def test_hex_is_that_of_bytes() -> None:
    rows = np.arange(256, dtype=np.uint8).reshape(16, 16)
    for some in (rows, rows[::-1], rows[3:5], rows[:, ::-1], rows[:0]):
        found = identity.hexed(some)
        assert found.to_pylist() == [bytes(row).hex() for row in some]
        assert found.type == pa.string()
        found.validate(full=True)


# The 64-bit hash ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "expected"), GOLDEN_HASHES.items())
def test_image_hashes_are_fixed_for_ever(text: str, expected: int) -> None:
    assert identity.IMAGE_HASH_VERSION == 1
    assert plain_hash(text) == expected
    assert identity.image_hash(pa.array([text])).tolist() == [expected]


@given(
    st.lists(st.none() | texts, max_size=20),
    st.integers(0, 5),
    st.integers(0, 20),
    st.sampled_from([pa.string(), pa.large_string()]),
)
@derandomized
def test_image_hashes_of_slices_with_nulls_are_those_of_plain_python(
    values: list[str | None], begin: int, size: int, kind: pa.DataType
) -> None:
    column: Any = pa.array(values, kind).slice(begin, size)
    assert identity.image_hash(column).tolist() == [
        0 if text is None else plain_hash(text) for text in column.to_pylist()
    ]


def test_image_hashes_of_every_length_at_the_very_end_of_a_buffer() -> None:
    for size in range(40):
        data = bytes(range(65, 65 + size))
        column = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, size], np.int32).data), pa.py_buffer(data))
        assert identity.image_hash(column).tolist() == [plain_hash(data.decode())]
