"""Scores of a run: distributions, thresholds, samples along their range, languages.

Read are the scores beside the shards, of what the run has, and the values of dropped rows, of what a selection did not
take: of a large run those of some shards, at even distances.
"""

import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as pj

from altalign import storage
from altalign.audit import rows as run_rows
from altalign.audit.report import files
from altalign.audit.report.distributions import Bin, Distribution, Names, Threshold
from altalign.audit.report.galleries import Card, Galleries, thumbnail
from altalign.audit.report.thresholds import curve
from altalign.audit.run_folder import RunFolder
from altalign.data import scores
from altalign.data.columns import TYPES
from altalign.data.reasons import Stage
from altalign.data.scores import Score
from altalign.errors import UnreadableError
from altalign.filters import where
from altalign.pages.page_text import shown

FILES_AT_MOST = 256  # shards, and files of dropped rows, that are read
_OF_ANCESTOR = re.compile(r"[0-9a-f]{8}-")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Limit:
    """A threshold of a column."""

    column: str  # its name
    label: str  # the threshold in words
    value: float  # its value
    keeps_above: bool  # whether values above it stay, or those below it
    is_within: bool  # whether the value itself stays

    def first(self, value: float) -> float:
        """The first value on the upper side of the threshold, were it at this value."""
        return value if self.keeps_above == self.is_within else float(np.nextafter(value, np.inf))

    def allows(self, values: Floats) -> npt.NDArray[np.bool_]:
        """Which of n values stay; NaN, of a sample that was kept for other reasons, does."""
        is_above = values >= self.first(self.value)
        return np.isnan(values) | (is_above if self.keeps_above else ~is_above)

    @property
    def reasons(self) -> set[str]:
        """The reasons of rows that it drops."""
        name = "_".join(self.column.split())
        return {f"score_below:{name}", f"not_in_top:{self.column}"} if self.keeps_above else {f"score_above:{name}"}


@dataclass(frozen=True)
class Values:
    """What was read."""

    # the values of samples in shards, with `_shard` (a place in `shards`) and `_row`; null where one has none
    kept: pa.Table
    dropped: pa.Table  # the values that this selection decided about rows by, with `_key` and `_failed`
    is_all: bool  # whether that is all
    shards: list[str]  # names of the shards that were read
    shards_in_all: int  # how many shards there are
    settings: dict[str, Any]  # of the selection that made the run
    limits: dict[str, list[Limit]]  # its thresholds by column

    @property
    def failed(self) -> list[list[str]]:
        """The rules that each dropped row fails."""
        lists: Any = self.dropped["_failed"] if "_failed" in self.dropped.column_names else pa.array([])
        return lists.to_pylist()

    @staticmethod
    def numbers(table: pa.Table, column: str) -> Floats:
        """A column as float64[n], NaN where there is no value: in all of a column that is not there, or no number."""
        if column not in table.column_names or not _is_number(table, column):
            return np.full(len(table), np.nan)
        return table[column].cast(pa.float64()).to_numpy()

    @staticmethod
    def labels(table: pa.Table, column: str) -> list[str]:
        """A column as strings, `none` where there is no value; empty where the table has no such column."""
        if column not in table.column_names:
            return []
        return ["none" if value is None else str(value) for value in table[column].to_pylist()]


def values_of(run: RunFolder, measured: Sequence[Score]) -> Values:
    """Reads the values of these scores. Raises UnreadableError: a file of them is damaged."""
    manifest = files.facts(run, "manifest.json")
    entries = manifest.get("shards", [])
    digests = {str(entry["name"]).removesuffix(".tar"): str(entry["parquet_sha256"]) for entry in entries}
    names = [list(digests)[place] for place in run_rows.spread(len(digests), FILES_AT_MOST)]
    settings = (manifest.get("lineage") or {}).get("settings", {})
    kept = _kept(measured, {name: digests[name] for name in names})
    dropped, is_all_dropped = _dropped(run)
    limits = _limits(settings, kept, is_all=len(names) == len(digests))
    is_all = is_all_dropped and len(names) == len(digests)
    return Values(kept, dropped, is_all, names, len(digests), settings, limits)


def _kept(measured: Sequence[Score], shards: dict[str, str]) -> pa.Table:
    """The values of the samples in these shards; null where a shard is not measured."""
    tables = []
    for number, (name, digest) in enumerate(shards.items()):
        values = [score.values(name, list(score.columns)) for score in measured if score.has(name, digest)]
        if values:
            columns = {column: table[column] for table in values for column in table.column_names}
            rows = len(values[0])
            places = {"_shard": np.full(rows, number, np.int32), "_row": np.arange(rows, dtype=np.int32)}
            tables.append(pa.table({**columns, **places}))
    empty = {column: pa.array([], TYPES[kind]) for score in measured for column, kind in score.columns.items()}
    return pa.concat_tables([pa.table(empty), *tables], promote_options="default").combine_chunks()


