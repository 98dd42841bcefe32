"""Scores of a run: distributions, thresholds, samples along their range, languages.

Read are the scores beside the shards, of what the run has, and the values of dropped rows, of what a selection did not
take: of a large run those of some shards, at even distances.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from altalign.audit.report.distributions import Bin, Distribution, Names, Threshold
from altalign.audit.report.galleries import Galleries, Picture
from altalign.audit.report.other_thresholds import curve
from altalign.audit.report.score_samples import Shelf, shelves_of
from altalign.audit.report.score_values import Floats, Limit, Values, values_of
from altalign.audit.run_folder import RunFolder
from altalign.data import scores
from altalign.data.scores import Score
from altalign.pages.page_text import shown

BINS = 40
LABELS_AT_MOST = 30
COLUMNS_WITH_PICTURES = 6
_NAMES = Names("samples", "in the shards", "not selected")
_OF_CURVE = Names("samples", "selected", "fail this threshold alone")


@dataclass(frozen=True)
class Scores:
    """The scores of a run."""

    # `name`, `kind`, `columns`, `digest` of each score, and what it rests on in words (`rests_on`)
    named: list[dict[str, Any]]
    asked: str  # the condition of the selection that made the run, or ""
    distributions: list[Distribution]  # of each column
    # for each threshold of the selection, what another one would keep; empty where not all was read
    thresholds: list[Distribution]
    shelves: list[Shelf]  # samples along the range of columns, and around thresholds
    # labels of the first score of languages: how many samples the selection `received` and `kept`, and how many fail
    # each of its rules (`lost`); empty without such a score
    languages: list[dict[str, Any]]
    files: tuple[int, int]  # how many shards were read, of how many

    @property
    def pictures(self) -> list[Picture]:
        """All pictures of its samples."""
        return [card.picture for shelf in self.shelves for _, card in shelf.cards if card.picture]

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
    numeric = [column for column in columns if values.is_number(column)]
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
    kept, dropped = (of[~np.isnan(of)] for of in (every, values.numbers(values.dropped, column)))
    both = np.concatenate([kept, dropped])
    if not len(both):
        return replace(drawn, missing="No sample has a value.")
    limits = values.limits.get(column, [])
    grid, lines = _grid(both), [limit.first(limit.value) for limit in limits]
    edges = np.unique(np.concatenate([grid, [line for line in lines if both.min() < line <= both.max()]]))
    counts = [np.bincount(np.searchsorted(edges, of, side="right") - 1, minlength=len(edges)) for of in (kept, dropped)]
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
        bins.append(Bin(f"{len(others):,} others", *(sum(of[name] for name in others) for of in (kept, dropped))))
    return Distribution(
        f"score-{column}", column, _NAMES, tuple(bins), missing="" if bins else "No sample has a value."
    )


# Thresholds -----------------------------------------------------------------------------------------------------------


def _thresholds(values: Values) -> list[Distribution]:
    """What another threshold would keep: samples, and rows that thresholds alone drop, within all other thresholds."""
    limits = [limit for of_column in values.limits.values() for limit in of_column]
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
        found = columns[limit.column][stays]
        drawn = Distribution(f"threshold-{number}", f"{limit.column}, {limit.label}", _OF_CURVE, note=note)
        curves.append(_curve(drawn, limit, found))
    return [each for each in curves if each.bins]


def _curve(drawn: Distribution, limit: Limit, values: Floats) -> Distribution:
    known = values[~np.isnan(values)]
    if not len(known):
        return drawn
    stops = [(limit.first(stop), f"{stop:.4g}") for stop in (*_grid(known), limit.value)]
    always = np.where(np.isnan(values), np.inf if limit.keeps_above else -np.inf, values)  # without a value
    own = limit.first(limit.value)
    return curve(drawn, always, np.ones(len(always)), stops, own, keeps_above=limit.keeps_above)


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
    return [{"name": name, "received": n, "kept": k, "lost": dict(of.most_common())} for name, n, k, of in rows]
