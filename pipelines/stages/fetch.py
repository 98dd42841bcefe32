"""Fetch and image: gets every surviving image once, however many captions it has, and measures and judges it.

A fetch unit is a row group of the grouped survivors. Its images come from the web, or from the input's own files by
ranged reads. Either leaves a blob of bytes and an outcome for each image, in the order of images.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
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
from altalign.data.reasons import REASONS, DropReason, Stage, ask, reasons_of
from altalign.data.schema import RULES_VERSION, STRINGS
from altalign.data.stages import REMOVED_FILE, damaged
from altalign.filters import identity
from altalign.filters.image_headers import STRICT_PILLOW
from altalign.filters.reservations import Said
from altalign.machine import interrupts, memory
from altalign.pipelines import read
from altalign.pipelines.engine.jobs import create
from altalign.pipelines.engine.map_units import MapUnits, pooled
from altalign.pipelines.figures import image_figures, text_figures
from altalign.pipelines.figures.image_figures import dropped_images, of_images_at
from altalign.pipelines.images import measuring
from altalign.pipelines.images.measuring import Measured, Outcome
from altalign.pipelines.read.tables import table
from altalign.pipelines.run import image_tables, outputs, pool, progress, removal_list
from altalign.pipelines.run.image_places import Kind
from altalign.pipelines.run.image_tables import FETCHED, FetchFacts, FetchUnit, first_of_each_image, images_of
from altalign.pipelines.run.text_tables import ALL_NOTICES, COPIED_IMAGES, FOLDER_FILES, GROUPED, GROUPED_SURVIVORS
from altalign.pipelines.run.units import FOLDER, SET_ASIDE, Run, Unit, digest, fetched_before, map_unit
from altalign.pipelines.stages import statements
from altalign.pipelines.stages.statements import Listener
from altalign.pipelines.web import client, journal, log
from altalign.pipelines.web.log import WebWatch
from altalign.rules import own
from altalign.settings.curate import FetchSettings
from altalign.storage import arrays, parquet
from altalign.storage.ranges import Range, Ranges

READS = (GROUPED_SURVIVORS, COPIED_IMAGES, FOLDER_FILES, ALL_NOTICES)

SECONDS_PER_IMAGE = 1e-3  # docs/concepts/speed.md; web-size images take three times that

# A unit waits for its last images longer than it works; meanwhile others ask. Measured with two cores and 12,000 images
# of 72 kB, a fifth of them at hosts that hang: 368 images/s with two units at once, 563 with eight; 534 and 631 where
# all hosts answer.
UNITS_AT_ONCE_AT_LEAST, WITH_LITTLE_MEMORY = 8, 4
IN_FLIGHT_AT_LEAST = 64 * memory.MB

Outcomes = Mapping[int, Outcome]  # by the number of an image in its unit


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
    heard = statements.of_rows(listener, pages, of_each, image_of)
    return _write(run, unit, _judged(run, rows, parquet.strings(of_images, "image_url"), of_each, image_of, heard))


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
    run: Run,
    rows: pa.Table,
    urls: pa.StringArray,
    outcomes: Sequence[Outcome],
    image_of: npt.NDArray[np.int64],
    heard: statements.Heard,
) -> pa.Table:
    """One row a candidate: its text, what was measured of its image, and why it was not fetched or which rules hold.

    URLs and outcomes are of images; `image_of`, int64[rows], has the number of each row's image; `heard` is of rows.
    """
    measured = measuring.columns([outcome.measured for outcome in outcomes])
    sizes = pa.array([outcome.bytes for outcome in outcomes], pa.int64())
    rules = own.rules(Stage.IMAGE, run.config, run.modules)
    columns = {**measured, "url": urls, "bytes": sizes}
    reason, failed = reasons_of(ask(rules, columns, run.config, lambda row: f"the image {urls[row].as_py()!r}"))
    missing = pa.array([next(iter(each), None) for each in heard.failed], pa.string())
    all_missing = pa.array(heard.failed, pa.list_(pa.string()))
    reason, failed = (each.dictionary_decode().take(pa.array(image_of, pa.int64())) for each in (reason, failed))
    names = ("width", "height", "format", "nsfw_score", "found_sha256", "features")
    image_columns: dict[str, Any] = {
        **{name: measured[name] for name in names},
        "http_code": pa.array([outcome.http_code for outcome in outcomes], pa.int32()),
        "blob_offset": pa.array([outcome.offset for outcome in outcomes], pa.int64()),
        "blob_bytes": sizes,
    }
    return pa.table(
        {
            **{name: identity.hexed(arrays.ids_of(rows[name])) for name in ("key", "image_id")},
            **{name: rows[name].combine_chunks() for name in (*STRINGS, "words")},
            "source": pool.sources(run, rows["file"]),
            "preferences": preferences.column(heard.said),
            **{name: column.take(image_of) for name, column in image_columns.items()},
            "reason": pc.if_else(missing.is_valid(), missing, reason),
            "failed": pc.if_else(missing.is_valid(), all_missing, failed),
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
    image_tables.MEASURED_IMAGES.write(run, measures.to_arrow(), unit["name"])
    dimensions = measuring.hooks_of(run.config).embedder.dimensions
    features: Any = kept.take(first_of_each_image(kept))["features"]
    features = b"".join(pc.fill_null(features, pa.scalar(bytes(2 * dimensions))).to_pylist())
    image_tables.FEATURES.save(run, np.frombuffer(features, np.int16).reshape(-1, dimensions), unit["name"])
    image_tables.FETCHED_ROWS.write(run, kept, unit["name"])
    of_images = rows.take(first_of_each_image(rows))
    for name, part in (
        ("has_come", seen),
        ("is_kept", kept),
    ):  # of an image that one page alone opposes, some rows have
        of_images = of_images.append_column(name, _is_among(of_images, part))
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
    hooks, listener = measuring.hooks_of(run.config), Listener.of(run.config.fetch)

    def measure(number: int, data: bytes) -> Measured:
        return measuring.measure(data, url=urls[number], config=run.config.image, hooks=hooks)

    def hear(number: int, data: bytes, said: Sequence[Said], http_code: int | None) -> None:
        """Records an image that has come, unless something in it opposes the purpose."""
        every, reasons = listener.look(data, said)
        if reasons:
            kept.failed(number, reasons[0], http_code, every)
        else:
            kept.in_hand(number, data, measure(number, data), every)

    path, in_hand = run.work(FETCHED.step, unit["name"]), _in_hand(run, rows)
    journal.adopt(run, path, image_ids, np.flatnonzero(~in_hand).tolist(), partial(_journal_grounds, run))
    with (
        journal.opened(path, _journal_grounds(run, image_ids), measure) as kept,
        log.opened(run, unit["name"], image_ids, urls) as history,
    ):
        kept.outcomes.update(excluded)  # no journal has them: with another list they may be asked for
        history.stats(kept.outcomes)
        missing = np.array([number not in kept.outcomes for number in range(len(urls))], bool)
        own_files = np.flatnonzero(missing & in_hand)
        of_files = rows.take(own_files)
        with pool.reading(run, _whole_files(run, of_files)):
            for number, found in zip(own_files.tolist(), captured(run, of_files), strict=True):
                if isinstance(found, DropReason):
                    kept.failed(number, found, None)
                else:
                    hear(number, found.data, found.said, None)
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
                    hear(number, response.body, response.said or (), response.http_code)
                history.stats(kept.outcomes)
                del response  # so its bytes no longer count when the next is asked for
        history.stats(kept.outcomes, is_last=True)
        return kept.outcomes


def _journal_grounds(run: Run, image_ids: Sequence[str]) -> journal.JournalGrounds:
    """What the journal of a unit rests on: the images and what may be fetched of them; and how they are measured."""
    reads = storage.read_json(run.path("run.json")).get("stages", {}).get("fetch", {}).get("reads", {})
    domains = {f"file {name}" for name in run.config.fetch.blocked_domains}
    # of no journal: an image in hand whose URL is listed now need not be asked for
    urls = {"fetch.blocked_urls", *(f"file {name}" for name in run.config.fetch.blocked_urls)}
    requests: dict[str, object] = {"images": list(image_ids)}
    measured: dict[str, object] = {"rules": RULES_VERSION}
    for name in reads.keys() - urls:
        (requests if name in domains or name.startswith("fetch.") else measured)[name] = reads[name]
    return journal.JournalGrounds(requests=digest(requests), measured=digest(measured))


# From the input's files -----------------------------------------------------------------------------------------------


def _fetch_from_files(run: Run, unit: FetchUnit, rows: pa.Table, excluded: Outcomes) -> Outcomes:
    """Read and measure the images of a unit, each a row of `PLACED_SURVIVOR`; their bytes go to its blob."""
    hooks, outcomes, end = measuring.hooks_of(run.config), dict(excluded), 0
    numbers = [number for number in range(len(rows)) if number not in excluded]
    rows = rows.take(pa.array(numbers, pa.int64()))
    path, urls = image_tables.IMAGES.path(run, unit["name"]), parquet.values(rows, "image_url")
    listener, of_origins = Listener.of(run.config.fetch), statements.of_origins(run, urls)
    with storage.write(path) as blob, pool.reading(run, _whole_files(run, rows)):
        for number, url, said, found in zip(numbers, urls, of_origins, captured(run, rows), strict=True):
            if isinstance(found, DropReason):
                outcomes[number] = Outcome(found, said=said)
                continue
            data, (every, reasons) = found.data, listener.look(found.data, (*found.said, *(said or ())))
            if reasons:
                outcomes[number] = Outcome(reasons[0], said=every)
                continue
            measured = measuring.measure(data, url=url, config=run.config.image, hooks=hooks)
            blob.write(data)
            outcomes[number] = Outcome(None, None, end, len(data), measured, every)
            end += len(data)
    return outcomes


def _in_hand(run: Run, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Whether each image is in a tar, a table or a folder, bool[n]. Those of web archives have URLs, all of them."""
    holds_images = np.array([settings.has_images for settings in run.config.input])
    files = rows["place_file"].combine_chunks()
    inputs = np.array([run.files[file].input for file in files.fill_null(0).to_numpy().tolist()], np.int64)
    return files.is_valid().to_numpy(zero_copy_only=False) & holds_images[inputs]


