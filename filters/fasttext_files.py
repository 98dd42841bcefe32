"""Reads a supervised model file of fastText (.bin, or quantized .ftz), version 11 or 12; a file that lies is refused.

The format is that of fastText 0.9: src/args.cc, dictionary.cc, densematrix.cc, quantmatrix.cc, productquantizer.cc
(MIT). Everything is little-endian. Nothing in a file is run.
"""

import struct
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

_MAGIC, _VERSIONS = 793712314, (11, 12)
_LOSSES: dict[int, Literal["hs", "softmax", "ova"]] = {1: "hs", 2: "softmax", 3: "softmax", 4: "ova"}  # 2: ns
_SUPERVISED = 3
_CENTROIDS = 256  # of each part of a vector: codes are bytes
_LINE_BYTES = 64  # of a processor's cache
_DIMENSIONS_AT_MOST, _LABELS_AT_MOST = 4_096, 100_000

Floats = npt.NDArray[np.float32]


class ModelFileError(ValueError):
    """The bytes are no such model; the words say why."""


@dataclass(frozen=True, eq=False)
class FastText:
    """A model.

    Attributes:
        dimensions: of its vectors.
        min_n: the shortest character n-gram, in characters; 0 with `max_n` 0: none.
        max_n: the longest.
        word_ngrams: the longest n-gram of words.
        bucket: hashes of n-grams are modulo this.
        loss: how labels' probabilities are made.
        labels: without `__label__`, in the order of the file.
        counts: of labels in training, int64[labels].
        words: bytes of all words, one after the other; offsets int64[n + 1].
        word_offsets: see there.
        pruned: sorted hashes of the n-grams that were kept, int64[k], and the rows of each; None: all were.
        pruned_rows: see there.
        rows: vectors of words and n-grams: float32[n, dimensions], expanded where they are quantized.
        output: float32[labels, dimensions].
    """

    dimensions: int
    min_n: int
    max_n: int
    word_ngrams: int
    bucket: int
    loss: Literal["hs", "softmax", "ova"]
    labels: tuple[str, ...]
    counts: npt.NDArray[np.int64]
    words: npt.NDArray[np.uint8]
    word_offsets: npt.NDArray[np.int64]
    pruned: npt.NDArray[np.int64] | None
    pruned_rows: npt.NDArray[np.int64] | None
    rows: Floats
    output: Floats


