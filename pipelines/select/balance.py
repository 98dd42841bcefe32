"""Concept balance: entries in captions are counted shard by shard, and then lots are drawn by key."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.errors import UsageError
from altalign.filters import concepts
from altalign.filters.concepts import Entries, Numbers
from altalign.pipelines.files import arrays, parquet
from altalign.pipelines.run.artefacts.selected import BALANCE, CONCEPTS, BalanceFacts, CountedFacts
from altalign.pipelines.run.units import Run, Unit
from altalign.reasons import DropReason, Verdict, drop_where


@dataclass(frozen=True)
class Balance:
    """What is asked for.

    Attributes:
        file: entries, one a line.
        digest: SHA-256 of the file.
        limit: captions that an entry is thinned to, about; 0: `tail` says it.
        tail: share of all matches that entries below the limit have.
        seed: of the lots.
    """

    file: str
    digest: str
    limit: int
    tail: float
    seed: int

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return {"entries": self.digest, "limit": self.limit, "tail": self.tail, "seed": self.seed}


def asked(file: str, *, limit: int, tail: float, seed: int) -> Balance:
    """A balance by the entries of a file.

    Raises:
        UsageError: the file cannot be read, has no entry, or not exactly one of limit and tail is given.
    """
    if (limit > 0) == (tail > 0) or not 0 <= tail <= 1:
        raise UsageError("--balance: give --balance-limit CAPTIONS, or --balance-tail SHARE from 0 to 1")
    try:
        data = storage.read_bytes(file)
    except OSError as error:
        raise UsageError(f"--balance {file}: cannot be read ({error.strerror or error})") from None
    balance = Balance(file, hashlib.sha256(data).hexdigest(), limit, tail, seed)
    if not len(_entries(file, balance.digest).hashes):
        raise UsageError(f"--balance {file}: no entry is in it; give words or titles, one a line")
    return balance


@lru_cache(maxsize=2)
def _entries(file: str, _digest: str) -> Entries:
    try:
        lines = storage.read_bytes(file).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"--balance {file}: not UTF-8 (byte {error.start}); save it as UTF-8") from None
    return Entries.of(pa.array(lines, pa.string()))


def count(balance: Balance, run: Run, unit: Unit, captions: pa.StringArray) -> CountedFacts:
    """Count the entries of a shard's captions: pairs of entry and count, int64[n, 2]."""
    entries = _entries(balance.file, balance.digest)
    counts = np.bincount(concepts.match(captions, entries).entries, minlength=len(entries.hashes))
    there = np.flatnonzero(counts)
    arrays.save(run.work(CONCEPTS.step, f"{unit['name']}.counts"), np.column_stack([there, counts[there]]))
    return CountedFacts(rows=[int(counts.sum())])


def total(balance: Balance, run: Run, _unit: Unit) -> BalanceFacts:
    """Add up the counts of all shards, and find the limit."""
    counts = np.zeros(len(_entries(balance.file, balance.digest).hashes), np.int64)
    for name in run.finished(CONCEPTS.step):
        entry, number = arrays.read(run.work(CONCEPTS.step, f"{name}.counts")).T
        counts[entry] += number
    arrays.save(_counts(run), counts)
    limit = balance.limit or concepts.limit_of(counts, balance.tail)
    return BalanceFacts(limit=limit, entries=int((counts > 0).sum()), matches=int(counts.sum()))


def _counts(run: Run) -> str:
    return run.work(BALANCE.step, "counts")


@lru_cache(maxsize=1)
def _all_counts(path: str, _matches: int) -> Numbers:
    return arrays.read(path)


def verdict(balance: Balance, run: Run, rows: pa.Table) -> Verdict:
    """The verdict on n samples: those whose lot is not drawn go."""
    facts = run.facts_of(BALANCE, "0")
    found = concepts.match(parquet.strings(rows, "caption"), _entries(balance.file, balance.digest))
    stays = concepts.probabilities(found, _all_counts(_counts(run), facts.matches), facts.limit, len(rows))
    keys: npt.NDArray[np.bytes_] = np.array(parquet.values(rows, "key"), "S32")
    return drop_where(pa.array(concepts.coins(keys, balance.seed) >= stays), DropReason.OUT_OF_BALANCE)
