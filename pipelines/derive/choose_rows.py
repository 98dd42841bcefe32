"""What becomes of the rows of a parent's shard: which stay, why others are dropped, and what galleries show."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.audit_tables import SAMPLES
from altalign.data.counts import FailedCounts
from altalign.data.reasons import KEPT, Stage, Verdict, reasons_of
from altalign.data.schema import DROPPED
from altalign.pipelines.derive.parents import Parent, of_unit
from altalign.pipelines.figures import image_figures, text_figures
from altalign.pipelines.run import outputs
from altalign.pipelines.run.shard_tables import CHOSEN, CHOSEN_ROWS, ChosenFacts
from altalign.pipelines.run.units import Run
from altalign.storage import parquet

Mask = npt.NDArray[np.bool_]

# A row that `select` drops: also the values that it was decided by, as a JSON object.
DROPPED_BY_SELECT = DROPPED.append(pa.field("scores", pa.string()))
# Kinds of reasons that are of a threshold, and whether the largest values are the nearest.
_FROM_ABOVE = {"score_below": True, "not_in_top": True, "score_above": False}


def chosen(
    run: Run,
    name: str,
    rows: pa.Table,
    verdicts: Sequence[Verdict],
    scores: "Callable[[Mask], pa.Array[Any]] | None" = None,
    *,
    is_of_keys: bool = False,
) -> ChosenFacts:
    """Write which of n rows of a unit stay, and the others with their reasons; of keys alone no dropped rows.

    `rows` have `source`, and all that a dropped row has where those are kept; there is a verdict of each rule, in
    order. `scores` are the values that the rows of a mask were decided by, as JSON objects.
    """
    counts = FailedCounts()
    first, failed = reasons_of(verdicts)
    counts.add(Stage.SELECT, rows["source"], failed)
    stays = first.is_null().to_numpy(zero_copy_only=False)
    CHOSEN_ROWS.save(run, np.flatnonzero(stays), name)
    if run.config.audit.keep_dropped and not is_of_keys:
        columns = {column: rows[column] for column in rows.column_names if column in DROPPED.names}
        columns |= {"reason": first.cast(pa.string()), "failed": failed.dictionary_decode()}
        gone = pa.table(columns).filter(pa.array(~stays))
        more = {"stage": Stage.SELECT.value, "scores": scores(~stays) if scores else None}
        dropped = parquet.table({**{name: gone[name] for name in columns}, **more}, DROPPED_BY_SELECT)
        path = outputs.dropped(run, Stage.SELECT, name)
        if not len(dropped) and storage.exists(path):
            storage.delete(path)
        parquet.write_any(path, dropped, DROPPED_BY_SELECT)
    return ChosenFacts(kept=int(stays.sum()), **counts.facts())


# Galleries -----------------------------------------------------------------------------------------------------------


def write_galleries(run: Run, parents: Sequence[Parent]) -> None:
    """Write `audit/samples.parquet`: what the parents show, what was not chosen, and what is kept."""
    of_parents = [parquet.read_table(parent.path(SAMPLES.path)).cast(SAMPLES.schema) for parent in parents]
    before = [rows.filter(pc.field("stage") != KEPT) for rows in of_parents]
    gone = _dropped(run, parents) if run.config.audit.keep_dropped else ()
    parts = [image_figures.to_samples(*part) for part in (*gone, *image_figures.kept(run))]
    outputs.write_audit(run, SAMPLES, pa.concat_tables([*before, *parts]))


def _dropped(run: Run, parents: Sequence[Parent]) -> Iterator[image_figures.Part]:
    """The first rows that were not chosen, for each reason, with pictures from the parents' shards."""
    taken: Counter[str] = Counter()
    for name, facts in run.all_facts(CHOSEN):
        reasons = {reason for _, _, reason, _ in facts.counts if reason != KEPT}
        most = {reason: left for reason in reasons if (left := text_figures.PER_REASON - taken[reason]) > 0}
        path = outputs.dropped(run, Stage.SELECT, name)
        if not most or not storage.exists(path):
            continue
        rows = _shown(parquet.read_table(path), most).select(DROPPED.names)
        taken.update(parquet.values(rows, "reason"))
        keys, (parent, shard) = parquet.values(rows, "key"), of_unit(parents, name)
        yield rows, list(image_figures.pictures_of(run, parent.path("shards", shard.name), keys))


def _shown(rows: pa.Table, most: Mapping[str, int]) -> pa.Table:
    """The first rows of each reason, one an image; half of them those nearest to the threshold, if it is of one."""
    near = [number for reason, limit in most.items() for number in _nearest(rows, reason, limit // 2)]
    nearest = rows.take(pa.array(sorted(near), pa.int64()))
    images, reasons = {*nearest["image_id"].to_pylist()}, Counter(parquet.values(nearest, "reason"))
    others = rows.filter(pa.array([image not in images for image in parquet.values(rows, "image_id")]))
    left = {reason: limit - reasons[reason] for reason, limit in most.items()}
    return pa.concat_tables([nearest, image_figures.first_rows(others, left)])


def _nearest(rows: pa.Table, reason: str, most: int) -> list[int]:
    """Rows of a reason that are nearest to its threshold, one an image; none where it is of no number."""
    kind, _, column = reason.partition(":")
    if kind not in _FROM_ABOVE or "scores" not in rows.column_names:
        return []
    sign, by_distance = -1 if _FROM_ABOVE[kind] else 1, list[tuple[float, int, str]]()
    for number, row in enumerate(rows.select(["reason", "scores", "image_id"]).to_pylist()):
        value = json.loads(row["scores"] or "{}").get(column) if row["reason"] == reason else None
        if isinstance(value, (int, float)):
            by_distance.append((sign * value, number, row["image_id"]))
    of_images = dict[str, int]()
    for _, number, image in sorted(by_distance):
        of_images.setdefault(image, number)
    return list(of_images.values())[:most]
