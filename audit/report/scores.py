"""Scores of a run: how each is distributed, two of them together, samples along their range, languages.

Read are the scores beside the shards, of what the run has, and the values of dropped rows, of what a selection did not
take: of a large run those of some shards, at even distances.
"""

import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as pj

from altalign import scores, storage
from altalign.audit import run_parquet
from altalign.audit.report import files, moved
from altalign.audit.report.distributions import Bin, Distribution, Names, Threshold
from altalign.audit.report.galleries import Card, Galleries, Picture
from altalign.audit.run_folder import RunFolder
from altalign.columns import TYPES
from altalign.errors import UnreadableError
from altalign.filters import pixels, thumbnails, where
from altalign.filters.where import Compared, Name
from altalign.pages.page_text import shown
from altalign.reasons import Stage
from altalign.scores import Score

FILES_AT_MOST = 256  # shards, and files of dropped rows, that are read
BINS = 40
LABELS_AT_MOST = 30
COLUMNS_WITH_PICTURES = 6
NEAR = 6  # samples on each side of a threshold
_OF_ANCESTOR = re.compile(r"[0-9a-f]{8}-")
_NAMES = Names("samples", "in the shards", "not selected")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Named:
    """A score, with what it rests on in words."""

    name: str
    kind: str
    columns: list[str]
    rests_on: str
    digest: str


@dataclass(frozen=True)
class Joint:
    """How many samples two scores have together, by tenths of each: `counts[tenth of down][tenth of across]`."""

    across: str
    down: str
    across_from: list[str]
    down_from: list[str]
    counts: list[list[int]]
    correlation: float


@dataclass(frozen=True)
class Shelf:
    """Samples of a column: where in its range each is, and the sample."""

    column: str
    about: str
    cards: list[tuple[str, Card]]


@dataclass(frozen=True)
class Language:
    """Samples of a label: how many the selection received and kept, and how many fail each of its rules."""

    name: str
    received: int
    kept: int
    lost: dict[str, int]


@dataclass(frozen=True)
class Scores:
    """The scores of a run.

    Attributes:
        named: the scores.
        asked: the condition of the selection that made the run, or "".
        distributions: of each column.
        joint: of two columns; None where there are not two.
        shelves: samples along the range of columns, and around thresholds.
        languages: of the first score of languages; empty without one.
        moved: what other thresholds of the selection would keep; None where there are none, or not all was read.
        files: how many shards were read, of how many.
    """

    named: list[Named]
    asked: str
    distributions: list[Distribution]
    joint: Joint | None
    shelves: list[Shelf]
    languages: list[Language]
    moved: moved.Moved | None
    files: tuple[int, int]

    @property
    def pictures(self) -> list[Picture]:
        """All pictures of its samples."""
        return [card.picture for shelf in self.shelves for _, card in shelf.cards if card.picture]

    def to_json(self) -> dict[str, Any]:
        """The numbers, without pictures."""
        return {
            "named": [asdict(each) for each in self.named],
            "distributions": [asdict(each) for each in self.distributions],
            "joint": asdict(self.joint) if self.joint else None,
            "languages": [asdict(each) for each in self.languages],
            "shelves": {f"{each.column}: {each.about}": [label for label, _ in each.cards] for each in self.shelves},
            **({"moved": {each.label: list(each.labels) for each in self.moved.sliders}} if self.moved else {}),
            "files": list(self.files),
        }


@dataclass(frozen=True)
class _Limit:
    """A threshold of a column: its words, the value, whether values above it stay, and whether it does itself."""

    label: str
    value: float
    keeps_above: bool
    is_within: bool


@dataclass(frozen=True)
class _Read:
    """Values of samples in shards, and of rows that were not selected; null where there is none."""

    kept: pa.Table  # with `_shard` and `_row`
    dropped: pa.Table
    is_all: bool
    shards: list[str]
    limits: dict[str, list[_Limit]] = field(default_factory=dict)


def of_run(run: RunFolder, galleries: Galleries) -> Scores | None:
    """The scores of a run; None where it has none.

    Raises:
        UnreadableError: a file of them is damaged.
    """
    there = list(scores.all_of(run.folder))
    if not there:
        return None
    manifest = files.facts(run, "manifest.json")
    shards = {str(of["name"]).removesuffix(".tar"): str(of["parquet_sha256"]) for of in manifest.get("shards", [])}
    names = [list(shards)[place] for place in run_parquet.spread(len(shards), FILES_AT_MOST)]
    settings = (manifest.get("lineage") or {}).get("settings", {})
    kept = _kept(there, {name: shards[name] for name in names})
    columns = [column for score in there for column in score.columns]
    dropped, is_all_dropped = _dropped(run)
    is_all = len(names) == len(shards)
    read = _Read(kept, dropped, is_all and is_all_dropped, names, _limits(settings, kept, is_all=is_all))
    numeric = [column for column in columns if _is_number(kept, column)]
    first = sorted(numeric, key=lambda column: column not in read.limits)
    return Scores(
        [_named(score) for score in there],
        str(settings.get("where", "")) if isinstance(settings.get("where"), str) else "",
        [_distribution(read, column) for column in sorted(columns, key=lambda column: column not in read.limits)],
        _joint(kept, _two(first, there)),
        [shelf for column in first[:COLUMNS_WITH_PICTURES] for shelf in _shelves(run, read, column, galleries)],
        _languages(read, there),
        _moved(read, settings) if run.config.audit.keep_dropped else None,
        (len(names), len(shards)),
    )


