"""Samples for the audit's galleries, `audit/samples.parquet`: a few rows for each reason, and a few kept ones.

Rows that the text rules drop are chosen by their keys while they are judged. Later stages are in the order of image_id,
a hash: there the first rows are a sample. Rows whose image was fetched have a thumbnail.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data import generations
from altalign.data.audit_tables import SAMPLES
from altalign.data.reasons import KEPT, Stage
from altalign.data.schema import DROPPED
from altalign.filters import bounds, image, pixels, thumbnails
from altalign.machine import interrupts
from altalign.pipelines.images.measuring import enough_memory
from altalign.pipelines.run import outputs
from altalign.pipelines.run.image_tables import (
    DECONTAMINATED,
    FETCHED,
    FETCHED_ROWS,
    DropFacts,
    FetchFacts,
    image_range,
)
from altalign.pipelines.run.shard_tables import WRITTEN
from altalign.pipelines.run.text_tables import GROUPED, JUDGE_SAMPLE, JUDGED
from altalign.pipelines.run.units import Run
from altalign.storage import parquet
from altalign.storage.ranges import Range

PER_REASON = 24
OF_KEPT = 48
CAPTION_BYTES = 1 << 10  # so much of a caption is shown

Numbers = npt.NDArray[np.int64]  # int64[n], rising numbers of rows


def one_in(population: int, at_most: int) -> int:
    """The smallest power of two so that a sample of one in so many has at most `at_most` members, on average."""
    return 1 << max(0, (population - 1) // at_most).bit_length()


# Chosen by key --------------------------------------------------------------------------------------------------------


class Smallest:
    """Chooses, batch after batch, the rows that may be in a sample: for each reason the smallest keys so far."""

    def __init__(self, reasons: int):
        self._smallest = [np.zeros(0, np.uint64)] * reasons  # the first 8 bytes of the smallest keys of each reason
        self._bounds = np.full(reasons, 2**64 - 1, np.uint64)  # the largest of these, once there are PER_REASON

    def of(self, reasons: npt.NDArray[np.uint8], keys: npt.NDArray[np.uint8]) -> Numbers:
        """The numbers of the chosen rows among n; `reasons` are numbers, uint8[n], and `keys` uint8[n, 16]."""
        first = keys.view(">u8")[:, 0]
        rows = np.flatnonzero(first <= self._bounds[reasons])
        chosen = [np.zeros(0, np.int64)]
        for reason in np.unique(reasons[rows]).tolist():
            of_reason = rows[reasons[rows] == reason]
            firsts = first[of_reason].astype(np.uint64)
            smallest = self._smallest[reason] = np.unique(np.r_[self._smallest[reason], firsts])[:PER_REASON]
            chosen.append(of_reason[firsts <= smallest[-1]])
            if len(smallest) == PER_REASON:
                self._bounds[reason] = smallest[-1]
        return np.sort(np.concatenate(chosen))


def smallest_keys(rows: pa.Table, most: int) -> pa.Table:
    """For each reason up to `most` rows with the smallest keys, sorted by reason, key and page."""
    ordered = rows.sort_by([(name, "ascending") for name in ("reason", "key", "page_url", "image_url", "source_key")])
    starts = np.flatnonzero(_is_new(ordered, "reason"))
    rank = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
    return ordered.filter(pa.array(rank < most))


def shortened(rows: pa.Table) -> pa.Table:
    """The same rows with no more of a caption than is shown."""
    captions = bounds.cut(parquet.strings(rows, "caption"), bytes_at_most=CAPTION_BYTES)
    return rows.set_column(rows.column_names.index("caption"), "caption", captions)


def smallest_pairs(rows: pa.Table) -> pa.Table:
    """For each reason the PER_REASON pairs with the smallest keys, sorted by reason and key.

    A key that has several rows is represented by the row of the first page.
    """
    ordered = smallest_keys(rows, len(rows))
    return smallest_keys(ordered.filter(pa.array(_is_new(ordered, "reason") | _is_new(ordered, "key"))), PER_REASON)


def _is_new(ordered: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    """Whether each row's value in a column differs from that of the row before it, bool[n]."""
    values = ordered[name].combine_chunks().dictionary_encode()
    numbers = values.indices.to_numpy()
    return np.r_[True, numbers[1:] != numbers[:-1]][: len(numbers)]


# The whole ------------------------------------------------------------------------------------------------------------


def write(run: Run, shards: Iterable[str] | None = None) -> None:
    """Write `audit/samples.parquet`: rows of every stage in the order of stages, kept rows last; `shards` as `kept`."""
    parts = [*_extracted(run), *_judged(run), *_after_judge(run)] if run.config.audit.keep_dropped else []
    tables = [to_samples(*part) for part in (*parts, *kept(run, shards))]
    outputs.write_audit(run, SAMPLES, pa.concat_tables([SAMPLES.schema.empty_table(), *tables]))


