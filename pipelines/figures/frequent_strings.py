"""The most shared texts, the most captioned images, and the n-grams at the vocabulary's edge, for the audit.

`tables` knows them by hash and chooses them; `judge` finds their strings while it reads the pool once more. They are
written to `audit/frequent.parquet` and `audit/edge_ngrams.parquet`.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data.audit_tables import EDGE_NGRAMS, FREQUENT
from altalign.dedup.hash_tables import log2_counts
from altalign.filters import one_caption, words
from altalign.pipelines.run import outputs
from altalign.pipelines.run.text_tables import WANTED_HASHES
from altalign.pipelines.run.units import Run

MOST = 50  # texts, and as many images
PER_SIDE = 24  # n-grams in the vocabulary, and as many outside it
CHARACTERS_AT_MOST = 1_000  # so many of each string are kept

Hashes = npt.NDArray[np.uint64]  # uint64[n]
Entries = npt.NDArray[np.uint64]  # (hash, count): uint64[n, 2]

_SIEVE_BITS = 16
_BELOW_SIEVE = np.uint64(64 - _SIEVE_BITS)


# What is wanted -------------------------------------------------------------------------------------------------------


class Top:
    """The entries with the largest counts; where counts are equal, those with the smallest hashes."""

    def __init__(self, most: int):
        self._most, self.entries = most, np.empty((0, 2), np.uint64)

    def add(self, entries: Entries) -> None:
        """Let entries compete; they are sorted by hash, and above those of earlier calls."""
        if len(entries) > self._most:
            counts = entries[:, 1]
            bound = np.partition(counts, len(counts) - self._most)[len(counts) - self._most]
            equal = np.flatnonzero(counts == bound)[: self._most]  # enough, whatever else there is
            entries = entries[np.sort(np.r_[np.flatnonzero(counts > bound), equal])]
        every = np.concatenate([self.entries, entries])
        self.entries = every[np.argsort(~every[:, 1], kind="stable")][: self._most]  # ~: unsigned, largest first


class Edges:
    """The n-grams at the vocabulary's edge: the rarest in it and the most frequent outside it."""

    def __init__(self, threshold: int):
        self._threshold, self._inside, self._outside = np.uint64(threshold), Top(PER_SIDE), Top(PER_SIDE)

    def add(self, entries: Entries) -> None:
        """Let entries compete; they are sorted by hash, and above those of earlier calls."""
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
    """Write what `judge` looks for; it lies with the tables, which are always made before `judge`."""
    found = {"ngrams": ngrams.to_json(), "texts": texts.entries.tolist(), "images": images.entries.tolist()}
    storage.write_json(wanted_path(run), found)


def wanted_path(run: Run) -> str:
    """The file of the hashes that are looked for."""
    return WANTED_HASHES.path(run)


class WantedHashes(NamedTuple):
    """The hashes that are looked for, each array sorted; and the smallest count among the texts and the images."""

    ngrams: Hashes
    sieve: npt.NDArray[np.bool_]  # bool[65536]: whether a wanted n-gram begins with these 16 bits
    texts: Hashes
    texts_at_least: int
    images: Hashes
    images_at_least: int

    @classmethod
    def of(cls, run: Run) -> "WantedHashes":
        """The hashes that a run looks for; loaded once a process."""
        path = wanted_path(run)
        return _wanted(storage.absolute(path), storage.stamp(path))


@lru_cache(maxsize=1)
def _wanted(path: str, _changed: storage.Stamp) -> WantedHashes:
    facts = storage.read_json(path)
    ngrams = np.sort(np.array([entry[0] for entry in facts["ngrams"]], np.uint64))
    texts, images = (np.sort(np.array([entry[0] for entry in facts[kind]], np.uint64)) for kind in ("texts", "images"))
    texts_at_least, images_at_least = (
        min((entry[1] for entry in facts[kind]), default=2**62) for kind in ("texts", "images")
    )
    return WantedHashes(ngrams, sieve_of(ngrams), texts, texts_at_least, images, images_at_least)


