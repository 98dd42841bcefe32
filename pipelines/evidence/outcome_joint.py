"""Exact counts of the pairs that `judge` kept, by outcome and by what was measured of text and image.

They add up over units and are bounded in size. From `audit/outcome_joint.parquet` a report can say what stricter
thresholds would leave at the end, and how much looser limits of size and shape could leave at most. Sizes and shapes
are rounded to stops: values that a limit may have, the run's own among them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from fractions import Fraction

import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.audit_tables import OUTCOME_JOINT
from altalign.curation import ImageSettings
from altalign.pipelines.evidence import image_joint
from altalign.pipelines.files import parquet
from altalign.pipelines.run import outputs
from altalign.pipelines.run.artefacts.decontaminated import Decontaminated
from altalign.pipelines.run.artefacts.fetched import Fetched
from altalign.pipelines.run.units import Run
from altalign.slider_stops import (
    ABOVE_ALL,
    FAILS_OTHERWISE,
    KEPT,
    NEAR_DUPLICATE,
    NOT_SEARCHED,
    WORDS_AT_MOST,
    aspects,
    short_sides,
)

LOG2_STEP = 4  # half an octave


def of_fetched(rows: pa.Table, config: ImageSettings) -> pa.Table:
    """The rows of `OUTCOME_JOINT` for the rows of a fetch unit.

    These have words, rarest_log2, width, height and failed (every rule of fetch or image that holds).
    """
    fails = pc.if_else(image_joint.fails_otherwise(rows["failed"]), FAILS_OTHERWISE, NOT_SEARCHED)
    is_kept = pc.equal(pc.list_value_length(rows["failed"]), pa.scalar(0))
    return _joint(rows, pc.if_else(is_kept, KEPT, fails), config, 1)


def of_near_duplicates(rows: pa.Table, config: ImageSettings) -> pa.Table:
    """The change where kept rows turned out to be near-duplicates: -1 pair kept, +1 near-duplicate for each.

    `rows` have the columns of `of_fetched`, but not `failed`.
    """
    parts = [
        _joint(rows, pa.repeat(pa.scalar(outcome), len(rows)), config, pairs)
        for outcome, pairs in ((KEPT, -1), (NEAR_DUPLICATE, 1))
    ]
    return image_joint.total(parts, OUTCOME_JOINT.schema)


def _joint(rows: pa.Table, outcome: object, config: ImageSettings, pairs: int) -> pa.Table:
    rarest = rows["rarest_log2"].cast(pa.int32())
    sizes = list(zip(rows["width"].to_pylist(), rows["height"].to_pylist(), strict=True))
    of_short, of_aspect = short_sides(config), aspects(config)
    stops = {size: _stops(size, of_short, of_aspect) for size in set(sizes)}
    rounded = pc.multiply(pc.divide(rarest, LOG2_STEP), LOG2_STEP)
    columns = {
        "words": pc.min_element_wise(rows["words"], pa.scalar(WORDS_AT_MOST, pa.int32()), skip_nulls=False),
        "rarest_log2": pc.if_else(pc.equal(rarest, pa.scalar(255, rarest.type)), rarest, rounded),
        "short_side_px": pa.array([stops[size][0] for size in sizes], pa.int32()),
        "aspect_percent": pa.array([stops[size][1] for size in sizes], pa.int32()),
        "outcome": outcome,
        "pairs": pa.repeat(pa.scalar(pairs, pa.int64()), len(rows)),
    }
    return image_joint.total([pa.table(columns)], OUTCOME_JOINT.schema)


def _stops(
    size: tuple[int | None, int | None], of_short: list[int], of_aspect: dict[int, Fraction]
) -> tuple[int | None, int | None]:
    """The stops of an image's short side and shape; None where its size is unknown or 0."""
    width, height = size
    if not width or not height:
        return None, None
    short, long = sorted((width, height))
    above = of_short[bisect_left(of_short, short) - 1]  # 0 is a stop
    below = bisect_right([*of_aspect.values()], Fraction(long, short))
    return above, [*of_aspect, ABOVE_ALL][below]


def write(run: Run) -> None:
    """Write `audit/outcome_joint.parquet`: the outcomes of all fetch units, with the changes of decontamination."""
    joint = image_joint.total(_parts(run), OUTCOME_JOINT.schema)
    outputs.write_audit(run, OUTCOME_JOINT, joint.filter(pc.not_equal(joint["pairs"], pa.scalar(0))))


def _parts(run: Run) -> Iterator[pa.Table]:
    names = run.finished(Fetched.step)
    fetched = [Fetched(run, name).path("outcome_joint") for name in names]
    changed = set(storage.names(run.work(Decontaminated.step), ".outcome_joint"))
    of_dropped = [Decontaminated(run, name).outcome_joint for name in names if f"{name}.outcome_joint" in changed]
    return storage.each(parquet.read_table, [*fetched, *of_dropped], of=run.folder)