def _dropped(run: RunFolder) -> tuple[pa.Table, bool]:
    """What this selection did not take, `_key`, `_failed` and the values that it was decided by; whether it is all."""
    folder = run.path("dropped", Stage.SELECT.value)
    names = [name for name in storage.names(folder, ".parquet") if not _OF_ANCESTOR.match(name)]
    tables = []
    for place in run_rows.spread(len(names), FILES_AT_MOST):
        path = storage.join(folder, names[place])
        for rows in run_rows.row_groups(path):
            if "scores" in rows.column_names and len(rows) and not rows["scores"].null_count:
                lines = "\n".join(map(str, rows["scores"].to_pylist())).encode()
                try:
                    some = pj.read_json(io.BytesIO(lines), pj.ReadOptions(block_size=max(1 << 20, len(lines) + 1)))
                except pa.ArrowInvalid as error:
                    raise UnreadableError(f"{path}: scores are no JSON ({error!s:.60})") from None
                tables.append(some.append_column("_key", rows["key"]).append_column("_failed", rows["failed"]))
    values = pa.concat_tables(tables, promote_options="permissive").combine_chunks() if tables else pa.table({})
    return values, len(names) <= FILES_AT_MOST


def _is_number(table: pa.Table, column: str) -> bool:
    kind = table.schema.field(column).type
    return pa.types.is_floating(kind) or pa.types.is_integer(kind)


def _limits(settings: dict[str, Any], kept: pa.Table, *, is_all: bool) -> dict[str, list[Limit]]:
    """The thresholds of a selection: those of comparisons, and what the largest values begin with."""
    limits, condition, tops = list[Limit](), settings.get("where"), settings.get("top")
    try:
        conditions = where.parsed(condition).parts if isinstance(condition, str) and condition else []
    except where.WhereError:  # of another version
        conditions = []
    for each in conditions:
        if each.bound:
            column, test, value = each.bound
            ways = {"keeps_above": test in (">", ">="), "is_within": test in (">=", "<=")}
            limits.append(Limit(column, f"{test} {value:g}", value, **ways))
    for column, share in (tops if isinstance(tops, dict) and is_all else {}).items():
        values = Values.numbers(kept, column)
        if not np.isnan(values).all():
            least = float(np.nanmin(values))
            limits.append(Limit(column, f"largest {float(share):.0%}", least, keeps_above=True, is_within=True))
    return {
        column: [each for each in limits if each.column == column]
        for column in dict.fromkeys(each.column for each in limits)
    }


# What the report shows ------------------------------------------------------------------------------------------------


BINS = 40
LABELS_AT_MOST = 30
COLUMNS_WITH_PICTURES = 6
NEAR = 6  # samples on each side of a threshold
_NAMES = Names("samples", "in the shards", "not selected")
_OF_CURVE = Names("samples", "selected", "fail this threshold alone")

Labelled = list[tuple[str, Card]]  # samples, each with what stands above it


@dataclass(frozen=True)
class Shelf:
    """Samples of a column: where in its range each is, and the sample."""

    column: str
    about: str
    cards: Labelled


@dataclass(frozen=True)
class Scores:
    """The scores of a run."""

    # `name`, `kind`, `columns`, `digest` of each score, and what it rests on in words (`rests_on`)
    named: list[dict[str, Any]]
    condition: str  # the condition of the selection that made the run, or ""
    distributions: list[Distribution]  # of each column
    # for each threshold of the selection, what another one would keep; empty where not all was read
    thresholds: list[Distribution]
    shelves: list[Shelf]  # samples along the range of columns, and around thresholds
    # labels of the first score of languages: how many samples the selection `received` and `kept`, and how many fail
    # each of its rules (`lost`); empty without such a score
    languages: list[dict[str, Any]]
    files: tuple[int, int]  # how many shards were read, of how many

    def to_json(self) -> dict[str, Any]:
        """The numbers, without pictures."""
        return {
            "named": self.named,
            "distributions": [asdict(each) for each in self.distributions],
            "thresholds": [asdict(each) for each in self.thresholds],
            "languages": self.languages,
            "shelves": {f"{each.column}: {each.about}": [label for label, _ in each.cards] for each in self.shelves},
            "files": list(self.files),
        }