def _whole_files(run: Run, rows: pa.Table) -> list[int]:
    """The input files that these images lie in; a file of a folder is looked at when it is read."""
    files = rows["place_file"].unique().drop_null().to_numpy().tolist()
    return [file for file in files if run.files[file].part is None]


def captured(run: Run, rows: pa.Table) -> Iterator[read.Captured | DropReason]:
    """Yields each image, read at its place; the reason for one that no file has, or that is too large."""
    has_place = rows["place_file"].is_valid().to_pylist()
    token, is_archive = Listener.of(run.config.fetch).token, [settings.kind == "warc" for settings in run.config.input]
    files = (run.files[file] for file in rows["place_file"].unique().drop_null().to_numpy().tolist())
    of_archives = {COPIED_IMAGES.path(run, file.name) for file in files if is_archive[file.input]}
    with Ranges(_ranges(run, rows)) as ranges:
        for place, is_there in zip(ranges, has_place, strict=True):
            if place is None:
                yield DropReason.ROW_TOO_LARGE if is_there else DropReason.NOT_IN_ARCHIVE
            elif place.length is None:
                opened = ranges.opened(place.path) if storage.is_remote(place.path) else None  # it was asked ahead
                yield read.captured(place.path, place.offset, opened, token=token) or read.Captured(b"")
            else:
                data = ranges.read(place)
                yield read.Captured.of_copy(data) if place.path in of_archives else read.Captured(data)


