"""Fetch and image: the bytes of every surviving image, once however many captions it has; measured and judged while decoded.

From archives: ranged reads of WARC and tar members. Rows of Parquet tables are gathered first, one pass over each table, so
that no row group is read twice. A fetch unit is a row group of the grouped survivors.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, NamedTuple, assert_never

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.pvalue import PCollection, PValue

from altalign import memory, storage
from altalign.counts import Counts
from altalign.curation import ImageSettings
from altalign.errors import AltalignError
from altalign.reasons import KEPT, DropReason, Stage, drop_where, reasons_of
from altalign.schema import DROPPED, SAMPLE
from filters import identity, image, pixels
from filters.blocked import BlockList
from pipelines import image_values, judge, models, parquet, pool, read
from pipelines.engines import create, pooled
from pipelines.places import Kind
from pipelines.ranges import Range, Ranges
from pipelines.read import table
from pipelines.units import Facts, Run, Unit, files_named, map_unit

# A candidate that passed the image rules, with where its image's bytes lie in the blob of its fetch unit.
FETCHED = pa.schema(
    [
        *(field for field in SAMPLE if field.name not in ("bytes", "sha256", "tar_offset", "tar_bytes")),
        pa.field("blob_offset", pa.int64()),
        pa.field("blob_bytes", pa.int64()),
    ]
)

_ROW_INDEX = np.dtype([("row", "<i8"), ("offset", "<i8"), ("length", "<i8")])


# Gathering rows of tables --------------------------------------------------------------------------------------------


def gather(run: Run, file: int, wanted: np.ndarray) -> Facts:
    """Copy the images of these rows of a table (sorted numbers of rows) to a blob, with an index of row, offset and length."""
    source = run.files[file]
    index, end = [], 0
    pool.check_unchanged(run, file)
    with storage.write(run.work("fetch/gathered", f"{source.name}.images")) as blob:
        for row, data in table.images(source.path, run.config.input[source.of], wanted.tolist()) if len(wanted) else ():
            blob.write(data)
            index.append((row, end, len(data)))
            end += len(data)
    pool.check_unchanged(run, file)
    storage.write_bytes(run.work("fetch/gathered", f"{source.name}.index"), np.array(index, _ROW_INDEX).tobytes())
    return {"images": len(index), "bytes": end}


def plan_gather(run: Run) -> list[Unit]:
    """One unit a table of images."""
    inputs = [run.config.input[file.of] for file in run.files]
    return [{"name": file.name} for file, settings in zip(run.files, inputs, strict=True) if settings.kind == "table" and settings.image_column]


class Gather(beam.PTransform[Any, Any]):
    """Units of tables in, names of gathered tables out."""

    def __init__(self, run: Run, step: str):
        super().__init__()
        self._run, self._step = run, step

    def expand(self, input_or_inputs: PCollection[Any]) -> PValue:
        """Gather the surviving images of every table."""
        grouped = input_or_inputs.pipeline | "NamePartitions" >> create(self._run, judge.plan_grouped(self._run))
        wanted = grouped | "NameRows" >> beam.FlatMap(self._rows).with_output_types(tuple[int, bytes])
        every = input_or_inputs | "NameTables" >> beam.Map(lambda unit: (int(unit["name"]), b"")).with_output_types(tuple[int, bytes])
        return (wanted, every) | beam.Flatten() | "GroupByTable" >> beam.GroupByKey() | "GatherImages" >> pooled(self._run, self._gather)

    def _rows(self, unit: Unit) -> Iterator[tuple[int, bytes]]:
        for file, rows in judge.row_places(self._run, unit["name"]):
            yield file, rows.tobytes()

    def _gather(self, element: tuple[int, Iterable[bytes]]) -> Iterator[int]:
        file, parts = element
        map_unit(
            self._run,
            "fetch/gathered",
            {"name": self._run.files[file].name},
            lambda run, _: gather(run, file, np.unique(np.frombuffer(b"".join(parts), np.int64))),
        )
        yield file


# Fetching ------------------------------------------------------------------------------------------------------------


def plan(run: Run) -> list[Unit]:
    """One unit a row group of the grouped survivors, in order of image_id."""
    groups = [(name, number, group) for name, facts in run.all_facts("judge/grouped") for number, group in enumerate(facts["row_groups"])]
    return [{"name": f"{name}-{number:05d}", "partition": name, "row_group": number, **group} for name, number, group in groups]


class Hooks(NamedTuple):
    """What looks at an image while it is decoded."""

    blocked: BlockList
    nsfw: models.NsfwModel | None

    @property
    def short_side_px(self) -> int:
        """What they need of an image's short side, in pixels; 128 is twice the thumbnail of a descriptor."""
        return max(128, self.blocked.short_side_px, self.nsfw.classifier.short_side_px if self.nsfw else 0)


