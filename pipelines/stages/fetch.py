"""Fetch and image: gets every surviving image once, however many captions it has, and measures and judges it.

A fetch unit is a row group of the grouped survivors. Its images come from the web, or from the input's own files by
ranged reads. Each is judged where it is found (`images.judging`). What a shard will hold of those that stay is left in
a blob, but for images that an input file has as the shard will hold them: of these, the place is known.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from altalign.data import preferences
from altalign.data.audit_tables import IMAGE_MEASURES
from altalign.data.counts import FailedCounts
from altalign.data.reasons import REASONS, DropReason, Stage
from altalign.data.schema import RULES_VERSION, STRINGS
from altalign.data.stages import REMOVED_FILE
from altalign.filters import identity
from altalign.filters.image_headers import STRICT_PILLOW
from altalign.filters.reservations import Listener, Said
from altalign.machine import interrupts, memory
from altalign.pipelines.engine.jobs import create
from altalign.pipelines.engine.map_units import MapUnits, pooled
from altalign.pipelines.figures import image_figures, text_figures
from altalign.pipelines.figures.image_figures import dropped_images, of_images_at
from altalign.pipelines.images import measuring
from altalign.pipelines.images.judging import Found, Judge, Outcome, placed
from altalign.pipelines.read.tables import table
from altalign.pipelines.run import image_bytes, image_tables, outputs, pool, progress, removal_list
from altalign.pipelines.run.image_places import Kind
from altalign.pipelines.run.image_tables import (
    FETCHED,
    STORED_COLUMNS,
    FetchFacts,
    FetchUnit,
    first_of_each_image,
    images_of,
)
from altalign.pipelines.run.text_tables import ALL_NOTICES, COPIED_IMAGES, FOLDER_FILES, GROUPED, GROUPED_SURVIVORS
from altalign.pipelines.run.units import FOLDER, SET_ASIDE, Run, Unit, digest, fetched_before, map_unit
from altalign.pipelines.stages import statements
from altalign.pipelines.web import client, journal, log
from altalign.pipelines.web.log import WebWatch
from altalign.settings.curate import FetchSettings
from altalign.storage import arrays, parquet

READS = (GROUPED_SURVIVORS, COPIED_IMAGES, FOLDER_FILES, ALL_NOTICES)

SECONDS_PER_IMAGE = 1e-3  # docs/concepts/speed.md; web-size images take three times that

# A unit waits for its last images longer than it works; meanwhile others ask. Measured with two cores and 12,000 images
# of 72 kB, a fifth of them at hosts that hang: 368 images/s with two units at once, 563 with eight; 534 and 631 where
# all hosts answer.
UNITS_AT_ONCE_AT_LEAST, WITH_LITTLE_MEMORY = 8, 4
IN_FLIGHT_AT_LEAST = 64 * memory.MB

Outcomes = Mapping[int, Outcome]  # by the number of an image in its unit
_Failed = Callable[[int, DropReason, int | None, Sequence[Said] | None], None]  # image, why, HTTP status, what was said


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


def transform(run: Run) -> MapUnits:
    """Fetches every unit that is not finished; those that wait for the web are more at once than there are cores."""
    if run.config.fetch.source != "web":
        return MapUnits(run, FETCHED, fetch)
    at_least = UNITS_AT_ONCE_AT_LEAST if memory.is_ample() else WITH_LITTLE_MEMORY
    at_once = max(at_least, 2 * run.config.engine.threads)
    return MapUnits(run, FETCHED, fetch, at_once=at_once, held=partial(_opened_client, run.config.fetch))


def watch(run: Run) -> type[progress.Watch]:
    """The class that shows the progress of this step."""
    return WebWatch if run.config.fetch.source == "web" else progress.Watch


def seconds(run: Run, units: Sequence[FetchUnit]) -> float:
    """About how long these units take one core; 0 where they wait for the web, or a model has threads of its own."""
    is_ours = run.config.fetch.source == "archive" and not measuring.hooks_of(run.config).colour
    return SECONDS_PER_IMAGE * sum(unit["images"] for unit in units) if is_ours else 0.0


def fetch(run: Run, unit: FetchUnit) -> FetchFacts:
    """Fetch and judge the images of a unit; all bytes go to its blob, rows that pass to its table."""
    rows = image_tables.survivors(run, unit)
    firsts, image_of = images_of(rows)
    of_images = rows.take(firsts)
    pages, listener = statements.of_pages(parquet.values(rows, "page_said")), Listener.of(run.config.fetch)
    excluded = {**statements.excluded(listener, pages, image_of), **_excluded(run, rows, of_images, image_of)}
    with STRICT_PILLOW:
        match run.config.fetch.source:
            case "archive":
                outcomes = _fetch_from_files(run, unit, of_images, excluded)
            case "web":
                outcomes = _fetch_from_web(run, unit, of_images, excluded)
            case unknown:
                assert_never(unknown)
    of_each = [outcomes[number] for number in range(len(of_images))]
    _write_images(run, unit, of_images, of_each)
    heard = statements.of_rows(listener, pages, of_each, image_of)
    return _write(run, unit, _judged(run, rows, of_each, image_of, heard))


def _excluded(run: Run, rows: pa.Table, of_images: pa.Table, image_of: npt.NDArray[np.int64]) -> Outcomes:
    """The images whose URLs a block list names; of the web also those all of whose pairs were removed earlier."""
    outcomes = dict[int, Outcome]()
    listed = measuring.blocked_urls(run.config.fetch)
    for number, url in enumerate(parquet.values(of_images, "image_url") if len(listed) else ()):
        if url and listed.names_url(url):
            outcomes[number] = Outcome(DropReason.URL_BLOCKED)
    path = run.path(REMOVED_FILE)
    if run.config.fetch.source == "web" and storage.exists(path):
        ids = {name: identity.hexed(arrays.ids_of(rows[name])) for name in ("key", "image_id")}
        is_gone = removal_list.of_run(path).matches(pa.table({**{name: rows[name] for name in STRINGS}, **ids}))
        stays = np.bincount(image_of, weights=~is_gone)
        outcomes |= {number: Outcome(DropReason.REMOVED) for number in np.flatnonzero(stays == 0).tolist()}
    return outcomes


def _judged(
    run: Run, rows: pa.Table, outcomes: Sequence[Outcome], image_of: npt.NDArray[np.int64], heard: statements.Heard
) -> pa.Table:
    """One row a candidate: its text, what was measured of its image, and why it was not fetched or which rules hold.

    Outcomes are of images; `image_of`, int64[rows], has the number of each row's image; `heard` is of rows.
    """
    measured = measuring.columns([outcome.measured for outcome in outcomes])
    failed = [each or outcomes[image].failed for each, image in zip(heard.failed, image_of.tolist(), strict=True)]
    image_columns: dict[str, Any] = {
        **{name: measured[name] for name in ("width", "height", "format", "nsfw_score", "found_sha256")},
        "http_code": pa.array([outcome.http_code for outcome in outcomes], pa.int32()),
        "found_bytes": pa.array([outcome.found_bytes for outcome in outcomes], pa.int64()),
        "picture": pa.array([outcome.picture for outcome in outcomes], pa.binary()),
    }
    return pa.table(
        {
            **{name: identity.hexed(arrays.ids_of(rows[name])) for name in ("key", "image_id")},
            **{name: rows[name].combine_chunks() for name in (*STRINGS, "words")},
            "source": pool.sources(run, rows["file"]),
            "preferences": preferences.column(heard.said),
            **{name: column.take(image_of) for name, column in image_columns.items()},
            "reason": pa.array([next(iter(each), None) for each in failed], pa.string()),
            "failed": pa.array(failed, pa.list_(pa.string())),
        }
    )


def _write_images(run: Run, unit: FetchUnit, images: pa.Table, outcomes: Sequence[Outcome]) -> None:
    """Write where the images are that stay, and what the embedder makes of them."""
    numbers = [number for number, outcome in enumerate(outcomes) if outcome.stored]
    kept, images = [outcomes[number] for number in numbers], images.take(pa.array(numbers, pa.int64()))
    columns = zip(*(outcome.stored or () for outcome in kept), strict=True) if kept else [[]] * len(STORED_COLUMNS)
    # what a web archive has of an image that the web gave is another capture, or no image
    has_place = pa.array(_in_hand(run, images) | (run.config.fetch.source == "archive"))
    stored: dict[str, Any] = {
        "image_id": identity.hexed(arrays.ids_of(images["image_id"])),
        **dict(zip(STORED_COLUMNS, map(list, columns), strict=True)),
        "stored_at": [outcome.stored_at for outcome in kept],
        **{
            name: pc.if_else(has_place, images[name], None) for name in images.column_names if name.startswith("place_")
        },
    }
    image_tables.STORED_IMAGES.write(run, parquet.table(stored, image_tables.STORED_IMAGE), unit["name"])
    dimensions = measuring.hooks_of(run.config).embedder.dimensions
    features = b"".join(outcome.features or bytes(2 * dimensions) for outcome in kept)
    image_tables.FEATURES.save(run, np.frombuffer(features, np.int16).reshape(-1, dimensions), unit["name"])


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
    image_tables.MEASURED_IMAGES.write(run, measures.to_arrow(), unit["name"])
    pictured = image_figures.pictured(dropped, per_reason=_pictures_of(unit))
    image_tables.PICTURES.write(run, pictured, unit["name"])
    image_tables.FETCHED_ROWS.write(run, kept, unit["name"])
    of_images = rows.take(first_of_each_image(rows))
    # of an image that one page alone opposes, some rows have come
    came_and_kept = (_is_among(of_images, part).to_pylist() for part in (seen, kept))
    of_hosts = *(parquet.values(of_images, name) for name in ("image_id", "image_url")), *came_and_kept
    return FetchFacts(
        len(kept),
        **failed_counts.facts(),
        funnel=[
            *of_images_at(Stage.JUDGE.value, rows, sizes=None),
            *of_images_at(Stage.FETCH.value, seen, sizes="found_bytes"),
            *of_images_at(Stage.IMAGE.value, kept, sizes="found_bytes"),
        ],
        dropped_images=[
            *dropped_images(Stage.FETCH, missing.filter(pc.invert(_is_among(missing, seen)))),
            *dropped_images(Stage.IMAGE, dropped),
        ],
        hosts=image_figures.count_hosts(*of_hosts, one_in=unit["one_in"]),
    )


def _is_among(rows: pa.Table, others: pa.Table) -> Any:
    """Whether the image of each row is that of another table's row too: bool[n]."""
    return pc.is_in(parquet.strings(rows, "image_id"), value_set=parquet.strings(others, "image_id"))