def _ranges(run: Run, rows: pa.Table) -> list[Range | None]:
    """Where the bytes of each image are, None where there are none; records of a WARC have no length."""
    gathered = cache(lambda file: image_tables.GATHERED_INDEX.array(run, run.files[file].name))
    files_of = cache(lambda file: FOLDER_FILES.read(run, run.files[file].name))
    ranges = list[Range | None]()
    columns = (parquet.values(rows, f"place_{name}") for name in ("file", "kind", "offset", "length"))
    for file, kind, offset, length in zip(*columns, strict=True):
        if file is None:
            ranges.append(None)
            continue
        source = run.files[file]
        match Kind(kind):
            case Kind.ROW:
                images, index = image_tables.GATHERED_IMAGES.path(run, source.name), gathered(file)
                place = index[np.searchsorted(index["row"], offset) :][:1]
                if place["row"].tolist() != [offset]:
                    raise damaged(run.folder, images, f"row {offset:,} is not there")
                start, size = int(place["offset"][0]), int(place["length"][0])
                ranges.append(None if size < 0 else Range(images, start, size))
            case Kind.COPIED:
                ranges.append(Range(COPIED_IMAGES.path(run, source.name), offset, length))
            case Kind.RANGE:
                ranges.append(Range(source.path, offset, length))
            case Kind.RECORD:
                ranges.append(Range(source.path, offset, None))
            case Kind.FILE:
                assert source.part is not None
                entry = files_of(file).slice(offset, 1).to_pylist()[0]
                stamp = storage.Stamp(entry["size"], entry["time_ns"], entry["digest"])
                ranges.append(Range(storage.join(source.part.folder, os.fsdecode(entry["name"])), 0, length, stamp))
            case unknown:
                assert_never(unknown)
    return ranges


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
