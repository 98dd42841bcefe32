"""Fetch and image: gets every surviving image once, however many captions it has, and measures and judges it.

A fetch unit is a row group of the grouped survivors. Its images come from the input files (`fetch_from_files`) or from
the web (`fetch_from_web`). Either leaves a blob of bytes and an outcome for each image, in the order of images; what
follows is the same for both.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, assert_never

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.pvalue import PCollection, PValue

from altalign import storage
from altalign.data import audit_tables
from altalign.data.audit_tables import IMAGE_MEASURES, IMAGE_VALUES
from altalign.data.counts import FailedCounts
from altalign.data.reasons import REASONS, DropReason, Stage, ask, reasons_of
from altalign.data.schema import STRINGS
from altalign.data.stages import REMOVED_FILE
from altalign.filters import identity
from altalign.filters.image_headers import STRICT_PILLOW
from altalign.pipelines.engine.map_units import MapUnits
from altalign.pipelines.figures import gallery_rows, histograms, image_hosts, images_and_bytes
from altalign.pipelines.images import block_lists, measuring
from altalign.pipelines.images.measuring import Outcome
from altalign.pipelines.run import image_tables, outputs, pool, progress, text_tables
from altalign.pipelines.run.removal_list import of_run
from altalign.pipelines.run.text_tables import GROUPED, GROUPED_SURVIVORS
from altalign.pipelines.run.units import FOLDER, SET_ASIDE, Run, Table, fetched_before
from altalign.pipelines.stages import fetch_from_files, fetch_from_web
from altalign.pipelines.web.journal import journal
from altalign.pipelines.web.journal.fetch_progress import WebWatch
from altalign.rules import own
from altalign.storage import arrays, parquet

READS = (GROUPED_SURVIVORS, text_tables.COPIED_IMAGES, text_tables.FOLDER_FILES)
WRITES = (
    image_tables.TEST_IMAGES,
    image_tables.GATHERED_IMAGES,
    image_tables.GATHERED_INDEX,
    image_tables.IMAGES,
    image_tables.OUTCOMES,
    image_tables.FETCHED_ROWS,
    image_tables.FEATURES,
    image_tables.MEASURED_IMAGES,
    image_tables.VALUES_OF_IMAGES,
    outputs.DROPPED_ROWS[Stage.FETCH],
    outputs.DROPPED_ROWS[Stage.IMAGE],
    *map(Table.of_audit, (audit_tables.IMAGE_MEASURES, audit_tables.IMAGE_VALUES, audit_tables.HOSTS)),
)

SECONDS_PER_IMAGE = 1e-3  # docs/concepts/speed.md; web-size images take three times that


def plan(run: Run) -> list[image_tables.FetchUnit]:
    """One unit a row group of the grouped survivors, in order of image_id."""
    grouped = [(name, facts.row_groups) for name, facts in run.all_facts(GROUPED)]
    groups = [(name, number, group) for name, of_name in grouped for number, group in enumerate(of_name)]
    units, images = len(groups), sum(group["images"] for _, _, group in groups)
    one_in = gallery_rows.one_in(images, image_hosts.IMAGES_AT_MOST)
    return [
        image_tables.FetchUnit(
            name=f"{name}-{number:05d}", partition=name, row_group=number, **group, units=units, one_in=one_in
        )
        for name, number, group in groups
    ]


class Fetch(beam.PTransform[Any, Any]):
    """Units of images in, names of finished ones out."""

    def __init__(self, run: Run):
        super().__init__()
        self._run = run

    def expand(self, input_or_inputs: PCollection[Any]) -> PValue:
        """Do every unit that is not finished; units that wait for the web run more at a time than there are cores."""
        threads = fetch_from_web.threads(self._run) if self._run.config.fetch.source == "web" else {}
        return input_or_inputs | MapUnits(self._run, image_tables.FETCHED, fetch, **threads)


def watch(run: Run) -> type[progress.Watch]:
    """The class that shows the progress of this step."""
    return WebWatch if run.config.fetch.source == "web" else progress.Watch


def what_is_known(run: Run) -> str:
    """A sentence on the images that are taken over, and those that the web will be asked for; empty of a first try."""
    is_of_web = run.config.fetch.source == "web"
    if not is_of_web or not (fetched_before(run) or journal.names(run.work(image_tables.FETCHED.step))):
        return ""
    finished, taken, asked = {*run.finished(image_tables.FETCHED.step)}, 0, 0
    for unit in plan(run):
        if unit["name"] in finished:
            taken += unit["images"]
            continue
        rows = image_tables.survivors(run, unit)
        first_rows = image_tables.first_of_each_image(rows)
        of_images = rows.take(first_rows)
        image_of = np.repeat(np.arange(len(first_rows)), np.diff(np.r_[first_rows, len(rows)]))
        stays = _blocked(run, of_images) | _removed(run, rows, image_of)
        of_web = np.flatnonzero(~fetch_from_files.in_hand(run, of_images)).tolist()
        wanted = [number for number in of_web if number not in stays]
        known = fetch_from_web.known(run, unit, of_images, wanted)
        taken, asked = taken + known, asked + len(wanted) - known
    ends = "came or failed before and are" if taken != 1 else "came or failed before and is"
    return f"fetch: {taken:,} image{'s' * (taken != 1)} {ends} taken over, {asked:,} to ask for"


def seconds(run: Run, units: Sequence[image_tables.FetchUnit]) -> float:
    """About how long these units take one core.

    0 where they wait for the web, or a model looks at colours, which has threads of its own.
    """
    is_ours = run.config.fetch.source == "archive" and not measuring.hooks_of(run.config).colour
    return SECONDS_PER_IMAGE * sum(unit["images"] for unit in units) if is_ours else 0.0


def fetch(run: Run, unit: image_tables.FetchUnit) -> image_tables.FetchFacts:
    """Fetch and judge the images of a unit; all bytes go to its blob, rows that pass to its table."""
    rows = image_tables.survivors(run, unit)
    first_rows = image_tables.first_of_each_image(rows)
    of_images = rows.take(first_rows)
    image_of = np.repeat(np.arange(len(first_rows)), np.diff(np.r_[first_rows, len(rows)]))
    blocked = _blocked(run, of_images) | _removed(run, rows, image_of)
    with STRICT_PILLOW:
        match run.config.fetch.source:
            case "archive":
                is_left = pa.array([number not in blocked for number in range(len(of_images))], pa.bool_())
                found = iter(fetch_from_files.fetch_images(run, unit, of_images.filter(is_left)))
                outcomes = [blocked.get(number) or next(found) for number in range(len(of_images))]
            case "web":
                outcomes = fetch_from_web.fetch_images(run, unit, of_images, blocked)
            case unknown:
                assert_never(unknown)
    verdict = _verdict(run, of_images, outcomes)
    return _write(run, unit, _joined(run, rows, outcomes, verdict, image_of))


def _blocked(run: Run, rows: pa.Table) -> dict[int, Outcome]:
    """The numbers of the images whose URLs a block list names, each with its outcome."""
    listed = block_lists.of_urls(run.config.fetch)
    urls: list[Any] = rows["image_url"].to_pylist() if len(listed) else []
    is_listed = (bool(url) and listed.names_url(url) for url in urls)
    return {number: Outcome(DropReason.URL_BLOCKED) for number, listed in enumerate(is_listed) if listed}


def _removed(run: Run, rows: pa.Table, image_of: npt.NDArray[np.int64]) -> dict[int, Outcome]:
    """The numbers of the images all of whose pairs were removed earlier: the web is not asked for them again.

    Images of the input's own files are judged as ever; the run takes them out at its end.
    """
    path = run.path(REMOVED_FILE)
    if run.config.fetch.source != "web" or not storage.exists(path):
        return {}
    ids = {name: identity.hexed(arrays.ids_of(rows[name])) for name in ("key", "image_id")}
    is_gone = of_run(path).matches(pa.table({**{name: rows[name] for name in STRINGS}, **ids}))
    stays = np.bincount(image_of, weights=~is_gone)
    return {number: Outcome(DropReason.REMOVED) for number in np.flatnonzero(stays == 0).tolist()}


def _verdict(run: Run, rows: pa.Table, outcomes: Sequence[Outcome]) -> dict[str, "pa.Array[Any]"]:
    """`reason` and `failed` of each image: why it was not fetched, or what the image rules say of it."""
    measured = [outcome.measured for outcome in outcomes]
    columns = measuring.columns(measured)
    columns["url"] = parquet.strings(rows, "image_url")
    columns["bytes"] = pa.array([outcome.bytes for outcome in outcomes], pa.int64())
    rules = own.rules(Stage.IMAGE, run.config, run.modules)
    verdicts = ask(rules, columns, run.config, lambda row: f"the image {columns['url'][row].as_py()!r}")
    reason, failed = reasons_of(verdicts)
    missing = pa.array([outcome.reason for outcome in outcomes], pa.string())
    missing_alone = pa.array([[outcome.reason] for outcome in outcomes], pa.list_(pa.string()))
    return {
        "reason": pc.if_else(missing.is_valid(), missing, reason.dictionary_decode()),
        "failed": pc.if_else(missing.is_valid(), missing_alone, failed.dictionary_decode()),
    }


def _joined(
    run: Run,
    rows: pa.Table,
    outcomes: Sequence[Outcome],
    verdict: dict[str, "pa.Array[Any]"],
    image_of: npt.NDArray[np.int64],
) -> pa.Table:
    """One row a candidate: its text, what was measured of its image, and the verdict; `image_of`: numbers of images."""
    text = {name: rows[name].combine_chunks() for name in (*STRINGS, "words")}
    ids = {name: identity.hexed(arrays.ids_of(rows[name])) for name in ("key", "image_id")}
    measured = measuring.columns([outcome.measured for outcome in outcomes])
    of_image = {
        **{name: measured[name] for name in ("width", "height", "format", "nsfw_score", "found_sha256", "features")},
        "http_code": pa.array([outcome.http_code for outcome in outcomes], pa.int32()),
        "blob_offset": pa.array([outcome.offset for outcome in outcomes], pa.int64()),
        "blob_bytes": pa.array([outcome.bytes for outcome in outcomes], pa.int64()),
        **verdict,
    }
    source = {"source": pool.sources(run, rows["file"])}
    return pa.table({**ids, **text, **source, **{name: column.take(image_of) for name, column in of_image.items()}})


def _write(run: Run, unit: image_tables.FetchUnit, rows: pa.Table) -> image_tables.FetchFacts:
    """Write what a unit leaves: the dropped rows of both stages, the figures of the audit, and the rows that go on."""
    of_fetch = pa.array(REASONS[Stage.FETCH])
    has_come = pc.invert(pc.is_in(parquet.strings(rows, "reason"), value_set=of_fetch))  # true for null
    missing, seen = rows.filter(pc.invert(has_come)), rows.filter(has_come)
    kept, dropped = seen.filter(seen["reason"].is_null()), seen.filter(seen["reason"].is_valid())
    failed_counts = FailedCounts()
    failed_counts.add(Stage.FETCH, missing["source"], missing["failed"])
    for source, count in parquet.tally(seen["source"]):
        failed_counts.add_rows(Stage.FETCH, source, [], count)
    failed_counts.add(Stage.IMAGE, seen["source"], seen["failed"])
    if run.config.audit.keep_dropped:
        for stage, part in ((Stage.FETCH, missing), (Stage.IMAGE, dropped)):
            outputs.write_dropped(outputs.dropped(run, stage, unit["name"]), stage, part)
    measures = histograms.Histograms(histograms.OF_IMAGE)
    measures.add(histograms.of_images(seen), parquet.values(seen, "failed"), np.arange(len(seen)))
    image_tables.MEASURED_IMAGES.write(run, measures.to_arrow(), unit["name"])
    image_tables.VALUES_OF_IMAGES.write(run, histograms.image_values(seen), unit["name"])
    image_tables.FEATURES.save(
        run, _features(run, kept.take(image_tables.first_of_each_image(kept))["features"]), unit["name"]
    )
    image_tables.FETCHED_ROWS.write(run, kept, unit["name"])
    gone = (parquet.values(dropped, name) for name in ("image_id", "reason", "failed", "blob_offset", "blob_bytes"))
    with_outcome = rows.append_column("has_come", has_come).append_column("is_kept", rows["reason"].is_null())
    of_images, names = (
        with_outcome.take(image_tables.first_of_each_image(rows)),
        ("image_id", "image_url", "has_come", "is_kept"),
    )
    return image_tables.FetchFacts(
        len(kept),
        **failed_counts.facts(),
        pictures=gallery_rows.places_of(*gone, units=unit["units"]),
        funnel=[
            *images_and_bytes.of_images(Stage.JUDGE.value, rows, sizes=None),
            *images_and_bytes.of_images(Stage.FETCH.value, seen, sizes="blob_bytes"),
            *images_and_bytes.of_images(Stage.IMAGE.value, kept, sizes="blob_bytes"),
        ],
        dropped_images=[
            *images_and_bytes.dropped_images(Stage.FETCH, missing),
            *images_and_bytes.dropped_images(Stage.IMAGE, dropped),
        ],
        hosts=image_hosts.count(*(parquet.values(of_images, name) for name in names), one_in=unit["one_in"]),
    )


def _features(run: Run, features: "pa.ChunkedArray[Any]") -> npt.NDArray[np.int16]:
    """The features of the kept images in their order: int16[n, d], zeros for a flat image."""
    dimensions = measuring.hooks_of(run.config).embedder.dimensions
    each: Any = pc.fill_null(features, pa.scalar(bytes(2 * dimensions)))
    return np.frombuffer(b"".join(each.to_pylist()), np.int16).reshape(-1, dimensions)


def conclude(run: Run) -> None:
    """Write what was measured of images: `image_measures`, `image_values` and `hosts`, all `.parquet` in `audit/`."""
    for of_units, table in (
        (image_tables.MEASURED_IMAGES, IMAGE_MEASURES),
        (image_tables.VALUES_OF_IMAGES, IMAGE_VALUES),
    ):
        parts = storage.each(partial(of_units.read, run), run.finished(image_tables.FETCHED.step), of=run.folder)
        outputs.write_audit(run, table, histograms.total(parts, table.schema))
    of_hosts = [facts.hosts for _, facts in run.all_facts(image_tables.FETCHED) if facts.hosts]  # few units have any
    image_hosts.write(run, of_hosts, one_in=next((unit["one_in"] for unit in plan(run)), 1))
    if fetched_before(run):
        storage.delete_units([run.work(FOLDER), run.work(SET_ASIDE)])  # what these have is in the units now