@lru_cache(maxsize=1)
def _hooks(blocked: tuple[str, ...], nsfw: str, _changed: tuple[storage.Stamp | None, ...]) -> Hooks:
    return Hooks(models.load_block_lists(blocked), models.load_nsfw(nsfw) if nsfw else None)


def hooks_of(config: ImageSettings) -> Hooks:
    """The hooks of these settings, loaded once a process.

    Raises:
        UsageError: a list or a model cannot be loaded.
    """
    changed = tuple(storage.stamp(name) if storage.exists(name) else None for name in files_named(config))
    return _hooks(tuple(config.blocked_hashes), config.nsfw.model, changed)


@dataclass
class Images:
    """What is known of the images of a unit, one entry an image; None where it was not measured."""

    is_found: list[bool] = field(default_factory=list)
    format: list[str | None] = field(default_factory=list)
    width: list[int | None] = field(default_factory=list)
    height: list[int | None] = field(default_factory=list)
    damage: list[str | None] = field(default_factory=list)
    is_blocked: list[bool | None] = field(default_factory=list)
    nsfw_score: list[float | None] = field(default_factory=list)
    found_sha256: list[str | None] = field(default_factory=list)
    blob_offset: list[int] = field(default_factory=list)
    blob_bytes: list[int] = field(default_factory=list)

    def add(self, data: bytes | None, offset: int, config: ImageSettings, hooks: Hooks) -> None:
        """Measure one image; None: no archive has it."""
        self.is_found.append(data is not None)
        data = data or b""
        decoded = pixels.decode(data, pixels_at_most=config.pixels_at_most, colour=hooks.nsfw is not None, short_side_px=hooks.short_side_px)
        digest = hashlib.sha256(data).hexdigest() if data else None
        self.format.append(decoded.format)
        self.width.append(_bounded(decoded.width))
        self.height.append(_bounded(decoded.height))
        self.damage.append(decoded.damage)
        self.is_blocked.append(hooks.blocked.blocks(data=data, found_sha256=digest or "", pixels=decoded.pixels))
        self.nsfw_score.append(hooks.nsfw.score(decoded.pixels) if hooks.nsfw and decoded.pixels is not None else None)
        self.found_sha256.append(digest)
        self.blob_offset.append(offset)
        self.blob_bytes.append(len(data))


def _bounded(side: int | None) -> int | None:
    """A side in pixels that a column holds; a header may lie up to 2^32, and every rule says of both the same."""
    return None if side is None else min(side, 2**31 - 1)


@contextmanager
def enough_memory(url: str | None, data: bytes, *, colour: bool, pixels_at_most: int | None = None, short_side_px: int = 0) -> Iterator[None]:
    """Around the decoding of an image, with what `pixels.peak_bytes` asks for; a large one waits until other threads need less.

    Raises:
        AltalignError: there is too little memory for it. That is no verdict: on another machine it would be another.
    """
    try:
        needed = 0 if memory.is_ample() else pixels.peak_bytes(data, colour=colour, pixels_at_most=pixels_at_most, short_side_px=short_side_px)
        with memory.reserved(needed):
            yield
    except MemoryError as error:
        header = pixels.decode(data, pixels_at_most=0, colour=False)
        size = f" of {header.width:,} x {header.height:,} pixels" if header.width and header.height else ""
        repair = "give it more, or set [engine] workers or [image] pixels_at_most lower"
        said = f"no memory to decode an image{size} ({len(data):,} bytes)"
        raise AltalignError(f"{url or 'an image without a URL'}: {said}{f': {error}' if str(error) else ''}; {repair}") from error


