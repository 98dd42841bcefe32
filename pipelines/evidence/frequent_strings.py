"""What the audit shows by name of what the tables know by hash: the most shared texts, the most captioned images, n-grams at the vocabulary's edge.

`tables` chooses hashes, `judge` comes upon their strings while it reads the pool once more: `audit/frequent.parquet`,
`audit/edge_ngrams.parquet`.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit

from altalign import storage
from altalign.audit_tables import EDGE_NGRAMS, FREQUENT
from altalign.dedup.hash_tables import log2_counts
from altalign.filters import words
from altalign.pipelines.run import outputs
from altalign.pipelines.run.units import Run

MOST = 50  # of texts, and of images
PER_SIDE = 24  # n-grams, of those in the vocabulary and of those that are not
CHARACTERS_AT_MOST = 1_000  # of a string that is kept

_SIEVE_BITS = 16


# What is wanted -------------------------------------------------------------------------------------------------------


class Top:
    """Entries of the largest counts, of equal ones those of the smallest hashes."""

    def __init__(self, most: int):
        self._most, self.entries = most, np.empty((0, 2), np.uint64)

    def add(self, entries: np.ndarray) -> None:
        """Let (hash, count) compete: uint64[n, 2], sorted by hash, above those of earlier calls."""
        if len(entries) > self._most:
            counts = entries[:, 1]
            bound = np.partition(counts, len(counts) - self._most)[len(counts) - self._most]
            equal = np.flatnonzero(counts == bound)[: self._most]  # enough of them, whatever else there is
            entries = entries[np.sort(np.r_[np.flatnonzero(counts > bound), equal])]
        every = np.concatenate([self.entries, entries])
        self.entries = every[np.argsort(~every[:, 1], kind="stable")][: self._most]  # ~: unsigned, largest first


class Edges:
    """N-grams next to the vocabulary's edge: in it the rarest, outside the most frequent."""

    def __init__(self, threshold: int):
        self._threshold, self._inside, self._outside = np.uint64(threshold), Top(PER_SIDE), Top(PER_SIDE)

    def add(self, entries: np.ndarray) -> None:
        """Let (hash, count) compete: uint64[n, 2], sorted by hash, above those of earlier calls."""
        is_in = entries[:, 1] >= self._threshold
        inside = entries[is_in]
        inside[:, 1] = ~inside[:, 1]
        self._inside.add(inside)
        self._outside.add(entries[~is_in])

    def to_json(self) -> list[list[int]]:
        """Hash, count and whether the vocabulary has it, as 0 or 1."""
        return [
            *([hash_, int(~np.uint64(count)), 1] for hash_, count in self._inside.entries.tolist()),
            *([hash_, count, 0] for hash_, count in self._outside.entries.tolist()),
        ]


def write_wanted(run: Run, ngrams: Edges, texts: Top, images: Top) -> None:
    """What `judge` looks for. `judge` rests on `tables`, so it is made anew with them."""
    storage.write_json(
        _wanted_path(run),
        {"ngrams": ngrams.to_json(), "texts": texts.entries.tolist(), "images": images.entries.tolist()},
    )


def _wanted_path(run: Run) -> str:
    return run.work("tables", "wanted.json")


class Wanted(NamedTuple):
    """What is looked for."""

    ngrams: np.ndarray  # uint64[n], sorted
    # uint64[1024], which the CPU's nearest cache holds: of 65,536 beginnings a bit each, whether a wanted n-gram has it
    sieve: np.ndarray
    texts: np.ndarray  # uint64[n], sorted
    texts_at_least: int  # the smallest count of them
    images: np.ndarray  # the same of images
    images_at_least: int

    @classmethod
    def of(cls, run: Run) -> "Wanted":
        """What a run looks for; loaded once a process."""
        path = _wanted_path(run)
        return _wanted(storage.absolute(path), storage.stamp(path))


@lru_cache(maxsize=1)
def _wanted(path: str, _changed: storage.Stamp) -> Wanted:
    facts = storage.read_json(path)
    ngrams = np.sort(np.array([entry[0] for entry in facts["ngrams"]], np.uint64))
    of: dict[str, Any] = {}
    for kind in ("texts", "images"):
        of[kind] = np.sort(np.array([entry[0] for entry in facts[kind]], np.uint64))
        of[f"{kind}_at_least"] = min((entry[1] for entry in facts[kind]), default=2**62)
    return Wanted(ngrams, sieve_of(ngrams), **of)


def sieve_of(ngrams: np.ndarray) -> np.ndarray:
    """The sieve of these n-grams (uint64[n])."""
    sieve, beginnings = np.zeros(1 << _SIEVE_BITS - 6, np.uint64), ngrams >> np.uint64(64 - _SIEVE_BITS)
    np.bitwise_or.at(sieve, beginnings >> np.uint64(6), np.uint64(1) << (beginnings & np.uint64(63)))
    return sieve


