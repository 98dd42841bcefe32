"""Which pairs of runs are trained on, and how much each weighs: by a condition, and by a column of numbers.

Both read columns of the side-cars, kept columns, and scores that `altalign score` has written beside the shards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data import columns
from altalign.data.columns import Known
from altalign.errors import UsageError
from altalign.filters import where
from altalign.filters.where import Condition
from altalign.settings.curate import CurateConfig

Why = Literal["where", "missing", "weight"]
# Why pairs are left out, in the words of the line that counts them.
WORDS: Mapping[Why, str] = {
    "where": "for which [data] where does not hold",
    "missing": "without a value",
    "weight": "whose weight is 0",
}

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Asked:
    """What the settings ask of pairs: `[data] where`, `weight_by` and `nulls`; empty: nothing."""

    where: str = ""
    weight_by: str = ""
    nulls: Literal["", "drop", "keep"] = ""

    @property
    def conditions(self) -> list[Condition]:
        """The condition, where there is one."""
        return [where.parsed(self.where)] if self.where else []

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        of_where = [name for each in self.conditions for name in each.columns()]
        return list(dict.fromkeys([*of_where, *([self.weight_by] if self.weight_by else [])]))

    def to_json(self) -> dict[str, str]:
        """For the index; empty where nothing is asked."""
        return {"where": self.where, "weight_by": self.weight_by, "nulls": self.nulls} if self.names else {}


class Choice(NamedTuple):
    """Of the n pairs of a shard: why each is left out (empty: it is not), and its weight, float64[n]."""

    why: npt.NDArray[np.str_]
    weights: npt.NDArray[np.float64]

    @property
    def stays(self) -> Mask:
        """Which pairs are trained on."""
        return self.why == ""


@dataclass(frozen=True)
class Chosen:
    """What is asked, with the columns of each run by its folder.

    `digests` has the SHA-256 of the manifest of each score that is read, by its folder, as it was when it was opened.
    """

    asked: Asked = Asked()
    known: Mapping[str, Known] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def opened(cls, asked: Asked, shards: Mapping[str, Sequence[tuple[str, str]]]) -> "Chosen":
        """Of runs, whose shards are given by name (without an ending) and the SHA-256 of the side-car.

        Raises:
            UsageError: a run has no such column, or one of another type; a score is not measured on all shards; or a
                column may be null, and nothing is said of that.
        """
        if not asked.names:
            return cls(asked)
        known = {folder: _known(folder, asked) for folder in shards}
        for folder, of in known.items():
            columns.check_measured(shards[folder], of.scores_of(asked.names).values())
        folders = [of.folder for each in known.values() for of in each.scores_of(asked.names).values()]
        manifests = {folder: storage.read_bytes(storage.join(folder, "manifest.json")) for folder in folders}
        return cls(asked, known, {folder: sha256(data).hexdigest() for folder, data in manifests.items()})

    @property
    def of_sidecar(self) -> list[str]:
        """The columns of the side-cars that are read."""
        return columns.of_sidecar(self.asked.names)

    def of(self, folder: str, shard: str, rows: pa.Table) -> Choice:
        """The choice among the pairs of a shard; `rows` are of its side-car, with `key` and `of_sidecar`.

        Raises:
            UnreadableError: scores are damaged, or of other pairs.
            UsageError: a weight is negative, or missing.
        """
        why, weights = np.full(len(rows), "", "<U8"), np.ones(len(rows))
        if not self.asked.names:
            return Choice(why, weights)
        table = columns.joined(rows, shard, self.asked.names, self.known[folder].scores)
        for found in where.holds(self.asked.conditions, table):
            why[~found.fill_null(True).to_numpy(zero_copy_only=False)] = "where"  # noqa: FBT003
            if self.asked.nulls != "keep":
                why[~found.is_valid().to_numpy(zero_copy_only=False)] = "missing"
        if self.asked.weight_by:
            weights = self._weights(folder, shard, table, why)
        return Choice(why, weights)

    def _weights(self, folder: str, shard: str, table: pa.Table, why: npt.NDArray[np.str_]) -> npt.NDArray[np.float64]:
        """The weights of a shard's pairs; notes in `why` those that have none."""
        name = self.asked.weight_by
        column = table[name].combine_chunks()
        is_there = column.is_valid().to_numpy(zero_copy_only=False)
        weights = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        here = f"[data] weight_by: {name} in {storage.join(folder, 'shards', shard)}"
        stays = why == ""
        if self.asked.nulls == "keep" and (stays & ~is_there).any():
            raise UsageError(f'{here}: no value, and nulls = "keep" gives no weight; give "drop"')
        if (wrong := stays & ~(weights >= 0) | np.isinf(weights)).any():
            raise UsageError(f"{here}: {weights[wrong][0]:g}; give a column of numbers that are 0 or more")
        why[stays & ~is_there] = "missing"
        why[stays & is_there & (weights == 0)] = "weight"
        return weights


def _known(folder: str, asked: Asked) -> Known:
    """The columns of a run, checked against what is asked."""
    known = columns.known(folder, _kept(folder) if any(name.startswith(columns.EXTRA) for name in asked.names) else [])
    try:
        for condition in asked.conditions:
            where.check(condition, known.types)
    except where.WhereError as error:
        raise UsageError(f"[data] where: {folder}: {error}") from None
    if asked.weight_by:
        try:
            kind = where.kind_of(asked.weight_by, known.types)
        except where.WhereError as error:
            raise UsageError(f"[data] weight_by: {folder}: {error}") from None
        if kind != "a number":
            raise UsageError(f"[data] weight_by: {folder}: {asked.weight_by} is {kind}; give a column of numbers")
    of_where = [name for each in asked.conditions for name in each.columns(but_of_nulls=True)]
    missing = known.missing([*of_where, *([asked.weight_by] if asked.weight_by else [])])
    if missing and not asked.nulls:
        raise UsageError(f'{folder}: {missing}; say what becomes of those: [data] nulls = "drop", or "keep"')
    return known


def _kept(folder: str) -> list[str]:
    """The columns that a run's inputs keep; of tars and tables none."""
    path = storage.join(folder, "config.toml")
    if not storage.exists(path):
        return []
    return [name for of in CurateConfig.load(path, []).input for name in of.keep_columns]