def _named(score: Score) -> Named:
    settings, facts = score.facts.get("settings", {}), score.facts
    said = [f"{name} {settings[name]}" for name in ("model", "weights", "run", "function") if settings.get(name)]
    return Named(
        score.name, str(facts["kind"]), list(score.columns), ", ".join(said) or "no model", str(facts["digest"])[:12]
    )


# Reading --------------------------------------------------------------------------------------------------------------


def _kept(there: Sequence[Score], shards: dict[str, str]) -> pa.Table:
    """The values of the samples in these shards; null where a shard is not measured."""
    tables = []
    for number, (name, digest) in enumerate(shards.items()):
        has = [score for score in there if score.has(name, digest)]
        if has:
            values = [score.values(name, list(score.columns)) for score in has]
            columns = {column: table[column] for table in values for column in table.column_names}
            rows = len(values[0])
            places = {"_shard": np.full(rows, number, np.int32), "_row": np.arange(rows, dtype=np.int32)}
            tables.append(pa.table({**columns, **places}))
    empty = {column: pa.array([], TYPES[kind]) for score in there for column, kind in score.columns.items()}
    return pa.concat_tables([pa.table(empty), *tables], promote_options="default").combine_chunks()


def _dropped(run: RunFolder) -> tuple[pa.Table, bool]:
    """What this selection did not take, `_key`, `_failed` and the values that it was decided by; whether it is all."""
    folder = run.path("dropped", Stage.SELECT.value)
    names = [name for name in storage.names(folder, ".parquet") if not _OF_ANCESTOR.match(name)]
    tables = []
    for place in run_parquet.spread(len(names), FILES_AT_MOST):
        path = storage.join(folder, names[place])
        for rows in run_parquet.row_groups(path):
            if "scores" in rows.column_names and len(rows) and not rows["scores"].null_count:
                said = "\n".join(map(str, rows["scores"].to_pylist())).encode()
                try:
                    values = pj.read_json(io.BytesIO(said), pj.ReadOptions(block_size=max(1 << 20, len(said) + 1)))
                except pa.ArrowInvalid as error:
                    raise UnreadableError(f"{path}: scores are no JSON ({error!s:.60})") from None
                tables.append(values.append_column("_key", rows["key"]).append_column("_failed", rows["failed"]))
    found = pa.concat_tables(tables, promote_options="permissive").combine_chunks() if tables else pa.table({})
    return found, len(names) <= FILES_AT_MOST


def _is_number(table: pa.Table, column: str) -> bool:
    kind = table.schema.field(column).type
    return pa.types.is_floating(kind) or pa.types.is_integer(kind)


def _numbers(table: pa.Table, column: str) -> Floats:
    """A column as float64, NaN where there is no value; empty where the table has no such column."""
    if column not in table.column_names or not _is_number(table, column):
        return np.zeros(0)
    return table[column].cast(pa.float64()).to_numpy()


def _limits(settings: dict[str, Any], kept: pa.Table, *, is_all: bool) -> dict[str, list[_Limit]]:
    """The thresholds of a selection by column: those of comparisons, and what the largest values begin with."""
    found = dict[str, list[_Limit]]()
    asked = settings.get("where")
    try:
        conditions = where.conjuncts(where.parsed(asked)) if isinstance(asked, str) and asked else []
    except where.WhereError:  # of another version
        conditions = []
    for condition in conditions:
        match condition:
            case Compared(Name(column), ">" | ">=" | "<" | "<=" as test, (int() | float() as value,)):
                limit = _Limit(f"{test} {value:g}", float(value), test in (">", ">="), test in (">=", "<="))
                found.setdefault(column, []).append(limit)
    tops = settings.get("top")
    for column, share in (tops if isinstance(tops, dict) and is_all else {}).items():
        values = _numbers(kept, column)
        if len(values) and not np.isnan(values).all():
            limit = _Limit(f"largest {float(share):.0%}", float(np.nanmin(values)), keeps_above=True, is_within=True)
            found.setdefault(column, []).append(limit)
    return found


