"""The columns of a run that decisions are made by: those of side-cars, kept columns, and scores."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from altalign.data import scores as score_files
from altalign.data.schema import SAMPLE
from altalign.data.scores import Score
from altalign.data.shards import NULLABLE
from altalign.errors import UnreadableError, UsageError

EXTRA = "extra."  # begins the name of a kept column; its values are text
TYPES = {
    str(kind): kind
    for kind in (pa.string(), pa.bool_(), pa.float32(), pa.float64(), pa.int8(), pa.int16(), pa.int32(), pa.int64())
}


@dataclass(frozen=True)
class Known:
    """The columns of a run by name: types, the score of each, and in how many samples a score has no value."""

    types: Mapping[str, pa.DataType]
    scores: Mapping[str, Score]
    nulls: Mapping[str, int]

    def missing(self, names: Iterable[str]) -> str:
        """Says of the first of some columns that may be null that it is; empty: none may be."""
        for name in names:
            if missing := self.nulls.get(name, 0):
                return f"{name} has no value in {missing:,} samples"
            if name in NULLABLE or name.startswith(EXTRA):
                return f"{name} may have no value"
        return ""

    def scores_of(self, names: Iterable[str]) -> dict[str, Score]:
        """The scores that these columns are of, by name."""
        return {self.scores[name].name: self.scores[name] for name in names if name in self.scores}


def known(folder: str, kept: Iterable[str]) -> Known:
    """The columns of a run, whose inputs keep columns of these names."""
    types = {field.name: field.type for field in SAMPLE if not pa.types.is_nested(field.type)}
    types |= {f"{EXTRA}{name}": pa.string() for name in kept}
    scores, nulls = dict[str, Score](), dict[str, int]()
    for score in score_files.all_of(folder):
        for name, kind in score.columns.items():
            if kind in TYPES:  # no embedding
                types[name], scores[name] = TYPES[kind], score
        nulls |= score.sums()[1]
    return Known(types, scores, nulls)


def check_measured(shards: Sequence[tuple[str, str]], scores: Iterable[Score]) -> None:
    """Refuse scores that lack shards (name without an ending, SHA-256 of its side-car), or are of other ones."""
    for score in scores:
        if missing := [name for name, sidecar_sha256 in shards if not score.has(name, sidecar_sha256)]:
            raise UsageError(
                f"{score.folder}: {len(missing):,} of {len(shards):,} shards are not measured, such as {missing[0]}; "
                "run `altalign score` with the same settings, which measures those alone"
            )


def of_sidecar(names: Iterable[str]) -> list[str]:
    """The columns of the side-car that are read for these columns."""
    own = [name for name in names if name in SAMPLE.names]
    return list(dict.fromkeys([*own, *(["extra"] if any(name.startswith(EXTRA) for name in names) else [])]))


def joined(rows: pa.Table, shard: str, names: Sequence[str], scores: Mapping[str, Score]) -> pa.Table:
    """A shard's samples with these columns beside those of its side-car, in the order of the shard.

    `rows` has of the side-car `of_sidecar(names)`, and `key` where a name is of a score; `scores` are by the names of
    their columns. UnreadableError where a file is damaged, or has other keys than the shard.
    """
    for score in {scores[name].name: scores[name] for name in names if name in scores}.values():
        of_score = [name for name in dict.fromkeys(names) if name in score.columns]
        values = score.values(shard, ["key", *of_score])
        if not values["key"].equals(rows["key"]):
            raise UnreadableError(f"{score.path(shard)}: its keys are not those of the shard; measure it again")
        for name in of_score:
            rows = rows.append_column(name, values[name])
    for kept in (name.removeprefix(EXTRA) for name in dict.fromkeys(names) if name.startswith(EXTRA)):
        parsed = [None if each is None else json.loads(each).get(kept) for each in rows["extra"].to_pylist()]
        texts = [each if each is None or isinstance(each, str) else json.dumps(each) for each in parsed]
        rows = rows.append_column(f"{EXTRA}{kept}", pa.array(texts, pa.string()))
    return rows
