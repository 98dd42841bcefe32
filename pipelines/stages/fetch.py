"""Fetch and image: gets every surviving image once, however many captions it has, and measures and judges it.

A fetch unit is a row group of the grouped survivors. Its images come from the input files (`fetch_from_files`) or from
the web. Either leaves a blob of bytes and an outcome for each image, in the order of images.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, assert_never

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.pvalue import PCollection, PValue

from altalign import storage
from altalign.data.audit_tables import IMAGE_MEASURES
from altalign.data.counts import FailedCounts
from altalign.data.reasons import REASONS, DropReason, Stage, ask, reasons_of
from altalign.data.schema import RULES_VERSION, STRINGS
from altalign.data.stages import REMOVED_FILE
from altalign.filters import identity
from altalign.filters.image_headers import STRICT_PILLOW
from altalign.machine import interrupts, memory
from altalign.pipelines.engine.map_units import MapUnits
from altalign.pipelines.figures import image_figures, text_figures
from altalign.pipelines.figures.image_figures import dropped_images, of_images_at
from altalign.pipelines.images import measuring
from altalign.pipelines.images.measuring import Measured, Outcome
from altalign.pipelines.run import outputs, pool, progress, text_tables
from altalign.pipelines.run.image_tables import (
    FEATURES,
    FETCHED,
    FETCHED_ROWS,
    MEASURED_IMAGES,
    FetchFacts,
    FetchUnit,
    first_of_each_image,
    survivors,
)
from altalign.pipelines.run.removal_list import of_run
from altalign.pipelines.run.text_tables import GROUPED, GROUPED_SURVIVORS
from altalign.pipelines.run.units import FOLDER, SET_ASIDE, Run, digest, fetched_before
from altalign.pipelines.stages import fetch_from_files
from altalign.pipelines.web import client, journal, log
from altalign.pipelines.web.log import WebWatch
from altalign.rules import own
from altalign.settings.curate import FetchSettings
from altalign.storage import arrays, parquet

READS = (GROUPED_SURVIVORS, text_tables.COPIED_IMAGES, text_tables.FOLDER_FILES)
WRITES = outputs.written_by("fetch")

SECONDS_PER_IMAGE = 1e-3  # docs/concepts/speed.md; web-size images take three times that


def plan(run: Run) -> list[FetchUnit]:
    """One unit a row group of the grouped survivors, in order of image_id."""
    grouped = [(name, facts.row_groups) for name, facts in run.all_facts(GROUPED)]
    groups = [(name, number, group) for name, of_name in grouped for number, group in enumerate(of_name)]
    units, images = len(groups), sum(group["images"] for _, _, group in groups)
    one_in = text_figures.one_in(images, image_figures.IMAGES_AT_MOST)
    return [
        FetchUnit(name=f"{name}-{number:05d}", partition=name, row_group=number, **group, units=units, one_in=one_in)
        for name, number, group in groups
    ]


class Fetch(beam.PTransform[Any, Any]):
    """Units of images in, names of finished ones out."""

    def __init__(self, run: Run):
        super().__init__()
        self._run = run

    def expand(self, input_or_inputs: PCollection[Any]) -> PValue:
        """Do every unit that is not finished; units that wait for the web run more at a time than there are cores."""
        threads = threads_for_web(self._run) if self._run.config.fetch.source == "web" else {}
        return input_or_inputs | MapUnits(self._run, FETCHED, fetch, **threads)


def watch(run: Run) -> type[progress.Watch]:
    """The class that shows the progress of this step."""
    return WebWatch if run.config.fetch.source == "web" else progress.Watch


def requests_ahead(run: Run) -> str:
    """A sentence on the images that are taken over, and those that the web will be asked for; empty of a first try."""
    if run.config.fetch.source != "web" or not (fetched_before(run) or journal.names(run.work(FETCHED.step))):
        return ""
    finished, taken, to_request = {*run.finished(FETCHED.step)}, 0, 0
    for unit in plan(run):
        if unit["name"] in finished:
            taken += unit["images"]
            continue
        rows = survivors(run, unit)
        of_images, image_of = _by_image(rows)
        from_web = set(np.flatnonzero(~fetch_from_files.in_hand(run, of_images)).tolist())
        from_web -= (_blocked(run, of_images) | _removed(run, rows, image_of)).keys()
        image_ids: list[Any] = identity.hexed(arrays.ids_of(of_images["image_id"])).to_pylist()
        stem = run.work(FETCHED.step, unit["name"])
        known = len(journal.known(run, stem, image_ids, from_web, partial(journal_grounds, run)))
        taken, to_request = taken + known, to_request + len(from_web) - known
    ends = "came or failed before and are" if taken != 1 else "came or failed before and is"
    return f"fetch: {taken:,} image{'s' * (taken != 1)} {ends} taken over, {to_request:,} to ask for"


def seconds(run: Run, units: Sequence[FetchUnit]) -> float:
    """About how long these units take one core; 0 where they wait for the web, or a model has threads of its own."""
    is_ours = run.config.fetch.source == "archive" and not measuring.hooks_of(run.config).colour
    return SECONDS_PER_IMAGE * sum(unit["images"] for unit in units) if is_ours else 0.0


def _by_image(rows: pa.Table) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """The first row of each image, and for each row the number of its image."""
    first_rows = first_of_each_image(rows)
    return rows.take(first_rows), np.repeat(np.arange(len(first_rows)), np.diff(np.r_[first_rows, len(rows)]))


def fetch(run: Run, unit: FetchUnit) -> FetchFacts:
    """Fetch and judge the images of a unit; all bytes go to its blob, rows that pass to its table."""
    rows = survivors(run, unit)
    of_images, image_of = _by_image(rows)
    blocked = _blocked(run, of_images) | _removed(run, rows, image_of)
    with STRICT_PILLOW:
        match run.config.fetch.source:
            case "archive":
                is_left = pa.array([number not in blocked for number in range(len(of_images))], pa.bool_())
                of_files = iter(fetch_from_files.fetch_images(run, unit, of_images.filter(is_left)))
                outcomes = [blocked.get(number) or next(of_files) for number in range(len(of_images))]
            case "web":
                outcomes = fetch_from_web(run, unit, of_images, blocked)
            case unknown:
                assert_never(unknown)
    return _write(run, unit, _judged(run, rows, of_images, outcomes, image_of))


def _blocked(run: Run, rows: pa.Table) -> dict[int, Outcome]:
    """The numbers of the images whose URLs a block list names, each with its outcome."""
    listed = measuring.blocked_urls(run.config.fetch)
    urls: list[Any] = rows["image_url"].to_pylist() if len(listed) else []
    is_listed = (bool(url) and listed.names_url(url) for url in urls)
    return {number: Outcome(DropReason.URL_BLOCKED) for number, listed in enumerate(is_listed) if listed}


def _removed(run: Run, rows: pa.Table, image_of: npt.NDArray[np.int64]) -> dict[int, Outcome]:
    """The numbers of the images all of whose pairs were removed earlier: the web is not asked for them again."""
    path = run.path(REMOVED_FILE)
    if run.config.fetch.source != "web" or not storage.exists(path):
        return {}
    ids = {name: identity.hexed(arrays.ids_of(rows[name])) for name in ("key", "image_id")}
    is_gone = of_run(path).matches(pa.table({**{name: rows[name] for name in STRINGS}, **ids}))
    stays = np.bincount(image_of, weights=~is_gone)
    return {number: Outcome(DropReason.REMOVED) for number in np.flatnonzero(stays == 0).tolist()}


def _judged(
    run: Run, rows: pa.Table, of_images: pa.Table, outcomes: Sequence[Outcome], image_of: npt.NDArray[np.int64]
) -> pa.Table:
    """One row a candidate: its text, what was measured of its image, and why it was not fetched or which rules hold.

    `of_images` has the first row of each image; `image_of`, int64[rows], the number of each row's image.
    """
    measured = measuring.columns([outcome.measured for outcome in outcomes])
    sizes = pa.array([outcome.bytes for outcome in outcomes], pa.int64())
    urls = parquet.strings(of_images, "image_url")
    rules = own.rules(Stage.IMAGE, run.config, run.modules)
    columns = {**measured, "url": urls, "bytes": sizes}
    reason, failed = reasons_of(ask(rules, columns, run.config, lambda row: f"the image {urls[row].as_py()!r}"))
    missing = pa.array([outcome.reason for outcome in outcomes], pa.string())
    missing_alone = pa.array([[outcome.reason] for outcome in outcomes], pa.list_(pa.string()))
    names = ("width", "height", "format", "nsfw_score", "found_sha256", "features")
    image_columns: dict[str, Any] = {
        **{name: measured[name] for name in names},
        "http_code": pa.array([outcome.http_code for outcome in outcomes], pa.int32()),
        "blob_offset": pa.array([outcome.offset for outcome in outcomes], pa.int64()),
        "blob_bytes": sizes,
        "reason": pc.if_else(missing.is_valid(), missing, reason.dictionary_decode()),
        "failed": pc.if_else(missing.is_valid(), missing_alone, failed.dictionary_decode()),
    }
    return pa.table(
        {
            **{name: identity.hexed(arrays.ids_of(rows[name])) for name in ("key", "image_id")},
            **{name: rows[name].combine_chunks() for name in (*STRINGS, "words")},
            "source": pool.sources(run, rows["file"]),
            **{name: column.take(image_of) for name, column in image_columns.items()},
        }
    )


def _write(run: Run, unit: FetchUnit, rows: pa.Table) -> FetchFacts:
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
    measures = text_figures.Histograms(text_figures.OF_IMAGE)
    measures.add(image_figures.image_measures(seen), parquet.values(seen, "failed"), np.arange(len(seen)))
    MEASURED_IMAGES.write(run, measures.to_arrow(), unit["name"])
    dimensions = measuring.hooks_of(run.config).embedder.dimensions
    features: Any = kept.take(first_of_each_image(kept))["features"]
    features = b"".join(pc.fill_null(features, pa.scalar(bytes(2 * dimensions))).to_pylist())
    FEATURES.save(run, np.frombuffer(features, np.int16).reshape(-1, dimensions), unit["name"])
    FETCHED_ROWS.write(run, kept, unit["name"])
    with_outcome = rows.append_column("has_come", has_come).append_column("is_kept", rows["reason"].is_null())
    of_images = with_outcome.take(first_of_each_image(rows))
    of_hosts = (parquet.values(of_images, name) for name in ("image_id", "image_url", "has_come", "is_kept"))
    return FetchFacts(
        len(kept),
        **failed_counts.facts(),
        pictures=image_figures.places_of(dropped, units=unit["units"]),
        funnel=[
            *of_images_at(Stage.JUDGE.value, rows, sizes=None),
            *of_images_at(Stage.FETCH.value, seen, sizes="blob_bytes"),
            *of_images_at(Stage.IMAGE.value, kept, sizes="blob_bytes"),
        ],
        dropped_images=[*dropped_images(Stage.FETCH, missing), *dropped_images(Stage.IMAGE, dropped)],
        hosts=image_figures.count_hosts(*of_hosts, one_in=unit["one_in"]),
    )


def conclude(run: Run) -> None:
    """Write what was measured of images: `audit/image_measures.parquet` and `audit/hosts.parquet`."""
    parts = storage.each(partial(MEASURED_IMAGES.read, run), run.finished(FETCHED.step), place=run.folder)
    outputs.write_audit(run, IMAGE_MEASURES, text_figures.sum_of(parts, IMAGE_MEASURES.schema))
    of_hosts = [facts.hosts for _, facts in run.all_facts(FETCHED) if facts.hosts]  # few units have any
    image_figures.write_hosts(run, of_hosts, one_in=next((unit["one_in"] for unit in plan(run)), 1))
    if fetched_before(run):
        storage.delete_units([run.work(FOLDER), run.work(SET_ASIDE)])  # what these have is in the units now


# A unit waits for its last images longer than it works; meanwhile others ask. Measured with two cores and 12,000 images
# of 72 kB, a fifth of them at hosts that hang: 368 images/s with two units at once, 563 with eight; 534 and 631 where
# all hosts answer.
UNITS_AT_ONCE_AT_LEAST, WITH_LITTLE_MEMORY = 8, 4
IN_FLIGHT_AT_LEAST = 64 * memory.MB


def threads_for_web(run: Run) -> dict[str, Any]:
    """Arguments for `MapUnits`: units at once that keep the client and all cores busy, and the process's client."""
    at_least = UNITS_AT_ONCE_AT_LEAST if memory.is_ample() else WITH_LITTLE_MEMORY
    return {"at_once": max(at_least, 2 * run.config.engine.threads), "held": partial(opened_client, run.config.fetch)}