def of_run(run: RunFolder, galleries: Galleries) -> Scores | None:
    """The scores of a run; None where it has none. Raises UnreadableError: a file of them is damaged."""
    measured = list(scores.all_of(run.folder))
    if not measured:
        return None
    values = values_of(run, measured)
    columns = sorted(
        (column for score in measured for column in score.columns), key=lambda column: column not in values.limits
    )
    numeric = [column for column in columns if _is_number(values.kept, column)]
    condition = values.settings.get("where")
    return Scores(
        [_named(score) for score in measured],
        condition if isinstance(condition, str) else "",
        [_distribution(values, column) if column in numeric else _of_labels(values, column) for column in columns],
        _thresholds(values) if values.is_all and run.config.audit.keep_dropped else [],
        [shelf for column in numeric[:COLUMNS_WITH_PICTURES] for shelf in shelves_of(run, values, column, galleries)],
        _languages(values, measured),
        (len(values.shards), values.shards_in_all),
    )


def _named(score: Score) -> dict[str, Any]:
    settings, facts = score.facts.get("settings", {}), score.facts
    parts = [f"{name} {settings[name]}" for name in ("model", "weights", "run", "function") if settings.get(name)]
    rests_on = ", ".join(parts) or "no model"
    named = {"name": score.name, "kind": str(facts["kind"]), "columns": list(score.columns)}
    return {**named, "rests_on": rests_on, "digest": str(facts["digest"])[:12]}


# Distributions --------------------------------------------------------------------------------------------------------


def _distribution(values: Values, column: str) -> Distribution:
    drawn = Distribution(f"score-{column}", column, _NAMES)
    every = values.numbers(values.kept, column)
    kept, dropped = (some[~np.isnan(some)] for some in (every, values.numbers(values.dropped, column)))
    both = np.concatenate([kept, dropped])
    if not len(both):
        return replace(drawn, missing="No sample has a value.")
    limits = values.limits.get(column, [])
    grid, lines = _grid(both), [limit.first(limit.value) for limit in limits]
    edges = np.unique(np.concatenate([grid, [line for line in lines if both.min() < line <= both.max()]]))
    counts = [
        np.bincount(np.searchsorted(edges, some, side="right") - 1, minlength=len(edges)) for some in (kept, dropped)
    ]
    bins = tuple(Bin(f"{edge:.4g}", int(one), int(other)) for edge, one, other in zip(edges, *counts, strict=True))
    at = [int(np.searchsorted(edges, line)) for line in lines]
    thresholds = tuple(Threshold(limit.label, place) for limit, place in zip(limits, at, strict=True))
    without = len(every) - len(kept)
    note = "A bar has its value and all up to the next." + (f" {without:,} have no value." if without else "")
    return replace(drawn, bins=bins, thresholds=thresholds, note=note)


def _grid(values: Floats) -> Floats:
    """About `BINS` round values, the first not above the smallest value."""
    low, high = float(values.min()), float(values.max())
    width = (high - low) / BINS or 1.0
    power = 10.0 ** np.floor(np.log10(width))
    width = next(power * step for step in (1, 2, 5, 10) if power * step >= width * (1 - 1e-9))
    return np.arange(np.floor(low / width), np.floor(high / width) + 1) * width


def _of_labels(values: Values, column: str) -> Distribution:
    """The most frequent labels, and the others together."""
    kept, dropped = (Counter(values.labels(table, column)) for table in (values.kept, values.dropped))
    both = sorted(kept | dropped, key=lambda name: (-kept[name] - dropped[name], name))
    bins = [Bin(shown(name, 30).text, kept[name], dropped[name]) for name in both[:LABELS_AT_MOST]]
    if others := both[LABELS_AT_MOST:]:
        bins.append(Bin(f"{len(others):,} others", *(sum(side[name] for name in others) for side in (kept, dropped))))
    return Distribution(
        f"score-{column}", column, _NAMES, tuple(bins), missing="" if bins else "No sample has a value."
    )


# Thresholds -----------------------------------------------------------------------------------------------------------


def _thresholds(values: Values) -> list[Distribution]:
    """What another threshold would keep: samples, and rows that thresholds alone drop, within all other thresholds."""
    limits = [limit for some in values.limits.values() for limit in some]
    movable = {reason for limit in limits for reason in limit.reasons}
    comes_in = np.array([movable.issuperset(failed) for failed in values.failed], bool)
    columns = {
        column: np.concatenate([values.numbers(values.kept, column), values.numbers(values.dropped, column)[comes_in]])
        for column in values.limits
    }
    note = "Lots of the balance stay as they were drawn." if values.settings.get("balance") else ""
    curves = []
    for number, limit in enumerate(limits):
        if limit.column not in values.kept.column_names:
            continue
        stays = np.ones(len(columns[limit.column]), bool)
        for other in limits:
            stays &= other is limit or other.allows(columns[other.column])
        drawn = Distribution(f"threshold-{number}", f"{limit.column}, {limit.label}", _OF_CURVE, note=note)
        some = columns[limit.column][stays]
        known = some[~np.isnan(some)]
        if len(known):
            stops = [(limit.first(stop), f"{stop:.4g}") for stop in (*_grid(known), limit.value)]
            always = np.where(np.isnan(some), np.inf if limit.keeps_above else -np.inf, some)  # without a value
            own = limit.first(limit.value)
            curves.append(curve(drawn, always, np.ones(len(always)), stops, own, keeps_above=limit.keeps_above))
    return [each for each in curves if each.bins]