def image_verdicts(images: Images, config: ImageSettings) -> list[pa.StringArray]:
    """The verdict of every image rule, in the order of reasons."""
    return image.judge_images(
        image_format=pa.array(images.format, pa.string()),
        damage=pa.array(images.damage, pa.string()),
        width=pa.array(images.width, pa.int32()),
        height=pa.array(images.height, pa.int32()),
        is_blocked=pa.array(images.is_blocked, pa.bool_()),
        nsfw_score=pa.array(images.nsfw_score, pa.float32()),
        rules=config,
    )


def fetch(run: Run, unit: Unit) -> Facts:
    """Fetch and judge the images of a unit; all found bytes go to its blob, rows that pass to its table."""
    path = run.work("judge/grouped", f"{unit['partition']}.parquet")
    rows = pa.Table.from_batches(list(parquet.read_row_groups(path, unit["row_group"], unit["row_group"])), judge.GROUPED).combine_chunks()
    ids = rows["image_id"].combine_chunks()
    first_rows = np.flatnonzero(np.r_[True, pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)])
    image_of = np.repeat(np.arange(len(first_rows)), np.diff(np.r_[first_rows, len(rows)]))
    images, hooks, end = Images(), hooks_of(run.config.image), 0
    of_images, most = rows.take(first_rows), run.config.image.pixels_at_most
    with storage.write(run.work("fetch/units", f"{unit['name']}.images")) as blob:
        for url, data in zip(of_images["image_url"].to_pylist(), _image_bytes(run, of_images), strict=True):
            with enough_memory(url, data or b"", colour=hooks.nsfw is not None, pixels_at_most=most, short_side_px=hooks.short_side_px):
                images.add(data, end, run.config.image, hooks)
            blob.write(data or b"")
            end += len(data or b"")
    for file in rows["place_file"].unique().drop_null().to_numpy().tolist():
        pool.check_unchanged(run, file)
    missing = drop_where(pa.array([not found for found in images.is_found], pa.bool_()), DropReason.NOT_IN_ARCHIVE)
    verdict, failed = reasons_of(image_verdicts(images, run.config.image))
    verdict = pc.if_else(missing.is_valid(), missing, verdict)
    failed = pc.if_else(missing.is_valid(), reasons_of([missing])[1].dictionary_decode(), failed.dictionary_decode())
    return _write(run, unit, _joined(run, rows, images, verdict, failed, image_of))


def _image_bytes(run: Run, rows: pa.Table) -> Iterator[bytes | None]:
    """The bytes of each image, read at its place; None where there is none."""
    with Ranges(_ranges(run, rows)) as ranges:
        for wanted in ranges:
            if wanted is None:
                yield None
            elif wanted.length is None:
                yield read.image_bytes(wanted.path, wanted.offset) or b""
            else:
                yield ranges.read(wanted)


def _ranges(run: Run, rows: pa.Table) -> list[Range | None]:
    """Where the bytes of each image are; without a length where it is the record of a WARC."""

    @cache
    def gathered(file: int) -> np.ndarray:
        return np.frombuffer(storage.read_bytes(run.work("fetch/gathered", f"{run.files[file].name}.index")), _ROW_INDEX)

    def range_of(file: int | None, kind: int, offset: int, length: int) -> Range | None:
        if file is None:
            return None
        source = run.files[file]
        match Kind(kind):
            case Kind.ROW:
                place = gathered(file)[np.searchsorted(gathered(file)["row"], offset)]
                return Range(run.work("fetch/gathered", f"{source.name}.images"), int(place["offset"]), int(place["length"]))
            case Kind.COPIED:
                return Range(run.work("extract", f"{source.name}.images"), offset, length)
            case Kind.RANGE:
                return Range(source.path, offset, length)
            case Kind.RECORD:
                return Range(source.path, offset, None)
            case unknown:
                assert_never(unknown)

    return [range_of(*place) for place in zip(*(rows[f"place_{name}"].to_pylist() for name in ("file", "kind", "offset", "length")), strict=True)]