Part = tuple[pa.Table, list[bytes | None] | None]  # rows, and their pictures where they have any


def to_samples(rows: pa.Table, pictures: list[bytes | None] | None) -> pa.Table:
    """Rows of `SAMPLES` from rows of `DROPPED` and their pictures."""
    interrupts.check()
    picture = pa.array(pictures or [None] * len(rows), pa.binary())
    return shortened(rows).select(DROPPED.names).append_column("picture", picture).cast(SAMPLES.schema)


def _extracted(run: Run) -> Iterator[Part]:
    """Rows from the sample that `extract` keeps, and the first broken records, which have no key."""
    folder = run.path("dropped", "extract")
    wanted = PER_REASON
    for name in storage.names(folder, ".parquet"):
        if name.startswith("broken-") and wanted:
            rows = parquet.read_table(storage.join(folder, name)).slice(0, wanted)
            wanted -= len(rows)
            yield rows, None
    if storage.exists(path := storage.join(folder, "sample.parquet")):
        yield smallest_pairs(parquet.read_table(path)), None


def _judged(run: Run) -> Iterator[Part]:
    """The rows that units have chosen; then repeated pairs, each once, in the order of image_id."""
    rows = DROPPED.empty_table()
    for of_unit in storage.each(partial(JUDGE_SAMPLE.read, run), run.finished(JUDGED.step), of=run.folder):
        rows = smallest_pairs(pa.concat_tables([rows, of_unit]))
    yield rows, None
    wanted = PER_REASON
    for name in run.finished(GROUPED.step):
        path = outputs.repeated(run, name)
        if wanted and storage.exists(path):
            rows = pa.Table.from_batches([next(parquet.read_row_groups(path, 0, 0))])  # in the order of keys
            yield (found := rows.filter(pa.array(_is_new(rows, "key"))).slice(0, wanted)), None
            wanted -= len(found)


def _after_judge(run: Run) -> Iterator[Part]:
    """The dropped rows of fetch units, in order, until there are enough for each reason."""
    for stage in (Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE):
        found: Counter[str] = Counter()
        for name, facts in run.all_facts(DECONTAMINATED if stage is Stage.DECONTAMINATE else FETCHED):
            reasons = {reason for of, _, reason, _ in facts.counts if of == stage.value and reason != KEPT}
            if wanted := {reason: PER_REASON - found[reason] for reason in reasons if found[reason] < PER_REASON}:
                rows = parquet.read_table(outputs.dropped(run, stage, name))
                places = _places(run, stage, name, facts)
                ids, of_rows = (parquet.values(rows, column) for column in ("image_id", "reason"))
                rows = _rows(rows, _first_of_images(ids, of_rows, wanted, among=places))
                found.update(parquet.values(rows, "reason"))
                if places is None:
                    yield rows, None
                else:
                    images = parquet.values(rows, "image_id")
                    yield rows, _pictures(run, [image_range(run, name, *places[image_id]) for image_id in images])


def _first_of_images(
    image_ids: Sequence[str],
    reasons: Iterable[str],
    wanted: Mapping[str, int],
    *,
    among: Container[str] | None = None,
    after: str | None = None,
) -> list[int]:
    """The numbers of the first rows, one an image, up to the wanted number for each reason.

    `among` restricts the images; `after` is the last image of earlier rows, which is not taken again.
    """
    taken: Counter[str] = Counter()
    numbers, before = [], after
    for number, (reason, image_id) in enumerate(zip(reasons, image_ids, strict=True)):
        if image_id != before and taken[reason] < wanted.get(reason, 0) and (among is None or image_id in among):
            taken[reason] += 1
            numbers.append(number)
        before = image_id
    return numbers


def _rows(rows: pa.Table, numbers: list[int]) -> pa.Table:
    return rows.take(np.array(numbers, np.int64))


def _places(run: Run, stage: Stage, name: str, facts: FetchFacts | DropFacts) -> dict[str, tuple[int, int]] | None:
    """Offset and bytes of dropped images in the blob of their unit, by image_id; None where they were not fetched.

    The marks of fetch units name some of the images that the image rules drop; of those that decontamination drops all
    are found.
    """
    if stage is Stage.FETCH:
        return None
    if isinstance(facts, FetchFacts):
        return {image_id: (offset, size) for image_id, offset, size in facts.pictures}
    kept = FETCHED_ROWS.read(run, name).select(["image_id", "blob_offset", "blob_bytes"])
    return {row["image_id"]: (row["blob_offset"], row["blob_bytes"]) for row in kept.to_pylist()}