# Languages ------------------------------------------------------------------------------------------------------------


def _languages(values: Values, measured: Sequence[Score]) -> list[dict[str, Any]]:
    """The labels of the first score of languages, the most frequent first."""
    label = next((score.name for score in measured if score.facts["kind"] == "language"), "")
    if not label:
        return []
    kept, gone = Counter(values.labels(values.kept, label)), Counter[str]()
    lost = dict[str, Counter[str]]()
    labels = values.labels(values.dropped, label)
    for name, failed in zip(labels, values.failed if labels else [], strict=True):
        gone[name] += 1
        lost.setdefault(name, Counter()).update(failed)
    names = sorted(kept | gone, key=lambda name: (-kept[name] - gone[name], name))[:LABELS_AT_MOST]
    rows = ((name, kept[name] + gone[name], kept[name], lost.get(name, Counter())) for name in names)
    return [{"name": name, "received": n, "kept": k, "lost": dict(failed.most_common())} for name, n, k, failed in rows]


# Samples along a score ------------------------------------------------------------------------------------------------


def shelves_of(run: RunFolder, values: Values, column: str, galleries: Galleries) -> list[Shelf]:
    """Samples a tenth of the values apart, and those nearest to each threshold; `galleries` have what was not selected.

    Raises UnreadableError: a shard is damaged.
    """
    numbers = values.numbers(values.kept, column)
    rows = np.flatnonzero(~np.isnan(numbers))
    if not len(rows):
        return []
    order = rows[np.argsort(numbers[rows], kind="stable")]
    places = np.unique(np.round(np.arange(11) / 10 * (len(order) - 1)).astype(np.int64))
    tenths = [(f"{place / max(1, len(order) - 1):.0%}: {numbers[order[place]]:.4g}", order[place]) for place in places]
    shelves = [Shelf(column, "from the smallest value to the largest", _cards(run, values, column, tenths))]
    for limit in values.limits.get(column, []):
        near = rows[np.argsort(np.abs(numbers[rows] - limit.value), kind="stable")][:NEAR]
        kept = _cards(run, values, column, [(f"in: {numbers[row]:.4g}", row) for row in near])
        shelves.append(Shelf(column, f"on both sides of {limit.label}", [*kept, *_out(values, limit, galleries)]))
    return shelves


def _out(values: Values, limit: Limit, galleries: Galleries) -> Labelled:
    """Rows that were not selected and are nearest to a threshold, of those in the galleries."""
    numbers = values.numbers(values.dropped, limit.column)
    if not len(numbers):
        return []
    pictured = {
        card.key: card for each in galleries.samples or [] if each.stage == Stage.SELECT.value for card in each.cards
    }
    keys = values.dropped["_key"].to_pylist()
    rows = [row for row in np.flatnonzero(~limit.allows(numbers)).tolist() if keys[row] in pictured]
    near = sorted(rows, key=lambda row: (abs(numbers[row] - limit.value), keys[row]))[:NEAR]
    return [(f"out: {numbers[row]:.4g}", pictured[keys[row]]) for row in near]


def _cards(run: RunFolder, values: Values, column: str, rows: Sequence[tuple[str, Any]]) -> Labelled:
    shard, row = (values.kept[name].to_numpy() for name in ("_shard", "_row"))
    return [(label, _card(run, values.shards[shard[at]], int(row[at]), column)) for label, at in rows]


def _card(run: RunFolder, shard: str, row: int, column: str) -> Card:
    """A sample of a shard."""
    path = run.path("shards", f"{shard}.parquet")
    names = ["caption", "image_url", "page_url", "source", "source_key", "extra", "key", "tar_offset", "tar_bytes"]
    sample = pa.concat_tables(list(run_rows.row_groups(path, names))).slice(row, 1).to_pylist()[0]
    place = run.path("shards", f"{shard}.tar"), sample.pop("tar_offset"), sample.pop("tar_bytes")
    picture = thumbnail(*place, pixels_at_most=run.config.image.pixels_at_most)
    return Card(**sample, failed=[], measured=[("score", column)], picture=picture, is_nsfw=False)
