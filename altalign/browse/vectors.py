"""The nearest of millions of vectors by cosine, of all rows or of some, in a seventh of the memory of floats.

A row in memory is four bits for each dimension, as bit planes: after the mean is taken off and a fixed rotation, all
coordinates of a row have about the same spread, so a step that follows from the row's length fits all. A search takes
three looks. It scans the first plane, the signs, of every row; it ranks the best hundredth again by all four planes;
and it computes the cosines of the best of those from the vectors, which lie in a temporary file. The query keeps
several bits: a text's cosines with images differ too little for signs against signs.
"""

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

from altalign.filters.bits import count_bits, from_half
from altalign.machine.cores import cores

Rows: TypeAlias = npt.NDArray[np.uint32]
Floats: TypeAlias = npt.NDArray[np.float32]

BLOCK = 1 << 16  # rows that one thread encodes or scans at a time
PLANES = 4  # bits for each dimension of a row; the first look reads one
STEP = 0.335  # between the 16 values of a coordinate whose standard deviation is 1: the least squared error
SCAN_BITS, RANK_BITS = 4, 6  # of the query's coordinates in the first look and in the second
SCANNED_AT_LEAST, SCANNED_SHARE = 2_000, 100  # rows for the second look: these, and one in so many
# rows for the third look: these, or one in so many, or so many times k
EXACT_AT_LEAST, EXACT_SHARE, EXACT_PER_ANSWER = 500, 5_000, 4
BINS = 4096  # of the scores of the first look
LANES = 256  # rows that are rotated side by side, in the CPU's second cache


