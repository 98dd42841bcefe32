"""Concept balance: entries in captions are counted shard by shard, and then lots are drawn by key."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data.audit_tables import BALANCED
from altalign.data.reasons import DropReason, Verdict, drop_where
from altalign.errors import UsageError
from altalign.filters import concepts
from altalign.filters.concepts import Entries, Numbers
from altalign.pipelines.run import outputs
from altalign.pipelines.run.shard_tables import CHOSEN, CONCEPTS
from altalign.pipelines.run.units import Marks, Run
from altalign.storage import arrays, parquet

SHOWN_AT_MOST = 10_000  # entries whose counts are written
_COUNTS = "select/concepts/counts"  # in work/: of all shards


@dataclass(frozen=True)
class Balance:
    """What a balance is by."""

    file: str  # of entries, one a line
    digest: str  # its SHA-256
    limit: int  # captions that an entry is thinned to, about; 0: `tail` decides
    tail: float  # share of all matches that entries below the limit have
    seed: int  # of the lots

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return {"entries": self.digest, "limit": self.limit, "tail": self.tail, "seed": self.seed}


def opened(file: str, *, limit: int, tail: float, seed: int) -> Balance:
    """A balance by the entries of a file."""
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
    return Entries.from_lines(_lines(file))


def _lines(file: str) -> pa.StringArray:
    try:
        return pa.array(storage.read_bytes(file).decode("utf-8-sig").splitlines(), pa.string())
    except UnicodeDecodeError as error:
        raise UsageError(f"--balance {file}: not UTF-8 (byte {error.start}); save it as UTF-8") from None


def count(balance: Balance, run: Run, marks: Marks[Any], name: str, captions: pa.StringArray) -> int:
    """Write how often entries are in the captions of a shard, pairs int64[n, 2]; returns the sum.

    `marks` are `CONCEPTS` of all captions, and `CHOSEN` of those that stay.
    """
    entries = _entries(balance.file, balance.digest)
    counts = np.bincount(concepts.match(captions, entries).entries, minlength=len(entries.hashes))
    occurring = np.flatnonzero(counts)
    arrays.save(run.work(marks.step, f"{name}.concepts"), np.column_stack([occurring, counts[occurring]]))
    return int(counts.sum())


def _sum(balance: Balance, run: Run, marks: Marks[Any]) -> Numbers:
    """The counts of all shards, int64[entries]."""
    counts = np.zeros(len(_entries(balance.file, balance.digest).hashes), np.int64)
    for name in run.finished(marks.step):
        entry, number = arrays.read(run.work(marks.step, f"{name}.concepts")).T
        counts[entry] += number
    return counts


def total(balance: Balance, run: Run) -> int:
    """Write the counts of all shards together; returns the limit."""
    counts = _sum(balance, run, CONCEPTS)
    arrays.save(run.work(_COUNTS), counts)
    return balance.limit or concepts.limit_of(counts, balance.tail)


@lru_cache(maxsize=1)
def _total(path: str, _stamp: storage.Stamp) -> Numbers:
    return arrays.read(path)


def verdict(balance: Balance, run: Run, limit: int, rows: pa.Table) -> Verdict:
    """The verdict on n samples: those whose lot is not drawn go."""
    counts = _total(path := run.work(_COUNTS), storage.stamp(path))
    matches = concepts.match(parquet.strings(rows, "caption"), _entries(balance.file, balance.digest))
    stays = concepts.probabilities(matches, counts, limit, len(rows))
    keys: npt.NDArray[np.bytes_] = np.array(parquet.values(rows, "key"), "S32")
    return drop_where(pa.array(concepts.coins(keys, balance.seed) >= stays), DropReason.OUT_OF_BALANCE)


def conclude(balance: Balance, run: Run) -> None:
    """Write `audit/balanced.parquet`: the entries in most captions, before and after."""
    before, after = arrays.read(run.work(_COUNTS)), _sum(balance, run, CHOSEN)
    most = np.argsort(-before, kind="stable")[:SHOWN_AT_MOST]
    most = most[before[most] > 0]
    lines = _lines(balance.file).take(_entries(balance.file, balance.digest).number[most])
    outputs.write_audit(run, BALANCED, pa.table([lines, before[most], after[most]], schema=BALANCED.schema))