def kept(run: Run, shards: Iterable[str] | None = None) -> Iterator[Part]:
    """The first rows of the shards, one an image; those of a generation are in the order of image_id.

    `shards` are their names, generation after generation; None: those that the run has just written, all of one.
    """
    found, pictured = list[pa.Table](), dict[str, bytes | None]()
    for _, names in groupby(run.finished(WRITTEN.step) if shards is None else shards, generations.of):
        wanted, before = OF_KEPT, None
        for name in names:
            if not wanted:
                break
            rows = parquet.read_table(run.path("shards", f"{name}.parquet"))
            ids = parquet.values(rows, "image_id")
            rows = _rows(rows, _first_of_images(ids, [KEPT] * len(ids), {KEPT: wanted}, after=before))
            wanted, before = wanted - len(rows), ids[-1]
            stem = pa.repeat(pa.scalar(run.path("shards", name)), len(rows))
            found.append(rows.append_column("stem", stem))
    if not found:
        return
    rows = pa.concat_tables(found).sort_by([("image_id", "ascending"), ("key", "ascending")])
    ids = parquet.values(rows, "image_id")
    rows = _rows(rows, _first_of_images(ids, [KEPT] * len(ids), {KEPT: OF_KEPT}))
    for stem in dict.fromkeys(parquet.values(rows, "stem")):
        of_shard = rows.filter(pc.field("stem") == stem)
        columns = (parquet.values(of_shard, column) for column in ("key", "tar_offset", "tar_bytes"))
        places = {key: Range(f"{stem}.tar", offset, size) for key, offset, size in zip(*columns, strict=True)}
        pictured |= dict(zip(places, _pictures(run, list(places.values())), strict=True))
    columns = {column: rows[column] for column in rows.column_names if column in DROPPED.names}
    failed = pa.array([[]] * len(rows), pa.list_(pa.string()))
    pictures = [pictured[key] for key in parquet.values(rows, "key")]
    yield parquet.table({**columns, "stage": KEPT, "reason": KEPT, "failed": failed}, DROPPED), pictures


def first_rows(rows: pa.Table, wanted: Mapping[str, int]) -> pa.Table:
    """The first dropped rows, one an image, up to the wanted number for each reason; rows are sorted by image."""
    ids, reasons = (parquet.values(rows, column) for column in ("image_id", "reason"))
    return _rows(rows, _first_of_images(ids, reasons, wanted))


def pictures_of(run: Run, stem: str, keys: Sequence[str]) -> list[bytes | None]:
    """Thumbnails of samples of a shard, whose path without an ending is `stem`, by their keys."""
    rows = parquet.read_table(f"{stem}.parquet").select(["key", "tar_offset", "tar_bytes"]).to_pylist()
    places = {row["key"]: Range(f"{stem}.tar", row["tar_offset"], row["tar_bytes"]) for row in rows}
    return _pictures(run, [places[key] for key in keys])


def _pictures(run: Run, places: Sequence[Range]) -> list[bytes | None]:
    """Thumbnails of the images at these places."""
    found = storage.each(lambda of: storage.read_range(of.path, of.offset, of.length or 0), places, of=run.folder)
    return [picture(data, pixels_at_most=run.config.image.pixels_at_most) for data in found]


def picture(data: bytes, *, pixels_at_most: int) -> bytes | None:
    """An image as WebP, upright and on white, its long side at most 192 px.

    None for an image that cannot be decoded, or has more than `pixels_at_most` pixels.
    """
    side = thumbnails.WEBP_SIDE_PX
    with enough_memory("a thumbnail", data, colour=True, pixels_at_most=pixels_at_most, short_side_px=side):
        decoded = pixels.decode(data, pixels_at_most=pixels_at_most, colour=True, short_side_px=side).pixels
    return None if decoded is None else thumbnails.webp(decoded)


def places_of(
    image_ids: Sequence[str],
    reasons: Sequence[str],
    failed: Sequence[Sequence[str]],
    offsets: Sequence[int],
    sizes: Sequence[int],
    *,
    units: int,
) -> list[tuple[str, int, int]]:
    """image_id, offset and bytes of some dropped images, for the mark of a fetch unit.

    All units together name enough images for each reason. An image that a block list names has 0 bytes: nobody is to
    see it, whatever else it was dropped for.
    """
    per_unit = -(-PER_REASON // max(1, units))
    return [
        (image_ids[number], offsets[number], 0 if image.image_blocked.name in failed[number] else sizes[number])
        for number in _first_of_images(image_ids, reasons, dict.fromkeys(reasons, per_unit))
    ]
