"""Fetch and image: the bytes of every surviving image, once however many captions it has; measured and judged while decoded.

A fetch unit is a row group of the grouped survivors. Its images come from where they are in hand (`fetch_archive`) or
from the web (`fetch_web`); either leaves a blob of bytes and, of each image, an outcome, in the order of images. What
follows is the same.
"""

from collections.abc import Sequence
from typing import Any, assert_never

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.pvalue import PCollection, PValue

from altalign import storage
from altalign.curation import ImageSettings
from altalign.failed import FailedCounts
from altalign.filters import identity
from altalign.filters.image_headers import STRICT_PILLOW
from altalign.pipelines.engine.map_units import MapUnits
from altalign.pipelines.evidence import funnel, gallery_rows, image_hosts, image_joint, outcome_joint
from altalign.pipelines.files import arrays, parquet
from altalign.pipelines.images import measuring
from altalign.pipelines.images.measuring import Outcome
from altalign.pipelines.run import pool, progress
from altalign.pipelines.run.units import Facts, Run, Unit
from altalign.pipelines.stages import fetch_from_files, fetch_from_web, judge
from altalign.pipelines.web.kept.fetch_progress import WebWatch
from altalign.reasons import REASONS, Stage, reasons_of
from altalign.schema import DROPPED, SAMPLE

SECONDS_PER_IMAGE = 1e-3  # docs/concepts/where-the-time-goes.md; of a web-size one three times that

# A candidate that passed the image rules, with where its image's bytes lie in the blob of its fetch unit, and what the
# audit's joint counts want.
FETCHED = pa.schema(
    [
        *(field for field in SAMPLE if field.name not in ("bytes", "sha256", "tar_offset", "tar_bytes")),
        pa.field("blob_offset", pa.int64()),
        pa.field("blob_bytes", pa.int64()),
        pa.field("rarest_log2", pa.uint8()),
    ]
)


def plan(run: Run) -> list[Unit]:
    """One unit a row group of the grouped survivors, in order of image_id."""
    groups = [
        (name, number, group)
        for name, facts in run.all_facts("judge/grouped")
        for number, group in enumerate(facts["row_groups"])
    ]
    of_run = {
        "units": len(groups),
        "one_in": gallery_rows.one_in(sum(group["images"] for _, _, group in groups), image_hosts.IMAGES_AT_MOST),
    }
    return [
        {"name": f"{name}-{number:05d}", "partition": name, "row_group": number, **group, **of_run}
        for name, number, group in groups
    ]


class Fetch(beam.PTransform[Any, Any]):
    """Units of images in, names of finished ones out."""

    def __init__(self, run: Run, step: str):
        super().__init__()
        self._run, self._step = run, step

    def expand(self, input_or_inputs: PCollection[Any]) -> PValue:
        """Do every unit that is not finished; from the web, more at a time than there are cores."""
        threads = fetch_from_web.threads(self._run) if self._run.config.fetch.source == "web" else {}
        return input_or_inputs | MapUnits(self._run, self._step, fetch, **threads)


def watch(run: Run) -> type[progress.Watch]:
    """What shows the progress of this step."""
    return WebWatch if run.config.fetch.source == "web" else progress.Watch


def seconds(run: Run, units: Sequence[Unit]) -> float:
    """What they take one core, about; 0 where they wait for the web, or a model, which has threads of its own, looks at colours."""
    is_ours = run.config.fetch.source == "archive" and not measuring.hooks_of(run.config).colour
    return SECONDS_PER_IMAGE * sum(unit["images"] for unit in units) if is_ours else 0.0


def fetch(run: Run, unit: Unit) -> Facts:
    """Fetch and judge the images of a unit; all bytes go to its blob, rows that pass to its table."""
    rows = survivors(run, unit)
    first_rows = first_of_each_image(rows)
    of_images = rows.take(first_rows)
    with STRICT_PILLOW:
        match run.config.fetch.source:
            case "archive":
                outcomes = fetch_from_files.fetch_images(run, unit, of_images)
            case "web":
                outcomes = fetch_from_web.fetch_images(run, unit, of_images)
            case unknown:
                assert_never(unknown)
    image_of = np.repeat(np.arange(len(first_rows)), np.diff(np.r_[first_rows, len(rows)]))
    return _write(run, unit, _joined(run, rows, outcomes, _verdict(outcomes, run.config.image), image_of))


def survivors(run: Run, unit: Unit) -> pa.Table:
    """The rows of a unit, of `judge.GROUPED`, sorted by image_id."""
    path = run.work("judge/grouped", f"{unit['partition']}.parquet")
    return pa.Table.from_batches(
        list(parquet.read_row_groups(path, unit["row_group"], unit["row_group"])), judge.GROUPED
    ).combine_chunks()


def first_of_each_image(rows: pa.Table) -> np.ndarray:
    """Numbers of the first row of each image."""
    ids = rows["image_id"].combine_chunks()
    return np.flatnonzero(np.r_[True, pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)][: len(rows)])


def _verdict(outcomes: Sequence[Outcome], config: ImageSettings) -> dict[str, "pa.Array[Any]"]:
    """`reason` and `failed` of each image: why it is not in hand, or what the image rules say of it."""
    reason, failed = reasons_of(measuring.verdicts([outcome.measured for outcome in outcomes], config))
    missing = pa.array([outcome.reason for outcome in outcomes], pa.string())
    missing_alone = pa.array([[outcome.reason] for outcome in outcomes], pa.list_(pa.string()))
    return {
        "reason": pc.if_else(missing.is_valid(), missing, reason.dictionary_decode()),
        "failed": pc.if_else(missing.is_valid(), missing_alone, failed.dictionary_decode()),
    }


