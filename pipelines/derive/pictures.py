"""The galleries of a run that was made of others: what the parents show, what was not chosen, and what is kept."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.audit_tables import SAMPLES
from altalign.data.reasons import KEPT, Stage
from altalign.data.schema import DROPPED
from altalign.pipelines.derive import units
from altalign.pipelines.derive.parents import Parent, Piece, of_unit
from altalign.pipelines.figures import image_figures, text_figures
from altalign.pipelines.run import outputs
from altalign.pipelines.run.shard_tables import CHOSEN
from altalign.pipelines.run.units import Run
from altalign.storage import parquet

# Kinds of reasons that are of a threshold, and whether the largest values are the nearest.
_FROM_ABOVE = {"score_below": True, "not_in_top": True, "score_above": False}


def write(run: Run, parents: Sequence[Parent]) -> None:
    """Write `audit/samples.parquet`."""
    of_parents = [parquet.read_table(parent.path(SAMPLES.path)).cast(SAMPLES.schema) for parent in parents]
    before = [rows.filter(pc.field("stage") != KEPT) for rows in of_parents]
    gone = _dropped(run, parents) if run.config.audit.keep_dropped else ()
    parts = [image_figures.to_samples(*part) for part in (*gone, *image_figures.kept(run))]
    outputs.write_audit(run, SAMPLES, pa.concat_tables([SAMPLES.schema.empty_table(), *before, *parts]))


def _dropped(run: Run, parents: Sequence[Parent]) -> Iterator[image_figures.Part]:
    """The first rows that were not chosen, for each reason, with pictures from the parents' shards."""
    found: Counter[str] = Counter()
    for name, facts in run.all_facts(CHOSEN):
        reasons = {reason for _, _, reason, _ in facts.counts if reason != KEPT}
        wanted = {of: left for of in reasons if (left := text_figures.PER_REASON - found[of]) > 0}
        path = outputs.dropped(run, Stage.SELECT, name)
        if not wanted or not storage.exists(path):
            continue
        rows = _chosen(parquet.read_table(path), wanted).select(DROPPED.names)
        found.update(parquet.values(rows, "reason"))
        yield rows, _pictures(run, *of_unit(parents, name), parquet.values(rows, "key"))


def _pictures(run: Run, parent: Parent, pieces: Sequence[Piece], keys: Sequence[str]) -> list[bytes | None]:
    """Thumbnails of samples of a unit, by their keys."""
    rows, pictures = units.shards_of(parent, pieces), dict[str, bytes | None]()
    rows = rows.filter(pc.is_in(rows["key"], value_set=pa.array(keys, pa.string())))
    for shard in dict.fromkeys(parquet.values(rows, "shard")):
        there = parquet.values(rows.filter(pc.field("shard") == shard), "key")
        found = image_figures.pictures_of(run, parent.path("shards", shard), there)
        pictures |= dict(zip(there, found, strict=True))
    return [pictures[key] for key in keys]


def _chosen(rows: pa.Table, wanted: Mapping[str, int]) -> pa.Table:
    """The first rows of each reason, one an image; half of them those nearest to the threshold, where there is one."""
    near = [number for reason, most in wanted.items() for number in _nearest(rows, reason, most // 2)]
    images = {*rows.take(pa.array(near, pa.int64()))["image_id"].to_pylist()}
    others = rows.filter(pa.array([image not in images for image in parquet.values(rows, "image_id")]))
    found = Counter(parquet.values(rows.take(pa.array(near, pa.int64())), "reason"))
    first = image_figures.first_rows(others, {reason: most - found[reason] for reason, most in wanted.items()})
    return pa.concat_tables([rows.take(pa.array(sorted(near), pa.int64())), first])


def _nearest(rows: pa.Table, reason: str, most: int) -> list[int]:
    """Rows of a reason that are nearest to its threshold, one an image; none where it is of no number."""
    kind, _, column = reason.partition(":")
    if kind not in _FROM_ABOVE or "scores" not in rows.column_names:
        return []
    found, sign = list[tuple[float, int, str]](), -1 if _FROM_ABOVE[kind] else 1
    numbers = [number for number, each in enumerate(parquet.values(rows, "reason")) if each == reason]
    chosen = rows.select(["scores", "image_id"]).take(pa.array(numbers, pa.int64())).to_pylist()
    for number, row in zip(numbers, chosen, strict=True):
        value = json.loads(row["scores"] or "{}").get(column)
        if isinstance(value, (int, float)):
            found.append((sign * value, number, row["image_id"]))
    of_images = dict[str, int]()
    for _, number, image in sorted(found):
        of_images.setdefault(image, number)
    return list(of_images.values())[:most]