def opened_client(settings: FetchSettings) -> AbstractContextManager[client.Client]:
    """The client of this process; bodies in flight get at most half of the memory that images may take."""
    at_most = min(client.BYTES_IN_FLIGHT_AT_MOST, max(IN_FLIGHT_AT_LEAST, memory.spare().bytes // 2))
    return client.opened(settings, bytes_in_flight_at_most=at_most)


def fetch_from_web(run: Run, unit: FetchUnit, rows: pa.Table, blocked: Mapping[int, Outcome]) -> list[Outcome]:
    """Fetch and measure the images of a unit, each a row of `PLACED_SURVIVOR`, but for those that are `blocked`.

    Images of tars, tables and folders are read there.

    Raises:
        FullDiskError: no space is left for the images.
        UnreadableError: an image in hand is in a file that cannot be read.
    """
    urls: list[Any] = rows["image_url"].to_pylist()  # null where there is none
    image_ids: list[Any] = identity.hexed(arrays.ids_of(rows["image_id"])).to_pylist()
    hooks = measuring.hooks_of(run.config)

    def measure(number: int, data: bytes) -> Measured:
        return measuring.measure(data, url=urls[number], config=run.config.image, hooks=hooks)

    path, in_hand = run.work(FETCHED.step, unit["name"]), fetch_from_files.in_hand(run, rows)
    journal.adopt(run, path, image_ids, np.flatnonzero(~in_hand).tolist(), partial(journal_grounds, run))
    with (
        journal.opened(path, journal_grounds(run, image_ids), measure) as kept,
        log.opened(run, unit["name"], image_ids, urls) as history,
    ):
        kept.outcomes.update(blocked)  # no journal has them: with another list they may be asked for
        history.stats(kept.outcomes)
        missing = np.array([number not in kept.outcomes for number in range(len(urls))], bool)
        own_files = np.flatnonzero(missing & in_hand)
        of_files = rows.take(own_files)
        with pool.reading(run, fetch_from_files.whole_files(run, of_files)):
            every = fetch_from_files.image_bytes(run, of_files)
            for number, data in zip(own_files.tolist(), every, strict=True):
                if isinstance(data, DropReason):
                    kept.failed(number, data, None)
                else:
                    kept.in_hand(number, data, measure(number, data))
        numbers = np.flatnonzero(missing & ~in_hand).tolist()

        def write() -> None:
            kept.flush()
            history.flush()

        with opened_client(run.config.fetch) as web:
            for response in web.fetch([urls[number] for number in numbers], on_quiet=write):
                interrupts.check()
                number = numbers[response.number]
                history.tries(number, response)
                if response.reason is not None:
                    kept.failed(number, response.reason, response.http_code)
                elif response.body is not None:
                    kept.in_hand(number, response.body, measure(number, response.body))
                history.stats(kept.outcomes)
                del response  # so its bytes no longer count when the next is asked for
        history.stats(kept.outcomes, is_last=True)
        return [kept.outcomes[number] for number in range(len(urls))]


def journal_grounds(run: Run, image_ids: Sequence[str]) -> journal.JournalGrounds:
    """What the journal of a unit rests on: the images and what may be fetched of them; and how they are measured."""
    reads = storage.read_json(run.path("run.json")).get("stages", {}).get("fetch", {}).get("reads", {})
    settings = run.config.fetch
    domains, urls = ({f"file {name}" for name in names} for names in (settings.blocked_domains, settings.blocked_urls))
    urls |= {"fetch.blocked_urls"}  # of no journal: an image in hand whose URL is listed now need not be asked for
    of_web = {name for name in reads if name in domains or name.startswith("fetch.")} - urls
    of_images = reads.keys() - of_web - urls
    may_fetch, measured = ({name: reads[name] for name in names} for names in (of_web, of_images))
    return journal.JournalGrounds(
        requests=digest({"images": list(image_ids), **may_fetch}), measured=digest({"rules": RULES_VERSION, **measured})
    )
