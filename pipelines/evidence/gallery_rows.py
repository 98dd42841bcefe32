"""Samples for the audit's galleries: of each reason, and of what was kept, a few rows that content has chosen, with a thumbnail where an image was in hand.

Rows that the text rules drop are chosen by their keys while they are judged. What comes after is in the order of
image_id, a hash: there the first rows are a sample. `audit/samples.parquet`.
"""

import io
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from altalign import storage
from altalign.audit_tables import SAMPLES
from altalign.filters import pixels
from altalign.machine import interrupts
from altalign.pipelines.files import parquet
from altalign.pipelines.images.measuring import enough_memory
from altalign.pipelines.run import outputs
from altalign.pipelines.run.artefacts import (
    DECONTAMINATED,
    FETCHED,
    WRITTEN,
    DropFacts,
    Fetched,
    FetchFacts,
    GroupedPartition,
    JudgedUnit,
)
from altalign.pipelines.run.units import Run
from altalign.reasons import KEPT, Stage
from altalign.schema import DROPPED

PER_REASON = 24
OF_KEPT = 48
SIDE_PX, QUALITY = 192, 75


def one_in(population: int, at_most: int) -> int:
    """A power of two: a sample of `at_most` or fewer, on average, is one in so many."""
    return 1 << max(0, (population - 1) // at_most).bit_length()


# Chosen by key --------------------------------------------------------------------------------------------------------


class Smallest:
    """Chooses, batch after batch, the rows that may be in a sample: of each reason all those of the smallest keys so far."""

    def __init__(self, reasons: int):
        self._smallest = [np.zeros(0, np.uint64)] * reasons  # numbers that keys of each reason begin with
        self._bounds = np.full(reasons, 2**64 - 1, np.uint64)  # the largest of these, where there are enough

    def of(self, reasons: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Numbers of such rows, sorted, among n: numbers of reasons, and keys (uint8[n, 16])."""
        first = keys.view(">u8")[:, 0]
        rows = np.flatnonzero(first <= self._bounds[reasons])
        chosen = [np.zeros(0, np.int64)]
        for reason in np.unique(reasons[rows]).tolist():
            of_reason = rows[reasons[rows] == reason]
            firsts = first[of_reason].astype(np.uint64)
            smallest = self._smallest[reason] = _smallest(np.concatenate([self._smallest[reason], firsts]))
            chosen.append(of_reason[firsts <= smallest[-1]])
            if len(smallest) == PER_REASON:
                self._bounds[reason] = smallest[-1]
        return np.sort(np.concatenate(chosen))


def _smallest(firsts: np.ndarray) -> np.ndarray:
    """The PER_REASON smallest distinct numbers, or as many as there are, sorted: hardly ever are more than a few looked at."""
    few = 8 * PER_REASON
    smallest = np.unique(np.partition(firsts, few)[:few] if len(firsts) > few else firsts)
    if len(smallest) < PER_REASON and len(firsts) > few:
        smallest = np.unique(firsts)
    return smallest[:PER_REASON]


def smallest_keys(rows: pa.Table, most: int) -> pa.Table:
    """Of each reason so many rows of the smallest keys, sorted by reason, key and page."""
    ordered = rows.sort_by(
        [("reason", "ascending"), ("key", "ascending"), ("page_url", "ascending"), ("image_url", "ascending")]
    )
    starts = np.flatnonzero(_is_new(ordered, "reason"))
    rank = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
    return ordered.filter(pa.array(rank < most))


def smallest_pairs(rows: pa.Table) -> pa.Table:
    """Of each reason the PER_REASON pairs of the smallest keys, sorted by reason and key: of each key the row of the first page, however many it has."""
    ordered = smallest_keys(rows, len(rows))
    return smallest_keys(ordered.filter(pa.array(_is_new(ordered, "reason") | _is_new(ordered, "key"))), PER_REASON)


def _is_new(ordered: pa.Table, name: str) -> np.ndarray:
    """Whether each row has another value in a column than the row before it, bool[n]."""
    values: Any = ordered[name].combine_chunks().dictionary_encode()
    numbers = values.indices.to_numpy()
    return np.r_[True, numbers[1:] != numbers[:-1]][: len(numbers)]


# The whole ------------------------------------------------------------------------------------------------------------


def write(run: Run) -> None:
    """`audit/samples.parquet`: rows of every stage, in the order of stages, and what was kept last."""
    parts = [*_extracted(run), *_judged(run), *_after_judge(run)] if run.config.audit.keep_dropped else []
    tables = [SAMPLES.schema.empty_table()]
    for rows, pictures in (*parts, *_kept(run)):
        interrupts.check()
        columns = {name: rows[name] for name in DROPPED.names} | {
            "picture": pa.array(pictures or [None] * len(rows), pa.binary())
        }
        tables.append(pa.table(columns).cast(SAMPLES.schema))
    outputs.write_audit(run, SAMPLES, pa.concat_tables(tables))


Part = tuple[pa.Table, list[bytes | None] | None]  # rows, and their pictures where they have any


def _extracted(run: Run) -> Iterator[Part]:
    """From the sample that `extract` keeps; of broken records, which have no key, the first."""
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
    """From what each unit has chosen; repeated pairs, each once, are found later, partition after partition in the order of image_id."""
    paths = [JudgedUnit(run, name).samples for name in run.finished(JudgedUnit.step)]
    rows = DROPPED.empty_table()
    for of_unit in storage.each(parquet.read_table, paths, of=run.folder):
        rows = smallest_pairs(pa.concat_tables([rows, of_unit]))
    yield rows, None
    wanted = PER_REASON
    for name in run.finished(GroupedPartition.step):
        path = outputs.repeated(run, name)
        if wanted and storage.exists(path):
            rows = pa.Table.from_batches([next(parquet.read_row_groups(path, 0, 0))])  # in the order of keys
            yield (found := rows.filter(pa.array(_is_new(rows, "key"))).slice(0, wanted)), None
            wanted -= len(found)


def _after_judge(run: Run) -> Iterator[Part]:
    """From the dropped rows of fetch units, in order, until there are enough of each reason."""
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
                    wanted_places = [places[image_id] for image_id in parquet.values(rows, "image_id")]
                    yield rows, _pictures(run, Fetched(run, name).images, wanted_places)


def _first_of_images(
    image_ids: Sequence[str],
    reasons: Iterable[str],
    wanted: Mapping[str, int],
    *,
    among: Container[str] | None = None,
    after: str | None = None,
) -> list[int]:
    """Numbers of the first rows of each reason, one an image, of these images alone where they are named; none of the image that came before."""
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
    """Where in the blob of a unit dropped images lie: some that the image rules drop, all that go later; None: they did not come."""
    if stage is Stage.FETCH:
        return None
    if isinstance(facts, FetchFacts):
        return {image_id: (offset, size) for image_id, offset, size in facts.pictures}
    kept = Fetched(run, name).rows().select(["image_id", "blob_offset", "blob_bytes"])
    return {row["image_id"]: (row["blob_offset"], row["blob_bytes"]) for row in kept.to_pylist()}


def _kept(run: Run) -> Iterator[Part]:
    """The first images of the shards, which are in the order of image_id."""
    wanted, before = OF_KEPT, None
    for name in run.finished(WRITTEN.step):
        if not wanted:
            return
        rows = parquet.read_table(run.path("shards", f"{name}.parquet"))
        ids = parquet.values(rows, "image_id")
        rows = _rows(rows, _first_of_images(ids, [KEPT] * len(ids), {KEPT: wanted}, after=before))
        wanted, before = wanted - len(rows), ids[-1]
        places = list(zip(parquet.values(rows, "tar_offset"), parquet.values(rows, "tar_bytes"), strict=True))
        pictures = _pictures(run, run.path("shards", f"{name}.tar"), places)
        columns = {column: rows[column] for column in rows.column_names if column in DROPPED.names}
        failed = pa.array([[]] * len(rows), pa.list_(pa.string()))
        yield parquet.table({**columns, "stage": KEPT, "reason": KEPT, "failed": failed}, DROPPED), pictures


def _pictures(run: Run, path: str, places: Sequence[tuple[int, int]]) -> list[bytes | None]:
    """Thumbnails of the images at these places (offset, bytes) of a file."""
    found = storage.read_ranges(path, places) if places else ()
    return [picture(data, pixels_at_most=run.config.image.pixels_at_most) for data in found]


def picture(data: bytes, *, pixels_at_most: int) -> bytes | None:
    """An image as WebP, upright and on white, its long side 192 px at most; None of one that cannot be decoded, or has more pixels."""
    with enough_memory(None, data, colour=True, pixels_at_most=pixels_at_most, short_side_px=SIDE_PX):
        decoded = pixels.decode(data, pixels_at_most=pixels_at_most, colour=True, short_side_px=SIDE_PX).pixels
    return None if decoded is None else thumbnail(decoded)


def thumbnail(decoded: np.ndarray) -> bytes:
    """Pixels (uint8[height, width, 3]) as WebP, the long side 192 px at most."""
    image = Image.fromarray(decoded)
    image.thumbnail((SIDE_PX, SIDE_PX), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, "WEBP", quality=QUALITY)
    return file.getvalue()


def places_of(
    image_ids: Sequence[str], reasons: Sequence[str], offsets: Sequence[int], sizes: Sequence[int], *, units: int
) -> list[list[Any]]:
    """For the mark of a fetch unit: where the bytes of some dropped images lie. All units together name enough of each reason."""
    per_unit = -(-PER_REASON // max(1, units))
    return [
        [image_ids[number], offsets[number], sizes[number]]
        for number in _first_of_images(image_ids, reasons, dict.fromkeys(reasons, per_unit))
    ]