def _joined(
    run: Run, rows: pa.Table, outcomes: Sequence[Outcome], verdict: dict[str, "pa.Array[Any]"], image_of: np.ndarray
) -> pa.Table:
    """One row a candidate: what came before, what was measured of its image, and the verdict."""
    text = {name: rows[name].combine_chunks() for name in ("image_url", "caption", "page_url", "words", "rarest_log2")}
    ids = {name: identity.hexed(judge.ids_of(rows[name])) for name in ("key", "image_id")}
    measured = measuring.columns([outcome.measured for outcome in outcomes])
    of_image = {
        **{name: measured[name] for name in ("width", "height", "format", "nsfw_score", "found_sha256", "features")},
        "http_code": pa.array([outcome.http_code for outcome in outcomes], pa.int32()),
        "blob_offset": pa.array([outcome.offset for outcome in outcomes], pa.int64()),
        "blob_bytes": pa.array([outcome.bytes for outcome in outcomes], pa.int64()),
        **verdict,
    }
    source = pool.sources(run, rows["file"])
    return pa.table(
        {**ids, **text, "source": source, **{name: column.take(image_of) for name, column in of_image.items()}}
    )


def _write(run: Run, unit: Unit, rows: pa.Table) -> Facts:
    """Write what a unit leaves: dropped rows of both stages, what was measured, the rows that go on."""
    # false for null
    is_missing = pc.is_in(
        parquet.strings(rows, "reason"), value_set=pa.array([reason.value for reason in REASONS[Stage.FETCH]])
    )
    missing, seen = rows.filter(is_missing), rows.filter(pc.invert(is_missing))
    kept, dropped = seen.filter(seen["reason"].is_null()), seen.filter(seen["reason"].is_valid())
    failed_counts = FailedCounts()
    failed_counts.add(Stage.FETCH, missing["source"], missing["failed"])
    for source, count in parquet.tally(seen["source"]):
        failed_counts.add_rows(Stage.FETCH, source, [], count)
    failed_counts.add(Stage.IMAGE, seen["source"], seen["failed"])
    if run.config.audit.keep_dropped:
        for stage, part in ((Stage.FETCH, missing), (Stage.IMAGE, dropped)):
            write_dropped(run.path("dropped", stage.value, f"{unit['name']}.parquet"), stage, part)
    parquet.write(run.work("fetch/units", f"{unit['name']}.image_joint"), image_joint.joint(seen), image_joint.JOINT)
    parquet.write(run.work("fetch/units", f"{unit['name']}.image_values"), image_joint.values(seen), image_joint.VALUES)
    parquet.write(
        run.work("fetch/units", f"{unit['name']}.outcome_joint"),
        outcome_joint.of_fetched(rows, run.config.image),
        outcome_joint.JOINT,
    )
    _write_features(run, unit, kept.take(first_of_each_image(kept))["features"])
    parquet.write(run.work("fetch/units", f"{unit['name']}.parquet"), kept.select(FETCHED.names), FETCHED)
    gone = (parquet.values(dropped, name) for name in ("image_id", "reason", "blob_offset", "blob_bytes"))
    firsts = first_of_each_image(rows)
    of_each = {"came": pc.invert(is_missing), "stays": rows["reason"].is_null()}
    columns: dict[str, Any] = {"id": rows["image_id"], "url": rows["image_url"], **of_each}
    of_images = pa.table(columns).take(firsts)
    return {
        "kept": len(kept),
        **failed_counts.facts(),
        "pictures": gallery_rows.places_of(*gone, units=unit["units"]),
        "funnel": [
            *funnel.of_images(Stage.JUDGE.value, rows, sizes=None),
            *funnel.of_images(Stage.FETCH.value, seen, sizes="blob_bytes"),
            *funnel.of_images(Stage.IMAGE.value, kept, sizes="blob_bytes"),
        ],
        "hosts": image_hosts.count(
            *(parquet.values(of_images, name) for name in ("id", "url", *of_each)), one_in=unit["one_in"]
        ),
    }


def _write_features(run: Run, unit: Unit, features: "pa.ChunkedArray[Any]") -> None:
    """What the embedder makes of each kept image, in their order: int16[n, d], zeros for one that is flat."""
    dimensions = measuring.hooks_of(run.config).embedder.dimensions
    each: Any = pc.fill_null(features, pa.scalar(bytes(2 * dimensions)))
    arrays.save(
        run.work("fetch/units", f"{unit['name']}.features"),
        np.frombuffer(b"".join(each.to_pylist()), np.int16).reshape(-1, dimensions),
    )


def write_dropped(path: str, stage: Stage, rows: pa.Table) -> None:
    """The dropped rows of a stage; what an earlier try has left is gone where there are none now."""
    columns = {name: rows[name] for name in rows.column_names if name in DROPPED.names}
    if not len(rows) and storage.exists(path):
        storage.delete(path)
    parquet.write_any(path, parquet.table({**columns, "stage": stage.value}, DROPPED), DROPPED)


def conclude(run: Run) -> None:
    """What was measured of images, for the audit: `audit/image_joint.parquet`, `audit/image_values.parquet`, `audit/hosts.parquet`."""
    for name, schema in (("image_joint", image_joint.JOINT), ("image_values", image_joint.VALUES)):
        paths = [run.work("fetch/units", f"{unit}.{name}") for unit in run.finished("fetch/units")]
        parts = storage.each(parquet.read_table, paths, of=run.folder)
        parquet.write(run.path("audit", f"{name}.parquet"), image_joint.total(parts, schema), schema)
    # few units have images of the sample
    of_hosts = [facts["hosts"] for _, facts in run.all_facts("fetch/units") if facts["hosts"]]
    image_hosts.write(run, of_hosts, one_in=next((unit["one_in"] for unit in plan(run)), 1))