def conclude(run: Run) -> None:
    """Write what was measured of images: `audit/image_measures.parquet` and `audit/hosts.parquet`."""
    units = run.finished(FETCHED.step)
    parts = storage.each(partial(image_tables.MEASURED_IMAGES.read, run), units, place=run.folder)
    outputs.write_audit(run, IMAGE_MEASURES, text_figures.sum_of(parts, IMAGE_MEASURES.schema))
    of_hosts = [facts.hosts for _, facts in run.all_facts(FETCHED) if facts.hosts]  # few units have any
    image_figures.write_hosts(run, of_hosts, one_in=next((unit["one_in"] for unit in plan(run)), 1))
    if fetched_before(run):
        storage.delete_units([run.work(FOLDER), run.work(SET_ASIDE)])  # what these have is in the units now


# From the web ---------------------------------------------------------------------------------------------------------


def _opened_client(settings: FetchSettings) -> AbstractContextManager[client.Client]:
    """The client of this process; bodies in flight get at most half of the memory that images may take."""
    at_most = min(client.BYTES_IN_FLIGHT_AT_MOST, max(IN_FLIGHT_AT_LEAST, memory.spare().bytes // 2))
    return client.opened(settings, bytes_in_flight_at_most=at_most)


def _fetch_from_web(run: Run, unit: FetchUnit, rows: pa.Table, excluded: Outcomes) -> Outcomes:
    """Fetch and measure the images of a unit, each a row of `PLACED_SURVIVOR`; those of files are read there.

    Raises:
        FullDiskError: no space is left for the images.
        UnreadableError: an image in hand is in a file that cannot be read.
    """
    urls: list[Any] = rows["image_url"].to_pylist()  # null where there is none
    image_ids: list[Any] = identity.hexed(arrays.ids_of(rows["image_id"])).to_pylist()
    judge, listener = Judge(run, urls, pictures=_pictures_of(unit)), Listener.of(run.config.fetch)
    path, in_hand = run.work(FETCHED.step, unit["name"]), _in_hand(run, rows)
    journal.adopt(run, path, image_ids, np.flatnonzero(~in_hand).tolist(), partial(_journal_grounds, run))
    with (
        journal.opened(path, _journal_grounds(run, image_ids), judge) as kept,
        log.opened(run, unit["name"], image_ids, urls) as history,
    ):
        kept.outcomes.update(excluded)  # no journal has them: with another list they may be asked for
        history.stats(kept.outcomes)
        missing = np.array([number not in kept.outcomes for number in range(len(urls))], bool)
        own_files = np.flatnonzero(missing & in_hand)
        of_files = rows.take(own_files)
        with pool.reading(run, image_bytes.whole_files(run, of_files)):
            for judged in judge(_found_in_files(run, own_files.tolist(), of_files, kept.failed)):
                kept.came(judged, is_in_file=True)
        numbers = np.flatnonzero(missing & ~in_hand).tolist()

        def write() -> None:
            kept.flush()
            history.flush()

        with _opened_client(run.config.fetch) as web:
            for response in web.fetch([urls[number] for number in numbers], on_quiet=write):
                interrupts.check()
                number = numbers[response.number]
                history.tries(number, response)
                if response.reason is not None:
                    kept.failed(number, response.reason, response.http_code, response.said)
                elif response.body is not None:
                    found = Found(number, response.body, response.said)
                    for judged in judge(_unopposed(listener, found, kept.failed, response.http_code)):
                        kept.came(judged, keeps_found=run.config.fetch.keep_found)
                        del judged
                    del found
                history.stats(kept.outcomes)
                del response  # so its bytes no longer count when the next is asked for
        history.stats(kept.outcomes, is_last=True)
        return kept.outcomes


def _journal_grounds(run: Run, image_ids: Sequence[str]) -> journal.JournalGrounds:
    """What the journal of a unit rests on: its images and what may be fetched of them, the purpose, and the rules."""
    reads = storage.read_json(run.path("run.json")).get("stages", {}).get("fetch", {}).get("reads", {})
    domains = {f"file {name}" for name in run.config.fetch.blocked_domains}
    # of no journal: an image in hand whose URL is listed now need not be asked for
    urls = {"fetch.blocked_urls", *(f"file {name}" for name in run.config.fetch.blocked_urls)}
    listener = Listener.of(run.config.fetch)
    requests: dict[str, object] = {"images": list(image_ids)}
    judged: dict[str, object] = {"rules": RULES_VERSION}
    for name in reads.keys() - urls - {"fetch.purpose"}:
        (requests if name in domains or name.startswith("fetch.") else judged)[name] = reads[name]
    return journal.JournalGrounds(digest(requests), digest(judged), listener)


# From the input's files -----------------------------------------------------------------------------------------------


def _fetch_from_files(run: Run, unit: FetchUnit, rows: pa.Table, excluded: Outcomes) -> Outcomes:
    """Read and judge the images of a unit, each a row of `PLACED_SURVIVOR`."""
    outcomes, end = dict(excluded), 0
    numbers = [number for number in range(len(rows)) if number not in excluded]
    judge = Judge(run, parquet.values(rows, "image_url"), pictures=_pictures_of(unit))
    rows = rows.take(pa.array(numbers, pa.int64()))
    of_origins = statements.of_origins(run, parquet.values(rows, "image_url"))

    def failed(number: int, reason: DropReason, http_code: int | None, said: Sequence[Said] | None) -> None:
        outcomes[number] = Outcome(reason, http_code, said=said)

    blob = image_tables.IMAGES.path(run, unit["name"])
    with storage.write(blob) as images, pool.reading(run, image_bytes.whole_files(run, rows)):
        for judged in judge(_found_in_files(run, numbers, rows, failed, of_origins)):
            outcomes[judged.found.number], data = placed(judged, end, is_in_file=True)
            images.write(data)
            end += len(data)
    return outcomes


def _found_in_files(
    run: Run,
    numbers: Sequence[int],
    rows: pa.Table,
    failed: _Failed,
    of_origins: Sequence[Sequence[Said] | None] | None = None,
) -> Iterator[Found]:
    """Yields the images with these numbers, read at their places; `failed` is told of those that cannot be had.

    `of_origins`: what their origins say of them.
    """
    listener = Listener.of(run.config.fetch)
    places, has_place = image_bytes.places_in_files(run, rows), rows["place_file"].is_valid().to_pylist()
    every = zip(numbers, image_bytes.captured_each(places, listener.token), has_place, strict=True)
    for (number, found, is_there), said in zip(every, of_origins or [None] * len(numbers), strict=True):
        if found is None:
            failed(number, DropReason.ROW_TOO_LARGE if is_there else DropReason.NOT_IN_ARCHIVE, None, said)
        else:
            yield from _unopposed(listener, Found(number, found.data, (*found.said, *(said or ()))), failed)


def _unopposed(listener: Listener, found: Found, failed: _Failed, http_code: int | None = None) -> Iterator[Found]:
    """The image, with what it says itself, too; `failed` is told where something opposes the purpose."""
    said, reasons = statements.look(listener, found.data, found.said or ())
    if reasons:
        failed(found.number, reasons[0], http_code, said)
    else:
        yield found._replace(said=said)


def _pictures_of(unit: FetchUnit) -> int:
    """How many dropped images of each reason a unit keeps a thumbnail of: all units together, enough for galleries."""
    return -(-text_figures.PER_REASON // max(1, unit["units"]))


def _in_hand(run: Run, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Whether each image is in a tar, a table or a folder, bool[n]. Those of web archives have URLs, all of them."""
    holds_images = np.array([settings.has_images for settings in run.config.input])
    files = rows["place_file"].combine_chunks()
    inputs = np.array([run.files[file].input for file in files.fill_null(0).to_numpy().tolist()], np.int64)
    return files.is_valid().to_numpy(zero_copy_only=False) & holds_images[inputs]


# Rows of tables are gathered before images are fetched, in one pass over each table: no row group is read twice -------


def plan_gather(run: Run) -> list[Unit]:
    """One unit a table of images."""
    has_images = [settings.kind == "table" and settings.image_column for settings in run.config.input]
    return [Unit(name=file.name) for file in run.files if has_images[file.input]]


def gather(run: Run, file: int, rows: npt.NDArray[np.int64]) -> image_tables.GatherFacts:
    """Copy the images of these rows (rising numbers) of a table to a blob, with an index of row, offset and length.

    One of more than `fetch.bytes_at_most` is not copied; its length is below zero.
    """
    source, index, end = run.files[file], list[tuple[int, int, int]](), 0
    with pool.reading(run, [file]), storage.write(image_tables.GATHERED_IMAGES.path(run, source.name)) as blob:
        for row, data in table.images(source.path, run.config.input[source.input], rows.tolist()) if len(rows) else ():
            is_small = len(data) <= run.config.fetch.bytes_at_most
            index.append((row, end, len(data) if is_small else -1))
            if is_small:
                blob.write(data)
                end += len(data)
    image_tables.GATHERED_INDEX.save(run, np.array(index, image_tables.ROW_INDEX), source.name)
    return image_tables.GatherFacts(len(index), end)


class GatherTables(beam.PTransform[Any, Any]):
    """Units of tables in, names of gathered tables out."""

    def __init__(self, run: Run):
        super().__init__()
        self._run = run

    def expand(self, input_or_inputs: PCollection[Any]) -> PValue:
        """Gather the surviving images of every table."""
        grouped = input_or_inputs.pipeline | "NamePartitions" >> create(self._run, self._run.finished(GROUPED.step))
        rows = pooled(self._run, self._rows, at_once=1).with_output_types(tuple[int, bytes])
        none = beam.Map(lambda unit: (int(unit["name"]), b"")).with_output_types(tuple[int, bytes])
        every = (grouped | "NameRows" >> rows, input_or_inputs | "NameTables" >> none) | beam.Flatten()
        return every | "GroupByTable" >> beam.GroupByKey() | "GatherImages" >> pooled(self._run, self._gather)

    def _rows(self, partition: str) -> Iterator[tuple[int, bytes]]:
        """Yields the number of each table of images that a partition of survivors needs, and its rows, rising."""
        columns = [f"place_{field}" for field in ("file", "kind", "offset")]
        for batch in parquet.read_whole(GROUPED_SURVIVORS.path(self._run, partition), columns):
            file, kind, offset = (batch[name].to_numpy(zero_copy_only=False) for name in columns)
            is_row = kind == Kind.ROW
            files, rows = file[is_row].astype(np.int64), offset[is_row].astype(np.int64)
            for number in np.unique(files).tolist():
                yield number, np.unique(rows[files == number]).tobytes()

    def _gather(self, element: tuple[int, Iterable[bytes]]) -> Iterator[int]:
        file, parts = element
        numbers = np.unique(np.frombuffer(b"".join(parts), np.int64))
        unit = Unit(name=self._run.files[file].name)
        map_unit(self._run, image_tables.GATHERED, unit, lambda run, _: gather(run, file, numbers))
        yield file
