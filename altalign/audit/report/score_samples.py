"""Samples to look at along a score: from the smallest value to the largest, and on both sides of each threshold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from altalign.audit import run_parquet
from altalign.audit.report.galleries import Card, Galleries
from altalign.audit.report.score_values import Limit, Values
from altalign.audit.report.shard_pictures import thumbnail
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import Stage

NEAR = 6  # samples on each side of a threshold

Labelled = list[tuple[str, Card]]  # samples, each with what stands above it


@dataclass(frozen=True)
class Shelf:
    """Samples of a column: where in its range each is, and the sample."""

    column: str
    about: str
    cards: Labelled


def shelves_of(run: RunFolder, values: Values, column: str, galleries: Galleries) -> list[Shelf]:
    """Samples a tenth of the values apart, and those nearest to each threshold; `galleries` have what was not selected.

    Raises UnreadableError: a shard is damaged.
    """
    found = values.numbers(values.kept, column)
    rows = np.flatnonzero(~np.isnan(found))
    if not len(rows):
        return []
    order = rows[np.argsort(found[rows], kind="stable")]
    places = np.unique(np.round(np.arange(11) / 10 * (len(order) - 1)).astype(np.int64))
    tenths = [(f"{place / max(1, len(order) - 1):.0%}: {found[order[place]]:.4g}", order[place]) for place in places]
    shelves = [Shelf(column, "from the smallest value to the largest", _cards(run, values, column, tenths))]
    for limit in values.limits.get(column, []):
        near = rows[np.argsort(np.abs(found[rows] - limit.value), kind="stable")][:NEAR]
        kept = _cards(run, values, column, [(f"in: {found[row]:.4g}", row) for row in near])
        shelves.append(Shelf(column, f"on both sides of {limit.label}", [*kept, *_out(values, limit, galleries)]))
    return shelves


def _out(values: Values, limit: Limit, galleries: Galleries) -> Labelled:
    """Rows that were not selected and are nearest to a threshold, of those in the galleries."""
    found = values.numbers(values.dropped, limit.column)
    if not len(found):
        return []
    pictured = {
        card.key: card for each in galleries.samples or [] if each.stage == Stage.SELECT.value for card in each.cards
    }
    keys = values.dropped["_key"].to_pylist()
    rows = [row for row in np.flatnonzero(~limit.allows(found)).tolist() if keys[row] in pictured]
    near = sorted(rows, key=lambda row: (abs(found[row] - limit.value), keys[row]))[:NEAR]
    return [(f"out: {found[row]:.4g}", pictured[keys[row]]) for row in near]


def _cards(run: RunFolder, values: Values, column: str, rows: Sequence[tuple[str, Any]]) -> Labelled:
    shard, row = (values.kept[name].to_numpy() for name in ("_shard", "_row"))
    return [(label, _card(run, values.shards[shard[at]], int(row[at]), column)) for label, at in rows]


def _card(run: RunFolder, shard: str, row: int, column: str) -> Card:
    """A sample of a shard."""
    path = run.path("shards", f"{shard}.parquet")
    names = ["caption", "image_url", "page_url", "source", "source_key", "extra", "key", "tar_offset", "tar_bytes"]
    of = pa.concat_tables(list(run_parquet.row_groups(path, names))).slice(row, 1).to_pylist()[0]
    place = run.path("shards", f"{shard}.tar"), of.pop("tar_offset"), of.pop("tar_bytes")
    picture = thumbnail(*place, pixels_at_most=run.config.image.pixels_at_most)
    return Card(**of, failed=[], measured=[("score", column)], picture=picture, is_nsfw=False)
