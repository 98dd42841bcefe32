"""Scores of a run: distributions, thresholds, samples along their range, languages.

Read are the scores beside the shards, and the values of rows that a selection did not take: of a large run some files.
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
BINS = 40
LABELS_AT_MOST = 30
COLUMNS_WITH_PICTURES = 6
NEAR = 6  # samples on each side of a threshold
_OF_ANCESTOR = re.compile(r"[0-9a-f]{8}-")
_NAMES = Names("samples", "in the shards", "not selected")
_OF_CURVE = Names("samples", "selected", "fail this threshold alone")
_PICTURED = ["caption", "image_url", "page_url", "source", "source_key", "extra", "key", "tar_offset", "tar_bytes"]

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

    kept: pa.Table  # of samples in shards; null where one has no value. `_shard` is a place in `shards`, `_row` in it
    dropped: pa.Table  # what this selection decided about rows by, with `_key` and `_failed`, the rules that each fails
    is_all: bool  # whether that is all
    shards: list[str]  # names of the shards that were read
    limits: list[Limit]  # the thresholds of the selection that made the run

    def of(self, column: str) -> tuple[Floats, Floats]:
        """A column of kept and of dropped rows as float64, NaN where there is no value."""
        return _floats(self.kept, column), _floats(self.dropped, column)


@dataclass(frozen=True)
class Shelf:
    """Samples of a column: where in its range each is, and the sample."""

    column: str
    about: str
    cards: list[tuple[str, Card]]  # each with what stands above it


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
    manifest = run.json("manifest.json")
    entries = manifest.get("shards", [])
    digests = {str(entry["name"]).removesuffix(".tar"): str(entry["parquet_sha256"]) for entry in entries}
    settings = (manifest.get("lineage") or {}).get("settings", {})
    values = _values(run, measured, digests, settings)
    limited = {limit.column for limit in values.limits}
    columns = sorted((column for score in measured for column in score.columns), key=lambda each: each not in limited)
    numeric = [column for column in columns if _is_number(values.kept, column)]
    note = "Lots of the balance stay as they were drawn." if settings.get("balance") else ""
    condition = settings.get("where")
    return Scores(
        [_named(score) for score in measured],
        condition if isinstance(condition, str) else "",
        [_distribution(values, column) if column in numeric else _of_labels(values, column) for column in columns],
        _thresholds(values, note) if values.is_all and run.config.audit.keep_dropped else [],
        [shelf for column in numeric[:COLUMNS_WITH_PICTURES] for shelf in _shelves(run, values, column, galleries)],
        _languages(values, measured),
        (len(values.shards), len(digests)),
    )


def _named(score: Score) -> dict[str, Any]:
    settings = score.facts.get("settings", {})
    parts = [f"{name} {settings[name]}" for name in ("model", "weights", "run", "function") if settings.get(name)]
    named = {"name": score.name, "kind": str(score.facts["kind"]), "columns": list(score.columns)}
    return {**named, "rests_on": ", ".join(parts) or "no model", "digest": str(score.facts["digest"])[:12]}


# What is read ---------------------------------------------------------------------------------------------------------


def _values(run: RunFolder, measured: Sequence[Score], digests: dict[str, str], settings: dict[str, Any]) -> Values:
    """The values of the scores, of some shards and some files of what this selection did not take."""
    names = [list(digests)[place] for place in run_rows.spread(len(digests), FILES_AT_MOST)]
    kept = [
        pa.table({column: pa.array([], TYPES[kind]) for score in measured for column, kind in score.columns.items()})
    ]
    for number, name in enumerate(names):
        values = [score.values(name, list(score.columns)) for score in measured if score.has(name, digests[name])]
        if values:
            columns = {column: table[column] for table in values for column in table.column_names}
            rows = len(values[0])
            places = {"_shard": np.full(rows, number, np.int32), "_row": np.arange(rows, dtype=np.int32)}
            kept.append(pa.table({**columns, **places}))
    of_shards = pa.concat_tables(kept, promote_options="default").combine_chunks()
    folder, dropped = run.path("dropped", Stage.SELECT.value), list[pa.Table]()
    files = [name for name in storage.names(folder, ".parquet") if not _OF_ANCESTOR.match(name)]
    for place in run_rows.spread(len(files), FILES_AT_MOST):
        path = storage.join(folder, files[place])
        for group in run_rows.row_groups(path):
            if "scores" in group.column_names and len(group) and not group["scores"].null_count:
                lines = "\n".join(map(str, group["scores"].to_pylist())).encode()
                try:
                    some = pj.read_json(io.BytesIO(lines), pj.ReadOptions(block_size=max(1 << 20, len(lines) + 1)))
                except pa.ArrowInvalid as error:
                    raise UnreadableError(f"{path}: scores are no JSON ({error!s:.60})") from None
                dropped.append(some.append_column("_key", group["key"]).append_column("_failed", group["failed"]))
    of_dropped = pa.concat_tables(dropped, promote_options="permissive") if dropped else pa.table({"_failed": []})
    is_whole = len(names) == len(digests)
    is_all = is_whole and len(files) <= FILES_AT_MOST
    return Values(
        of_shards, of_dropped.combine_chunks(), is_all, names, _limits(settings, of_shards, is_whole=is_whole)
    )


def _limits(settings: dict[str, Any], kept: pa.Table, *, is_whole: bool) -> list[Limit]:
    """The thresholds of a selection: those of comparisons, and what the largest values begin with."""
    limits, condition, tops = list[Limit](), settings.get("where"), settings.get("top")
    try:
        conditions = where.parsed(condition).parts if isinstance(condition, str) and condition else []
    except where.WhereError:  # of another version
        conditions = []
    for column, test, value in (each.bound for each in conditions if each.bound):
        limits.append(Limit(column, f"{test} {value:g}", value, test in (">", ">="), test in (">=", "<=")))
    for column, share in (tops if isinstance(tops, dict) and is_whole else {}).items():
        values = _floats(kept, column)
        if not np.isnan(values).all():
            label = f"largest {float(share):.0%}"
            limits.append(Limit(column, label, float(np.nanmin(values)), keeps_above=True, is_within=True))
    columns = list(dict.fromkeys(each.column for each in limits))
    return sorted(limits, key=lambda each: columns.index(each.column))


def _is_number(table: pa.Table, column: str) -> bool:
    kind = table.schema.field(column).type
    return pa.types.is_floating(kind) or pa.types.is_integer(kind)


def _floats(table: pa.Table, column: str) -> Floats:
    """A column as float64[n]: all NaN where it is not there, or no number."""
    if column not in table.column_names or not _is_number(table, column):
        return np.full(len(table), np.nan)
    return table[column].cast(pa.float64()).to_numpy()


def _labels(table: pa.Table, column: str) -> list[str]:
    """A column as strings, `none` where there is no value; empty where the table has no such column."""
    labels = table[column].to_pylist() if column in table.column_names else []
    return ["none" if value is None else str(value) for value in labels]


# Distributions and thresholds -----------------------------------------------------------------------------------------


def _distribution(values: Values, column: str) -> Distribution:
    drawn, every = Distribution(f"score-{column}", column, _NAMES), values.of(column)
    kept, dropped = (some[~np.isnan(some)] for some in every)
    both = np.concatenate([kept, dropped])
    if not len(both):
        return replace(drawn, missing="No sample has a value.")
    lines = {limit.label: limit.first(limit.value) for limit in values.limits if limit.column == column}
    between = [line for line in lines.values() if both.min() < line <= both.max()]
    edges = np.unique(np.concatenate([_grid(both), between]))
    counts = [
        np.bincount(np.searchsorted(edges, some, side="right") - 1, minlength=len(edges)) for some in (kept, dropped)
    ]
    bins = tuple(Bin(f"{edge:.4g}", int(one), int(other)) for edge, one, other in zip(edges, *counts, strict=True))
    thresholds = tuple(Threshold(label, int(np.searchsorted(edges, line))) for label, line in lines.items())
    without = len(every[0]) - len(kept)
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
    kept, dropped = (Counter(_labels(table, column)) for table in (values.kept, values.dropped))
    both = sorted(kept | dropped, key=lambda name: (-kept[name] - dropped[name], name))
    bins = [Bin(shown(name, 30).text, kept[name], dropped[name]) for name in both[:LABELS_AT_MOST]]
    if others := both[LABELS_AT_MOST:]:
        bins.append(Bin(f"{len(others):,} others", *(sum(side[name] for name in others) for side in (kept, dropped))))
    missing = "" if bins else "No sample has a value."
    return Distribution(f"score-{column}", column, _NAMES, tuple(bins), missing=missing)


def _thresholds(values: Values, note: str) -> list[Distribution]:
    """What another threshold would keep: samples, and rows that thresholds alone drop, within all other thresholds."""
    movable = {reason for limit in values.limits for reason in limit.reasons}
    comes_in = np.array([movable.issuperset(failed or ()) for failed in values.dropped["_failed"].to_pylist()], bool)
    columns = dict[str, Floats]()
    for column in {limit.column for limit in values.limits}:
        kept, dropped = values.of(column)
        columns[column] = np.concatenate([kept, dropped[comes_in]])
    curves = []
    for number, limit in enumerate(values.limits):
        if limit.column not in values.kept.column_names:
            continue
        stays = np.ones(len(columns[limit.column]), bool)
        for other in values.limits:
            stays &= other is limit or other.allows(columns[other.column])
        some = columns[limit.column][stays]
        known = some[~np.isnan(some)]
        if len(known):
            drawn = Distribution(f"threshold-{number}", f"{limit.column}, {limit.label}", _OF_CURVE, note=note)
            stops = {limit.first(stop): f"{stop:.4g}" for stop in (*_grid(known), limit.value)}
            always = np.where(np.isnan(some), np.inf if limit.keeps_above else -np.inf, some)  # without a value
            own, once = limit.first(limit.value), np.ones(len(always), np.int64)
            curves.append(curve(drawn, always, once, stops, own, keeps_above=limit.keeps_above))
    return curves


def _languages(values: Values, measured: Sequence[Score]) -> list[dict[str, Any]]:
    """The labels of the first score of languages, the most frequent first."""
    label = next((score.name for score in measured if score.facts["kind"] == "language"), "")
    kept, gone = (Counter(_labels(table, label)) for table in (values.kept, values.dropped))
    lost = {name: Counter[str]() for name in gone}
    if gone:
        for name, failed in zip(_labels(values.dropped, label), values.dropped["_failed"].to_pylist(), strict=True):
            lost[name].update(failed)
    names = sorted(kept | gone, key=lambda name: (-kept[name] - gone[name], name))[:LABELS_AT_MOST]
    rows = ((name, kept[name] + gone[name], kept[name], lost.get(name, Counter())) for name in names)
    return [{"name": name, "received": n, "kept": k, "lost": dict(failed.most_common())} for name, n, k, failed in rows]


# Samples along a score ------------------------------------------------------------------------------------------------


def _shelves(run: RunFolder, values: Values, column: str, galleries: Galleries) -> list[Shelf]:
    """Samples a tenth of the values apart, and those nearest to each threshold; `galleries` have what is out."""
    numbers, gone = values.of(column)
    rows = np.flatnonzero(~np.isnan(numbers))
    if not len(rows):
        return []
    order = rows[np.argsort(numbers[rows], kind="stable")].tolist()
    last = len(order) - 1
    tenths = []
    for place in np.unique(np.round(np.arange(11) / 10 * last).astype(np.int64)).tolist():
        label = f"{place / max(1, last):.0%}: {numbers[order[place]]:.4g}"
        tenths.append((label, _card(run, values, order[place], column)))
    shelves = [Shelf(column, "from the smallest value to the largest", tenths)]
    selects = [each for each in galleries.samples or [] if each.stage == Stage.SELECT.value]
    pictured = {card.key: card for each in selects for card in each.cards}
    for limit in (limit for limit in values.limits if limit.column == column):
        near = rows[np.argsort(np.abs(numbers[rows] - limit.value), kind="stable")][:NEAR]
        cards = [(f"in: {numbers[row]:.4g}", _card(run, values, row, column)) for row in near]
        keys = values.dropped["_key"].to_pylist() if len(gone) else []
        out = [row for row in np.flatnonzero(~limit.allows(gone)).tolist() if keys[row] in pictured]
        out.sort(key=lambda row, keys=keys, value=limit.value: (abs(gone[row] - value), keys[row]))
        cards += [(f"out: {gone[row]:.4g}", pictured[keys[row]]) for row in out[:NEAR]]
        shelves.append(Shelf(column, f"on both sides of {limit.label}", cards))
    return shelves


def _card(run: RunFolder, values: Values, at: int, column: str) -> Card:
    """A sample of a shard, by its row of the values."""
    shard = values.shards[values.kept["_shard"][at].as_py()]
    groups = run_rows.row_groups(run.path("shards", f"{shard}.parquet"), _PICTURED)
    sample = pa.concat_tables(list(groups)).slice(values.kept["_row"][at].as_py(), 1).to_pylist()[0]
    place = run.path("shards", f"{shard}.tar"), sample.pop("tar_offset"), sample.pop("tar_bytes")
    picture = thumbnail(*place, pixels_at_most=run.config.image.pixels_at_most)
    return Card(**sample, failed=[], measured=[("score", column)], picture=picture, is_nsfw=False)