def _joined(run: Run, rows: pa.Table, images: Images, verdict: pa.StringArray, failed: "pa.ListArray[Any]", image_of: np.ndarray) -> pa.Table:
    """One row a candidate: what came before, what was measured of its image, and the verdict."""
    text = {name: rows[name].combine_chunks() for name in ("image_url", "caption", "page_url", "words")}
    ids = {name: identity.hexed(judge.ids_of(rows[name])) for name in ("key", "image_id")}
    measured = {
        "width": pa.array(images.width, pa.int32()),
        "height": pa.array(images.height, pa.int32()),
        "format": pa.array(images.format, pa.string()),
        "nsfw_score": pa.array(images.nsfw_score, pa.float32()),
        "found_sha256": pa.array(images.found_sha256, pa.string()),
        "blob_offset": pa.array(images.blob_offset, pa.int64()),
        "blob_bytes": pa.array(images.blob_bytes, pa.int64()),
        "reason": verdict,
        "failed": failed,
    }
    source = pool.sources(run, rows["file"])
    return pa.table({**ids, **text, "source": source, **{name: column.take(image_of) for name, column in measured.items()}})


def _write(run: Run, unit: Unit, rows: pa.Table) -> Facts:
    """Write what a unit leaves: dropped rows of both stages, what was measured, the rows that go on."""
    is_missing = pc.is_in(parquet.strings(rows, "reason"), value_set=pa.array([DropReason.NOT_IN_ARCHIVE.value]))  # false for null
    missing, seen = rows.filter(is_missing), rows.filter(pc.invert(is_missing))
    kept, dropped = seen.filter(seen["reason"].is_null()), seen.filter(seen["reason"].is_valid())
    counts = Counts()
    for stage, part, reasons in ((Stage.FETCH, missing, "reason"), (Stage.FETCH, seen, None), (Stage.IMAGE, seen, "reason")):
        columns = ["source", reasons] if reasons else ["source"]
        for entry in part.group_by(columns, use_threads=False).aggregate([([], "count_all")]).to_pylist():
            counts.add_rows(stage, entry["source"], (entry[reasons] if reasons else None) or KEPT, entry["count_all"])
    if run.config.audit.keep_dropped:
        for stage, part in ((Stage.FETCH, missing), (Stage.IMAGE, dropped)):
            columns = {name: part[name] for name in part.column_names if name in DROPPED.names}
            parquet.write_any(run.path("dropped", stage.value, f"{unit['name']}.parquet"), parquet.table({**columns, "stage": stage.value}, DROPPED), DROPPED)
    parquet.write(run.work("fetch/units", f"{unit['name']}.image_joint"), image_values.joint(seen), image_values.JOINT)
    parquet.write(run.work("fetch/units", f"{unit['name']}.image_values"), image_values.values(seen), image_values.VALUES)
    parquet.write(run.work("fetch/units", f"{unit['name']}.parquet"), kept.select(FETCHED.names), FETCHED)
    return {"kept": len(kept), "counts": counts.to_json()}


def conclude(run: Run) -> None:
    """What was measured of images, for the audit: `audit/image_joint.parquet` and `audit/image_values.parquet`."""
    for name, schema in (("image_joint", image_values.JOINT), ("image_values", image_values.VALUES)):
        parts = (parquet.read_table(run.work("fetch/units", f"{unit}.{name}")) for unit in run.finished("fetch/units"))
        parquet.write(run.path("audit", f"{name}.parquet"), image_values.total(parts, schema), schema)