def _moved(read: _Read, settings: dict[str, Any]) -> moved.Moved | None:
    if not read.is_all or "where" not in settings:
        return None
    failed = read.dropped["_failed"].to_pylist() if "_failed" in read.dropped.column_names else []
    return moved.of_selection(settings, partial(_numbers, read.kept), partial(_numbers, read.dropped), failed)


# Distributions --------------------------------------------------------------------------------------------------------


def _distribution(read: _Read, column: str) -> Distribution:
    key, title = f"score-{column}", column
    if not _is_number(read.kept, column):
        return _of_labels(read, column)
    kept, dropped = _numbers(read.kept, column), _numbers(read.dropped, column)
    without = int(np.isnan(kept).sum())
    kept, dropped = kept[~np.isnan(kept)], dropped[~np.isnan(dropped)]
    both = np.concatenate([kept, dropped])
    if not len(both):
        return Distribution(key, title, missing="No sample has a value.")
    lines = [(limit, _edge(limit)) for limit in read.limits.get(column, [])]
    edges = _edges(float(both.min()), float(both.max()), [edge for _, edge in lines])
    counts = [np.bincount(np.searchsorted(edges, of, side="right") - 1, minlength=len(edges)) for of in (kept, dropped)]
    bins = tuple(Bin(f"{edge:.4g}", int(one), int(other)) for edge, one, other in zip(edges, *counts, strict=True))
    drawn = tuple(Threshold(limit.label, int(np.searchsorted(edges, edge))) for limit, edge in lines)
    note = "A bar has its value and all up to the next." + (f" {without:,} have no value." if without else "")
    return Distribution(key, title, _NAMES, bins, drawn, note=note)


def _edge(limit: _Limit) -> float:
    """The first value on the upper side of a threshold."""
    return limit.value if limit.keeps_above == limit.is_within else float(np.nextafter(limit.value, np.inf))


def _edges(low: float, high: float, lines: Sequence[float]) -> Floats:
    """First values of about `BINS` bins from below the smallest value, of a round width, with the thresholds."""
    width = (high - low) / BINS or 1.0
    power = 10.0 ** np.floor(np.log10(width))
    width = next(power * step for step in (1, 2, 5, 10) if power * step >= width * (1 - 1e-9))
    first = np.floor(low / width)
    grid = (first + np.arange(int(np.floor(high / width) - first) + 1)) * width
    inside = [line for line in lines if low < line <= high]
    return np.unique(np.concatenate([grid[~np.isclose(grid, np.nan)], inside])) if inside else grid


def _of_labels(read: _Read, column: str) -> Distribution:
    """The most frequent labels, and the others together."""
    counts = [Counter[str](), Counter[str]()]
    for counter, table in zip(counts, (read.kept, read.dropped), strict=True):
        if column in table.column_names:
            counter.update("none" if value is None else str(value) for value in table[column].to_pylist())
    both = sorted(counts[0] | counts[1], key=lambda name: (-counts[0][name] - counts[1][name], name))
    bins = [Bin(shown(name, 30).text, counts[0][name], counts[1][name]) for name in both[:LABELS_AT_MOST]]
    if others := both[LABELS_AT_MOST:]:
        bins.append(Bin(f"{len(others):,} others", *(sum(of[name] for name in others) for of in counts)))
    if not bins:
        return Distribution(f"score-{column}", column, missing="No sample has a value.")
    return Distribution(f"score-{column}", column, _NAMES, tuple(bins))


# Two together ---------------------------------------------------------------------------------------------------------


def _two(columns: Sequence[str], there: Sequence[Score]) -> Sequence[str]:
    """The first column, and the next one of another score."""
    owner = {column: score.name for score in there for column in score.columns}
    other = [column for column in columns if owner[column] != owner[columns[0]]]
    return [columns[0], *(other or columns[1:])[:1]] if columns else []


def _joint(kept: pa.Table, columns: Sequence[str]) -> Joint | None:
    if len(columns) < 2:
        return None
    across, down = (_numbers(kept, column) for column in columns)
    both = ~(np.isnan(across) | np.isnan(down))
    across, down = across[both], down[both]
    if len(across) < 10:
        return None
    edges = [np.unique(np.quantile(of, np.arange(10) / 10, method="inverted_cdf")) for of in (across, down)]
    at = [np.searchsorted(edge, of, side="right") - 1 for edge, of in zip(edges, (across, down), strict=True)]
    counts = np.zeros((len(edges[1]), len(edges[0])), np.int64)
    np.add.at(counts, (at[1], at[0]), 1)
    across_from, down_from = ([f"{edge:.4g}" for edge in of] for of in edges)
    return Joint(columns[0], columns[1], across_from, down_from, counts.tolist(), _correlation(across, down))