class _Reader:
    """Takes values from the front of the file's bytes."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, size: int, what: str) -> memoryview:
        if size < 0 or size > len(self.data) - self.at:
            raise ModelFileError(f"it ends inside {what} (byte {self.at:,})")
        self.at += size
        return self.data[self.at - size : self.at]

    def numbers(self, form: str, what: str) -> tuple[Any, ...]:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form), what))

    def array(self, kind: str, count: int, what: str) -> npt.NDArray[Any]:
        return np.frombuffer(self.take(count * np.dtype(kind).itemsize, what), kind)


def read(data: bytes | memoryview) -> FastText:
    """The model in the bytes of a file.

    Raises:
        ModelFileError: they are none, are cut, or contradict themselves.
    """
    reader = _Reader(memoryview(data))
    magic, version = reader.numbers("ii", "its first bytes") if len(data) >= 8 else (0, 0)
    if magic != _MAGIC:
        raise ModelFileError("its first bytes are not those of fastText")
    if version not in _VERSIONS:
        raise ModelFileError(f"version {version}, and {' and '.join(map(str, _VERSIONS))} are read")
    dim, *_, word_ngrams, loss, model, bucket, min_n, max_n, _, _ = reader.numbers("12id", "its arguments")
    if version == 11:  # these had no character n-grams where they were supervised
        max_n = 0
    if model != _SUPERVISED:
        raise ModelFileError("word vectors, not a classifier")
    sane = 1 <= dim <= _DIMENSIONS_AT_MOST and 0 <= min_n <= 64 and 0 <= max_n <= 64 and 0 <= bucket < 1 << 31
    if not sane or not 1 <= word_ngrams <= 16 or loss not in _LOSSES:
        raise ModelFileError(
            f"arguments out of range: dim {dim}, minn {min_n}, maxn {max_n}, wordNgrams {word_ngrams}, "
            f"bucket {bucket}, loss {loss}"
        )
    if bucket == 0 and (max_n > 0 or word_ngrams > 1):
        raise ModelFileError("n-grams without a bucket to hash them to")
    words, labels, counts, pruned = _dictionary(reader)
    is_quantized = reader.numbers("?", "a flag")[0]
    rows = _quantized(reader, dim, "the input") if is_quantized else _dense(reader, dim, "the input")
    kept = bucket if pruned is None else len(pruned)
    if len(rows) != len(words) + kept and not (len(rows) == len(words) and max_n == 0 and word_ngrams == 1):
        raise ModelFileError(f"{len(rows):,} vectors for {len(words):,} words and {kept:,} n-grams")
    is_output_quantized = reader.numbers("?", "a flag")[0] and is_quantized
    output = _quantized(reader, dim, "the output") if is_output_quantized else _dense(reader, dim, "the output")
    if len(output) != len(labels):
        raise ModelFileError(f"{len(output):,} vectors for {len(labels):,} labels")
    offsets = np.cumsum([0, *map(len, words)], dtype=np.int64)
    return FastText(
        *(dim, min_n, max_n, word_ngrams, bucket, _LOSSES[loss], tuple(labels), counts),
        np.frombuffer(b"".join(words), np.uint8),
        offsets,
        None if pruned is None else pruned[:, 0],
        None if pruned is None else pruned[:, 1],
        rows,
        output,
    )


def _dictionary(
    reader: _Reader,
) -> tuple[list[bytes], list[str], npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """Words, labels, the counts of labels, and (hash, row) of the n-grams that were kept; None: all were."""
    size, n_words, n_labels, _, n_pruned = reader.numbers("iiiqq", "its dictionary")
    if n_words < 0 or not 1 <= n_labels <= _LABELS_AT_MOST or size != n_words + n_labels:
        raise ModelFileError(f"a dictionary of {size:,} entries, {n_words:,} words and {n_labels:,} labels")
    whole, entries, counts = bytes(reader.data[reader.at :]), list[bytes](), list[int]()
    at = 0
    for number in range(size):
        end = whole.find(b"\0", at, at + (1 << 16))
        if end < 0 or end + 10 > len(whole):
            raise ModelFileError(f"it ends inside its dictionary (entry {number:,})")
        count, kind = struct.unpack_from("<qb", whole, end + 1)
        if kind != (number >= n_words):
            raise ModelFileError(f"entry {number:,} of its dictionary is of kind {kind}")
        entries.append(whole[at:end])
        counts.append(count)
        at = end + 10
    reader.at += at
    try:
        labels = [entry.decode().removeprefix("__label__") for entry in entries[n_words:]]
    except UnicodeDecodeError:
        raise ModelFileError("a label is not UTF-8") from None
    if any(count < 0 for count in counts[n_words:]):
        raise ModelFileError("a label was counted less than never")
    of_labels = np.array(counts[n_words:], np.int64)
    if n_pruned < 0:
        return entries[:n_words], labels, of_labels, None
    pairs = reader.array("<i4", 2 * n_pruned, "its n-grams").reshape(-1, 2).astype(np.int64)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    if len(pairs) and not (pairs[:, 1].min() >= 0 and pairs[:, 1].max() < len(pairs)):
        raise ModelFileError("n-grams that it kept name vectors that it does not have")
    return entries[:n_words], labels, of_labels, pairs


def _dense(reader: _Reader, dim: int, what: str) -> Floats:
    rows, columns = reader.numbers("qq", what)
    if columns != dim or rows < 0:
        raise ModelFileError(f"{what} has {rows:,} vectors of {columns:,} dimensions, where its arguments say {dim}")
    return _aligned(reader.array("<f4", rows * dim, what).reshape(rows, dim))


def _aligned(rows: Floats) -> Floats:
    """A copy that begins where a line of the cache does, and is in large pages; the file's bytes can go."""
    memory = np.empty(rows.nbytes + _LINE_BYTES, np.uint8)
    skipped = -memory.ctypes.data % _LINE_BYTES
    copy = memory[skipped : skipped + rows.nbytes].view(np.float32).reshape(rows.shape)
    copy[:] = rows
    return copy


def _quantized(reader: _Reader, dim: int, what: str) -> Floats:
    (has_norms,) = reader.numbers("?", what)
    rows, columns, size = reader.numbers("qqi", what)
    if columns != dim or rows < 0 or size < 0:
        raise ModelFileError(f"{what} has {rows:,} vectors of {columns:,} dimensions, where its arguments say {dim}")
    codes = reader.array("u1", size, what)
    centroids, parts = _centroids(reader, dim, what)
    if size != rows * len(parts):
        raise ModelFileError(f"{what} has {size:,} codes for {rows:,} vectors of {len(parts)} parts")
    of_row = codes.reshape(rows, len(parts))
    vectors = np.empty((rows, dim), np.float32)
    for number, (first, last) in enumerate(parts):
        vectors[:, first:last] = centroids[number][of_row[:, number]]
    if has_norms:
        norm_codes = reader.array("u1", rows, what)
        norms, _ = _centroids(reader, 1, what)
        with np.errstate(invalid="ignore", over="ignore"):  # numbers of a damaged file
            vectors *= norms[0][norm_codes]
    return vectors


def _centroids(reader: _Reader, dim: int, what: str) -> tuple[list[Floats], list[tuple[int, int]]]:
    """The centroids of each part of a vector, float32[256, its dimensions], and where the part is."""
    of, parts, width, last = reader.numbers("4i", what)
    fits = of == dim and 1 <= parts <= dim and width >= 1 and 1 <= last <= width
    if not fits or (parts - 1) * width + last != dim:
        raise ModelFileError(f"{what}: {parts} parts of {width} and {last} dimensions do not make {dim}")
    numbers = reader.array("<f4", dim * _CENTROIDS, what)
    places = [(part * width, part * width + (last if part == parts - 1 else width)) for part in range(parts)]
    return [numbers[begin * _CENTROIDS : end * _CENTROIDS].reshape(_CENTROIDS, -1) for begin, end in places], places