class Vectors:
    """An index of vectors that are numbered from 0 in the order in which they are added.

    A vector is float16 or float32 of any length but 0; one that has no direction (zeros, or a number that is not
    finite) keeps its number and is never found. Searches may run in several threads, beside one that adds.
    """

    def __init__(self, dimensions: int, folder: Path | None = None, threads: int | None = None):
        """Prepare an empty index.

        Args:
            dimensions: of every vector, at least 1.
            folder: where its temporary file lies, 2 bytes for each dimension of a row; the system's by default. The
                file has no name, so nothing is left behind.
            threads: that encode and scan; all cores by default.
        """
        self.dimensions, self._count, self._blocks = dimensions, 0, list[_Block]()
        self._words = -(-dimensions // 64)
        self._mean = np.zeros(dimensions, np.float32)
        self._flips = np.random.default_rng(0).choice(np.array([-1, 1], np.float32), (2, self._words * 64))
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  (it lives as long as the index)
        self._pool = ThreadPoolExecutor(threads or cores(), "vectors")

    @classmethod
    def build(cls, chunks: Iterable[np.ndarray], folder: Path | None = None, threads: int | None = None) -> "Vectors":
        """An index of all chunks, each [n, d]; the mean is the first one's. ValueError where there is none."""
        made: Vectors | None = None
        try:
            for chunk in ahead(chunks):
                if made is None:
                    made = cls(chunk.shape[1], folder, threads)
                made.add(chunk)
        except BaseException:
            if made is not None:
                made.close()
            raise
        if made is None:
            raise ValueError("an index needs a chunk of vectors, which may be empty")
        return made

    def __len__(self) -> int:
        return self._count

    @property
    def bytes_in_memory(self) -> int:
        """Of all rows."""
        return sum(block.signs.nbytes + block.others.nbytes + block.scales.nbytes for block in self._blocks)

    def __enter__(self) -> "Vectors":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the temporary file and end the threads."""
        self._pool.shutdown()
        self._file.close()

    def add(self, chunk: np.ndarray) -> None:
        """Append rows, float16 or float32 [n, d]. ValueError for another shape or type."""
        if chunk.ndim != 2 or chunk.shape[1] != self.dimensions or chunk.dtype not in (np.float16, np.float32):
            raise ValueError(
                f"vectors of {chunk.dtype} {chunk.shape}; the index takes float16 or float32 [n, {self.dimensions}]"
            )
        if not len(chunk):
            return
        if not self._count:
            some = _unit(chunk[:BLOCK])
            self._mean = np.nan_to_num(some[np.isfinite(some).all(1)].sum(0) / np.float32(max(1, len(some))))
        while len(self._blocks) * BLOCK < self._count + len(chunk):
            self._blocks.append(_Block(self._words))
        starts = range(-(self._count % BLOCK), len(chunk), BLOCK)  # of the blocks, in the chunk
        list(self._pool.map(lambda start: self._encode(start, chunk), starts))
        self._count += len(chunk)  # searches see the rows from here on

    def search(self, query: np.ndarray, k: int, rows: Rows | None = None) -> tuple[Rows, Floats]:
        """The k rows nearest to a vector [d], and their cosines; fewer where there are fewer. Equals go by number.

        `rows` are the only ones to look at, fastest in ascending order. ValueError for a row that the index does not
        have, or a vector without direction.
        """
        unit = _unit(query[None])
        if rows is not None:
            rows = rows if (rows[1:] > rows[:-1]).all() else np.unique(rows)
            if len(rows) and rows[-1] >= self._count:
                raise ValueError(f"row {rows[-1]} of an index of {self._count} rows")
        count = self._count if rows is None else len(rows)
        if not np.isfinite(unit).all():
            raise ValueError("the vector to search for has no direction: zeros, or a number that is not finite")
        if k < 1 or not count:
            return np.empty(0, np.uint32), np.empty(0, np.float32)
        turned = self._turned(unit)
        wanted = max(EXACT_AT_LEAST, count // EXACT_SHARE, EXACT_PER_ANSWER * k)
        keep = max(SCANNED_AT_LEAST + count // SCANNED_SHARE, wanted)
        if rows is None or count > keep:
            rows = self._scanned(turned, rows, keep)
        if len(rows) > wanted:
            rows = self._ranked(turned, rows, wanted)
        cosines = _unit(self._read(rows)) @ unit[0]
        rows, cosines = rows[np.isfinite(cosines)], cosines[np.isfinite(cosines)]
        best = np.lexsort((rows, -cosines))[:k]
        return rows[best], cosines[best]

    def _turned(self, vectors: Floats) -> Floats:
        """Vectors [n, d] after the rotation, which keeps lengths: [words * 64, n]."""
        turned = np.zeros((self._words * 64, len(vectors)), np.float32)
        turned[: self.dimensions] = vectors.T
        size = 1 << (len(turned).bit_length() - 1)
        parts = [turned] if size == len(turned) else [turned[:size], turned[-size:]]
        for part, flips in zip(parts, self._flips, strict=False):
            part *= flips[:size, None] / np.float32(size**0.5)
            _hadamard(part)
        return turned

    def _encode(self, start: int, chunk: np.ndarray) -> None:
        """The part of a chunk that belongs to the block which begins at `start`."""
        block = self._blocks[(self._count + start) // BLOCK]
        for first in range(max(start, 0), min(start + BLOCK, len(chunk)), LANES):
            lanes = chunk[first : min(first + LANES, start + BLOCK)]
            unit = _unit(lanes)
            part = slice(first - start, first - start + len(unit))
            _pack(self._turned(unit - self._mean), block.signs[part], block.others[part], block.scales[part])
            vectors = (lanes if lanes.dtype == np.float16 else unit.astype(np.float16)).tobytes()
            if os.pwrite(self._file.fileno(), vectors, (self._count + first) * self.dimensions * 2) < len(vectors):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _scanned(self, turned: Floats, rows: Rows | None, keep: int) -> Rows:
        """About the `keep` best of the rows by their signs."""
        planes, whole = _query_planes(turned, SCAN_BITS)
        half = whole.sum() / 2
        per_score = float(BINS / 2 / (np.linalg.norm(whole) * STEP))  # rows are at most 2 from the mean

        def scan(block: _Block, places: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
            return _scan(planes, half, per_score, block.signs, block.scales, places, count)

        parts = self._by_block(rows)
        done = list(self._pool.map(scan, *zip(*((self._blocks[b], p, n) for b, p, n in parts), strict=True)))
        above = np.cumsum(np.sum([histogram for _, histogram in done], 0)[:0:-1])  # of bin 0 are rows without direction
        least = BINS - 1 - min(int(np.searchsorted(above, keep)), BINS - 2)
        found = [np.flatnonzero(bins >= least) for bins, _ in done]
        picked = [
            (places[at] if rows is not None else at) + block * BLOCK
            for (block, places, _), at in zip(parts, found, strict=True)
        ]
        return np.concatenate(picked).astype(np.uint32)

    def _ranked(self, turned: Floats, rows: Rows, keep: int) -> Rows:
        """The `keep` best of the rows by all planes, in order of their numbers."""
        planes, whole = _query_planes(turned, RANK_BITS)
        half = whole.sum() * (2**PLANES - 1) / 2

        def rank(block: _Block, places: np.ndarray, _: int) -> np.ndarray:
            return _rank(planes, half, block.signs, block.others, block.scales, places)

        parts = self._by_block(rows)
        scores = np.concatenate(
            list(self._pool.map(rank, *zip(*((self._blocks[b], p, n) for b, p, n in parts), strict=True)))
        )
        return np.sort(rows[np.argpartition(-scores, keep - 1)[:keep]])

    def _by_block(self, rows: Rows | None) -> Sequence[tuple[int, np.ndarray, int]]:
        """Each block that has rows: its number, the places of the sorted rows in it (empty for all) and their count."""
        if rows is None:
            every = np.empty(0, np.uint32)
            return [(b, every, min(BLOCK, self._count - b * BLOCK)) for b in range(-(-self._count // BLOCK))]
        ends = np.searchsorted(rows, np.arange(1, len(self._blocks) + 1, dtype=np.int64) * BLOCK)
        starts = (0, *ends[:-1])
        return [
            (b, rows[start:end] - np.uint32(b * BLOCK), int(end - start))
            for b, (start, end) in enumerate(zip(starts, ends, strict=True))
            if end > start
        ]

    def _read(self, rows: Rows) -> np.ndarray:
        """The vectors of these rows, float16 [n, d]."""
        size, file = self.dimensions * 2, self._file.fileno()
        places = [row * size for row in rows.tolist()]
        if hasattr(os, "posix_fadvise"):
            for place in places:  # a disk then reads many at once
                os.posix_fadvise(file, place, size, os.POSIX_FADV_WILLNEED)
        found = b"".join(os.pread(file, size, place) for place in places)
        return np.frombuffer(found, np.float16).reshape(len(rows), self.dimensions)


def ahead(chunks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """The chunks, each of which is read while the one before it is used."""
    every = iter(chunks)
    with ThreadPoolExecutor(1, "chunks") as thread:
        coming = thread.submit(next, every, None)
        while (chunk := coming.result()) is not None:
            coming = thread.submit(next, every, None)
            yield chunk


def of_lists(column: Any) -> tuple[npt.NDArray[np.int64], Floats]:
    """The rows of a column of lists of one length that are not null, int64[n], and their numbers, float32[n, d]."""
    column = column.combine_chunks()
    rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    values = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    return rows, values.reshape(len(rows), len(values) // max(1, len(rows)))


class _Block:
    """Bit planes of BLOCK rows."""

    def __init__(self, words: int):
        self.signs = np.empty((BLOCK, words), np.uint64)  # the highest plane
        self.others = np.empty((BLOCK, PLANES - 1, words), np.uint64)
        self.scales = np.empty(BLOCK, np.float32)  # what a step is in this row; NaN for a row without direction


def _unit(vectors: np.ndarray) -> Floats:
    """Float32 [n, d] of length 1; not finite where one has no direction."""
    with np.errstate(all="ignore"):
        if vectors.dtype == np.float16:
            wide = np.empty(vectors.shape, np.float32)
            _widen(np.ascontiguousarray(vectors).view(np.uint16), wide)
        else:
            wide = vectors / np.abs(vectors).max(1, keepdims=True)  # the squares of large numbers are infinite
        wide /= np.sqrt(np.einsum("ij,ij->i", wide, wide))[:, None]
    return wide.astype(np.float32, copy=False)


def _query_planes(turned: Floats, bits: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """A rotated query in whole numbers of so many bits, as planes uint64[bits, words] in two's complement and as is."""
    most, reach = 2 ** (bits - 1) - 1, 1 + bits / 2  # standard deviations: the more bits, the fewer are cut
    scaled = turned[:, 0] * (most / reach / max(turned.std(), 1e-30))
    whole = np.rint(np.clip(scaled, -most, most)).astype(np.int64)
    planes = (whole >> np.arange(bits)[:, None] & 1).astype(bool)
    return np.packbits(planes, axis=1, bitorder="little").view(np.uint64), whole


# Kernels --------------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _widen(halves: npt.NDArray[np.uint16], wide: Floats) -> None:
    """NumPy's own takes as long as all else that a row needs."""
    for i in range(len(halves)):
        for j in range(halves.shape[1]):
            wide[i, j] = from_half(halves[i, j])


@njit(nogil=True, cache=True)
def _hadamard(lanes: Floats) -> None:
    """Sums and differences of the coordinates [power of two, n], in place."""
    half = 1
    while half < len(lanes):
        for first in range(0, len(lanes), 2 * half):
            for i in range(first, first + half):
                for lane in range(lanes.shape[1]):
                    a, b = lanes[i, lane], lanes[i + half, lane]
                    lanes[i, lane], lanes[i + half, lane] = a + b, a - b
        half *= 2


@njit(nogil=True, cache=True)
def _pack(turned: Floats, signs: np.ndarray, others: np.ndarray, scales: np.ndarray) -> None:
    """Planes and scales of rows that are rotated side by side [words * 64, n]."""
    squares = np.zeros(turned.shape[1], np.float32)
    for i in range(len(turned)):
        for lane in range(len(squares)):
            squares[lane] += turned[i, lane] * turned[i, lane]
    scales[:] = np.sqrt(squares / np.float32(len(turned))) * np.float32(STEP)
    per_step = np.ones(len(squares), np.float32)
    for lane in range(len(squares)):
        if scales[lane] > 0:  # neither the mean itself nor NaN
            per_step[lane] = np.float32(1) / scales[lane]
    words = np.empty((PLANES, len(squares)), np.uint64)
    for word in range(signs.shape[1]):
        words[:] = 0
        for bit in range(64):
            for lane in range(len(squares)):
                at = turned[64 * word + bit, lane] * per_step[lane] + np.float32(8)
                level = np.uint64(np.int32(min(max(at, np.float32(0)), np.float32(15))))
                for plane in range(PLANES):
                    words[plane, lane] |= (level >> np.uint64(plane) & np.uint64(1)) << np.uint64(bit)
        signs[:, word] = words[PLANES - 1]
        for plane in range(PLANES - 1):
            others[:, plane, word] = words[plane]


@njit(nogil=True, cache=True)
def _product(planes: np.ndarray, of_row: np.ndarray) -> int:
    """The sum of the query's coordinates where a plane of a row has a bit."""
    total = 0
    for p in range(planes.shape[0]):
        bits = 0
        for word in range(planes.shape[1]):
            bits += count_bits(planes[p, word] & of_row[word])
        total += -(bits << p) if p == planes.shape[0] - 1 else bits << p
    return total


@njit(nogil=True, cache=True)
def _scan(
    planes: np.ndarray, half: float, per_score: float, signs: np.ndarray, scales: np.ndarray, places: Rows, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The bin of each row's score by its signs, int16[count], and how many rows each bin has."""
    bins, histogram = np.empty(count, np.int16), np.zeros(BINS, np.int32)
    for i in range(count):
        row = places[i] if len(places) else i
        score = (_product(planes, signs[row]) - half) * (scales[row] * np.float32(per_score)) + BINS // 2
        if score == score:
            bins[i] = min(max(score, 1), BINS - 1)
        else:
            bins[i] = 0
        histogram[bins[i]] += 1
    return bins, histogram


@njit(nogil=True, cache=True)
def _rank(
    planes: np.ndarray, half: float, signs: np.ndarray, others: np.ndarray, scales: np.ndarray, places: Rows
) -> Floats:
    """The score of each row by all planes; least where a row has no direction."""
    scores = np.empty(len(places), np.float32)
    for i in range(len(places)):
        row, total = places[i], _product(planes, signs[places[i]]) << (PLANES - 1)
        for plane in range(PLANES - 1):
            total += _product(planes, others[row, plane]) << plane
        scores[i] = (total - half) * scales[row]
        if scores[i] != scores[i]:
            scores[i] = -np.inf
    return scores