# What is seen ---------------------------------------------------------------------------------------------------------


class Seen:
    """The strings that a unit has come upon, by hash: the first of each."""

    def __init__(self, wanted: Wanted):
        self._wanted = wanted
        self._found: dict[str, dict[int, str]] = {"ngrams": {}, "texts": {}, "images": {}}

    def captions(self, captions: pa.StringArray, found: words.Scan, images_per_text: np.ndarray) -> None:
        """Look at captions: their n-grams and hashes, and on how many images each is (int64[n], 0 within the limit)."""
        wanted, strings = self._wanted, self._found["ngrams"]
        if len(strings) < len(wanted.ngrams):
            places = _places(found.ngrams, wanted.sieve, wanted.ngrams)
            for row in np.unique(np.searchsorted(found.ends, places, side="right")).tolist():
                ngrams = words.ngrams_of(captions[row].as_py())
                of_row = found.ngrams[found.ends[row] - len(ngrams) : found.ends[row]]
                for number in np.flatnonzero(np.isin(of_row, wanted.ngrams)).tolist():
                    strings.setdefault(int(of_row[number]), ngrams[number][:CHARACTERS_AT_MOST])
        self._look(
            "texts", np.flatnonzero(images_per_text >= wanted.texts_at_least), found.texts, wanted.texts, captions
        )

    def images(self, urls: pa.StringArray, hashes: np.ndarray, texts_per_image: np.ndarray) -> None:
        """Look at images: URLs, hashes (uint64[n]), and how many texts each has (int64[n], 0 within the limit)."""
        self._look(
            "images", np.flatnonzero(texts_per_image >= self._wanted.images_at_least), hashes, self._wanted.images, urls
        )

    def _look(
        self, kind: str, rows: np.ndarray, hashes: np.ndarray, wanted: np.ndarray, values: pa.StringArray
    ) -> None:
        strings = self._found[kind]
        if not len(rows) or len(strings) == len(wanted):
            return
        first, at = np.unique(hashes[rows], return_index=True)
        for number in np.flatnonzero(np.isin(first, wanted)).tolist():
            if int(first[number]) not in strings and (value := values[int(rows[at[number]])].as_py()) is not None:
                strings[int(first[number])] = value[:CHARACTERS_AT_MOST]

    def to_json(self) -> dict[str, list[list[Any]]]:
        """For a unit's file: of each kind, hash and string."""
        return {
            kind: [[hash_, value] for hash_, value in sorted(strings.items())] for kind, strings in self._found.items()
        }


@njit(nogil=True, cache=True)
def _places(ngrams: np.ndarray, sieve: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where wanted n-grams are: eight at a time are asked of the sieve, without a branch for each."""
    places = [np.int64(0) for _ in range(0)]  # numba learns the type of its items
    for begin in range(0, len(ngrams), 8):
        end, may_be = min(begin + 8, len(ngrams)), np.uint64(0)
        for at in range(begin, end):
            beginning = ngrams[at] >> np.uint64(64 - _SIEVE_BITS)
            may_be |= sieve[beginning >> np.uint64(6)] >> (beginning & np.uint64(63))
        if may_be & np.uint64(1):
            for at in range(begin, end):
                if np.any(wanted == ngrams[at]):
                    places.append(np.int64(at))
    return np.array(places, np.int64)


class Strings:
    """What all units have seen: of each hash the first string."""

    def __init__(self) -> None:
        self.of: dict[str, dict[int, str]] = {"ngrams": {}, "texts": {}, "images": {}}

    def add(self, part: dict[str, list[list[Any]]]) -> None:
        """Take in what the next unit in input order has in its file."""
        for kind, entries in part.items():
            for hash_, value in entries:
                self.of[kind].setdefault(hash_, value)


def write(run: Run, found: Strings) -> None:
    """`audit/frequent.parquet` and `audit/edge_ngrams.parquet`."""
    strings = found.of
    facts = storage.read_json(_wanted_path(run))
    frequent = [
        {"kind": kind.removesuffix("s"), "value": strings[kind][hash_], "count": count}
        for kind in ("texts", "images")
        for hash_, count in facts[kind]
        if hash_ in strings[kind]  # an image in hand may have no URL
    ]
    edges = [
        (strings["ngrams"][hash_], count, bool(is_in))
        for hash_, count, is_in in facts["ngrams"]
        if hash_ in strings["ngrams"]
    ]
    logs = log2_counts(np.array([count for _, count, _ in edges], np.int64))
    rows = [
        {"ngram": ngram, "count": count, "rarest_log2": int(log), "is_in": is_in}
        for (ngram, count, is_in), log in zip(edges, logs, strict=True)
    ]
    for table, entries in ((FREQUENT, frequent), (EDGE_NGRAMS, rows)):
        outputs.write_audit(run, table, pa.Table.from_pylist(entries, schema=table.schema))