def _correlation(first: Floats, second: Floats) -> float:
    """Spearman's: of ranks, those of equal values averaged."""
    ranks = []
    for values in (first, second):
        _, where_it_is, counts = np.unique(values, return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        ranks.append((ends - (counts - 1) / 2)[where_it_is])
    spread = [of - of.mean() for of in ranks]
    norm = float(np.sqrt((spread[0] ** 2).sum() * (spread[1] ** 2).sum()))
    return round(float((spread[0] * spread[1]).sum()) / norm, 3) if norm else 0.0


# Samples --------------------------------------------------------------------------------------------------------------


def _shelves(run: RunFolder, read: _Read, column: str, galleries: Galleries) -> list[Shelf]:
    """Samples from the smallest value to the largest, a tenth apart; and on both sides of each threshold."""
    values = _numbers(read.kept, column)
    rows = np.flatnonzero(~np.isnan(values))
    if not len(rows):
        return []
    order = rows[np.argsort(values[rows], kind="stable")]
    places = np.unique(np.round(np.arange(11) / 10 * (len(order) - 1)).astype(np.int64))
    tenths = [(f"{place / max(1, len(order) - 1):.0%}: {values[order[place]]:.4g}", order[place]) for place in places]
    found = [Shelf(column, "from the smallest value to the largest", _cards(run, read, column, tenths))]
    pictured = {
        card.key: card for each in galleries.samples or [] if each.stage == Stage.SELECT.value for card in each.cards
    }
    for limit in read.limits.get(column, []):
        near = rows[np.argsort(np.abs(values[rows] - limit.value), kind="stable")][:NEAR]
        kept = _cards(run, read, column, [(f"in: {values[row]:.4g}", row) for row in near])
        found.append(Shelf(column, f"on both sides of {limit.label}", [*kept, *_out(read, column, limit, pictured)]))
    return found


def _out(read: _Read, column: str, limit: _Limit, pictured: dict[str | None, Card]) -> list[tuple[str, Card]]:
    """Rows that were not selected and are nearest to a threshold, of those in the galleries."""
    values = _numbers(read.dropped, column)
    if not len(values):
        return []
    is_out = values < _edge(limit) if limit.keeps_above else values >= _edge(limit)
    keys = read.dropped["_key"].to_pylist()
    there = [row for row in np.flatnonzero(is_out).tolist() if keys[row] in pictured]
    near = sorted(there, key=lambda row: (abs(values[row] - limit.value), keys[row]))[:NEAR]
    return [(f"out: {values[row]:.4g}", pictured[keys[row]]) for row in near]


def _cards(run: RunFolder, read: _Read, column: str, rows: Sequence[tuple[str, Any]]) -> list[tuple[str, Card]]:
    shard, row = (read.kept[name].to_numpy() for name in ("_shard", "_row"))
    return [(label, _card(run, read.shards[shard[at]], int(row[at]), column)) for label, at in rows]


def _card(run: RunFolder, shard: str, row: int, column: str) -> Card:
    """A sample of a shard."""
    path = run.path("shards", f"{shard}.parquet")
    names = ["caption", "image_url", "page_url", "source", "source_key", "extra", "key", "tar_offset", "tar_bytes"]
    of = pa.concat_tables(list(run_parquet.row_groups(path, names))).slice(row, 1).to_pylist()[0]
    offset, size = of.pop("tar_offset"), of.pop("tar_bytes")
    data = storage.read_range(run.path("shards", f"{shard}.tar"), offset, size)
    limit = run.config.image.pixels_at_most
    decoded = pixels.decode(data, pixels_at_most=limit, colour=True, short_side_px=thumbnails.WEBP_SIDE_PX).pixels
    picture = None if decoded is None else Picture(thumbnails.webp(decoded))
    return Card(**of, failed=[], measured=[("score", column)], picture=picture, is_nsfw=False)


# Languages ------------------------------------------------------------------------------------------------------------


def _languages(read: _Read, there: Sequence[Score]) -> list[Language]:
    """The labels of the first score of languages, the most frequent first."""
    label = next((score.name for score in there if score.facts["kind"] == "language"), "")
    if not label:
        return []
    kept = Counter("none" if value is None else str(value) for value in read.kept[label].to_pylist())
    lost = dict[str, Counter[str]]()
    gone = Counter[str]()
    if label in read.dropped.column_names:
        names = read.dropped[label].to_pylist()
        for name, failed in zip(names, read.dropped["_failed"].to_pylist(), strict=True):
            gone[name or "none"] += 1
            lost.setdefault(name or "none", Counter()).update(failed)
    names = sorted(kept | gone, key=lambda name: (-kept[name] - gone[name], name))[:LABELS_AT_MOST]
    return [
        Language(name, kept[name] + gone[name], kept[name], dict(lost.get(name, Counter()).most_common()))
        for name in names
    ]