def sieve_of(ngrams: Hashes) -> npt.NDArray[np.bool_]:
    """The sieve of these n-grams: bool[65536]."""
    sieve = np.zeros(1 << _SIEVE_BITS, np.bool_)
    sieve[ngrams >> _BELOW_SIEVE] = True
    return sieve


# What is seen ---------------------------------------------------------------------------------------------------------


class Seen:
    """The wanted strings that a unit has found, by hash: the first of each."""

    def __init__(self, wanted: WantedHashes):
        self._wanted = wanted
        self._found: dict[str, dict[int, str]] = {"ngrams": {}, "texts": {}, "images": {}}

    def captions(self, captions: pa.StringArray, found: words.Scan, images_per_text: npt.NDArray[np.int64]) -> None:
        """Look at n captions, with their n-grams and hashes; `images_per_text` is 0 within the limit, int64[n]."""
        wanted, strings = self._wanted, self._found["ngrams"]
        if len(strings) < len(wanted.ngrams):
            places = np.flatnonzero(wanted.sieve[found.ngrams >> _BELOW_SIEVE])
            places = places[np.isin(found.ngrams[places], wanted.ngrams)]
            for row in np.unique(np.searchsorted(found.ends, places, side="right")).tolist():
                ngrams = one_caption.ngrams_of(captions[row].as_py())
                of_row = found.ngrams[found.ends[row] - len(ngrams) : found.ends[row]]
                for number in np.flatnonzero(np.isin(of_row, wanted.ngrams)).tolist():
                    strings.setdefault(int(of_row[number]), ngrams[number][:CHARACTERS_AT_MOST])
        is_shared = images_per_text >= wanted.texts_at_least
        self._look("texts", is_shared, found.texts, wanted.texts, captions)

    def images(self, urls: pa.StringArray, hashes: Hashes, texts_per_image: npt.NDArray[np.int64]) -> None:
        """Look at n images, with their hashes; `texts_per_image` is 0 within the limit, int64[n]."""
        self._look("images", texts_per_image >= self._wanted.images_at_least, hashes, self._wanted.images, urls)

    def _look(
        self, kind: str, candidates: npt.NDArray[np.bool_], hashes: Hashes, wanted: Hashes, values: pa.StringArray
    ) -> None:
        strings, rows = self._found[kind], np.flatnonzero(candidates)
        if not len(rows) or len(strings) == len(wanted):
            return
        first, at = np.unique(hashes[rows], return_index=True)
        for number in np.flatnonzero(np.isin(first, wanted)).tolist():
            if int(first[number]) not in strings and (value := values[int(rows[at[number]])].as_py()) is not None:
                strings[int(first[number])] = value[:CHARACTERS_AT_MOST]

    def to_json(self) -> dict[str, list[list[object]]]:
        """The hashes and strings of each kind, for a unit's file."""
        return {kind: [[*found] for found in sorted(strings.items())] for kind, strings in self._found.items()}


class Strings:
    """The wanted strings that all units have found, by hash: the first of each."""

    def __init__(self) -> None:
        self.of: dict[str, dict[int, str]] = {"ngrams": {}, "texts": {}, "images": {}}

    def add(self, part: Mapping[str, list[tuple[int, str]]]) -> None:
        """Add the file of the next unit in input order."""
        for kind, entries in part.items():
            for hash_, value in entries:
                self.of[kind].setdefault(hash_, value)


def write(run: Run, found: Strings) -> None:
    """Write `audit/frequent.parquet` and `audit/edge_ngrams.parquet`."""
    strings, facts = found.of, storage.read_json(wanted_path(run))
    frequent = [
        {"kind": kind.removesuffix("s"), "value": strings[kind][hash_], "count": count}
        for kind in ("texts", "images")
        for hash_, count in facts[kind]
        if hash_ in strings[kind]  # an image in hand may have no URL
    ]
    edges = [
        {
            "ngram": strings["ngrams"][hash_],
            "count": count,
            "rarest_log2": int(log2_counts(np.array([count], np.int64))[0]),
            "is_in": bool(is_in),
        }
        for hash_, count, is_in in facts["ngrams"]
        if hash_ in strings["ngrams"]
    ]
    outputs.write_audit(run, FREQUENT, frequent)
    outputs.write_audit(run, EDGE_NGRAMS, edges)
