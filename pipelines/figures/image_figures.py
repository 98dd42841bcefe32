"""What the audit counts and samples of images: measures, hosts, images and bytes at each step, and the galleries."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data import generations
from altalign.data.audit_tables import ASPECT_AT_MOST, DROPPED_IMAGES, FUNNEL, HOSTS, SAMPLES, SHORT_SIDE_AT_MOST
from altalign.data.reasons import CURATED, KEPT, Stage
from altalign.data.schema import DROPPED
from altalign.filters.one_url import host_of
from altalign.machine import interrupts
from altalign.pipelines.figures.text_figures import PER_REASON, UNKNOWN, Values, is_new, shortened, smallest_pairs
from altalign.pipelines.images.judging import picture
from altalign.pipelines.run import outputs
from altalign.pipelines.run.image_bytes import places_as_found, read_one
from altalign.pipelines.run.image_tables import (
    DECONTAMINATED,
    FETCHED,
    PICTURE,
    PICTURES,
    FunnelRow,
    ImagesRow,
    first_of_each_image,
    stored_images,
)
from altalign.pipelines.run.shard_tables import WRITTEN
from altalign.pipelines.run.text_tables import EXTRACTED, GROUPED, JUDGE_SAMPLE, JUDGED
from altalign.pipelines.run.units import Run
from altalign.storage import parquet
from altalign.storage.ranges import Range


def image_measures(rows: pa.Table) -> Values:
    """The values of n candidates with the columns width, height and nsfw_score."""
    short = pc.min_element_wise(rows["width"], rows["height"], skip_nulls=False)
    long = pc.max_element_wise(rows["width"], rows["height"], skip_nulls=False)
    aspect = pc.divide(pc.multiply(long.cast(pa.int64()), 100), pc.max_element_wise(short.cast(pa.int64()), 1))
    nsfw = pc.floor(pc.multiply(rows["nsfw_score"], pa.scalar(100, pa.float32())))
    known = {
        "short_side_px": pc.min_element_wise(short, SHORT_SIDE_AT_MOST, skip_nulls=False),
        "aspect_percent": pc.if_else(short.is_valid(), pc.min_element_wise(aspect, ASPECT_AT_MOST), None),
        "nsfw_percent": nsfw,
    }
    return {name: column.cast(pa.int64()).fill_null(UNKNOWN).to_numpy() for name, column in known.items()}


# Hosts, of a sample chosen by image_id -------------------------------------------------------------------------------

IMAGES_AT_MOST = 65_536  # about, in the sample
HOSTS_AT_MOST = 100

Hosts = Mapping[str, tuple[int, int, int]]  # images, fetched, kept, by host


def count_hosts(
    image_ids: Iterable[str], urls: Iterable[str | None], fetched: Iterable[bool], kept: Iterable[bool], *, one_in: int
) -> Hosts:
    """Count the images of the sample by host; one row an image, ids in hex."""
    hosts: dict[str, tuple[int, int, int]] = {}
    for image_id, url, *outcome in zip(image_ids, urls, fetched, kept, strict=True):
        if int(image_id[:16], 16) * one_in < 1 << 64:
            _add(hosts, host_of(url or ""), 1, *outcome)
    return dict(sorted(hosts.items()))


def write_hosts(run: Run, parts: Iterable[Hosts], *, one_in: int) -> None:
    """Write `audit/hosts.parquet`: the hosts with the most images, sorted by that number, then by name."""
    hosts: dict[str, tuple[int, int, int]] = {}
    for part in parts:
        for host, numbers in part.items():
            _add(hosts, host, *numbers)
    most = sorted(hosts.items(), key=lambda entry: (-entry[1][0], entry[0]))[:HOSTS_AT_MOST]
    names = HOSTS.schema.names
    rows = [dict(zip(names, (host, *numbers, one_in), strict=True)) for host, numbers in most]
    outputs.write_audit(run, HOSTS, rows)


def _add(hosts: dict[str, tuple[int, int, int]], host: str, images: int, fetched: int, kept: int) -> None:
    before = hosts.get(host, (0, 0, 0))
    hosts[host] = (before[0] + images, before[1] + fetched, before[2] + kept)


# Images and bytes at each step ---------------------------------------------------------------------------------------

POOL, SHARDS = "pool", "shards"
STEPS = (POOL, *(stage.value for stage in CURATED), SHARDS)


def of_images_at(step: str, rows: pa.Table, *, sizes: str | None) -> list[FunnelRow]:
    """The entries of a step for these rows, which have the columns `image_id` and `source`.

    An image that two sources have counts for each, and once in all: totals are no sums of the sources. All rows of an
    image are in one fetch unit, so the numbers of units add up. `sizes` names the column of an image's bytes, the same
    in all its rows; None: they are not known.
    """
    of_images = rows[sizes] if sizes else pa.nulls(len(rows), pa.int64())
    columns = {"image": rows["image_id"], "source": rows["source"], "bytes": of_images}
    of_sources = pa.table(columns).group_by(["image", "source"], use_threads=False).aggregate([("bytes", "min")])
    of_all = of_sources.group_by("image", use_threads=False).aggregate([("bytes_min", "min")])
    tally = of_sources.group_by("source", use_threads=False).aggregate([([], "count_all"), ("bytes_min", "sum")])
    by_source = sorted((row["source"], row["count_all"], row["bytes_min_sum"]) for row in tally.to_pylist())
    entries = [(None, len(of_all), pc.sum(of_all["bytes_min_min"]).as_py()), *by_source]
    return [(step, source, images, (size or 0) if sizes else None) for source, images, size in entries]


def dropped_images(stage: Stage, rows: pa.Table) -> list[ImagesRow]:
    """Stage, reason and number of distinct images of the rows that a stage drops, sorted by image_id.

    All rows of an image have the same reason.
    """
    reasons = rows.take(first_of_each_image(rows))["reason"]
    return [(stage.value, reason, images) for reason, images in sorted(parquet.tally(reasons))]


def write_funnel(run: Run, *, tars: int, samples: Iterable[Mapping[str, int]]) -> None:
    """Write `audit/funnel.parquet`, every step for all sources and for each, and `audit/dropped_images.parquet`.

    Args:
        run: whose units are finished, those of shards too.
        tars: the bytes of all shards.
        samples: for each shard, the bytes that the samples of each source have in its tar.
    """
    sources = (None, *sorted({each.source for each in run.config.input}))
    without_bytes = (Stage.EXTRACT, Stage.JUDGE)
    # images and bytes by step and source; None: not known
    amounts: dict[tuple[str, str | None], list[int | None]] = {
        (step, source): [None if step == POOL else 0, None if step in without_bytes else 0]
        for step, source in product(STEPS, sources)
    }

    def add(step: str, source: str | None, *more: int | None) -> None:
        amount = amounts[step, source]
        amount[:] = [before if one is None else (before or 0) + one for before, one in zip(amount, more, strict=True)]

    sizes = {file.path: int(run.facts_of(EXTRACTED, file.name).stamp[0]) for file in run.files}
    add(POOL, None, None, sum(sizes.values()))
    for source, path in dict.fromkeys((run.source_of(file.number), file.path) for file in run.files):
        add(POOL, source, None, sizes[path])
    images_of_pool = storage.read_json(run.path("tables", "over_captioned_images.json"))
    for source, images in ((None, images_of_pool["distinct"]), *images_of_pool["distinct_by_source"].items()):
        add(Stage.EXTRACT.value, source, images, None)
    add(SHARDS, None, None, tars)
    for source, size in (entry for shard in samples for entry in shard.items()):
        add(SHARDS, source, None, size)
    gone, is_known = Counter[tuple[str, str]](), True
    for facts in (facts for marks in (FETCHED, DECONTAMINATED) for _, facts in run.all_facts(marks)):
        for entry in facts.funnel:
            add(*entry)
        is_known = is_known and facts.dropped_images is not None
        for stage, reason, images in facts.dropped_images or ():
            gone[stage, reason] += images
    for source in sources:  # all of these images are in the shards
        amounts[SHARDS, source][0] = amounts[Stage.DECONTAMINATE.value, source][0]
    rows = [dict(zip(FUNNEL.schema.names, (*name, *amount), strict=True)) for name, amount in amounts.items()]
    outputs.write_audit(run, FUNNEL, rows)
    if is_known:
        rows = [{"stage": stage, "reason": reason, "images": gone[stage, reason]} for stage, reason in sorted(gone)]
        outputs.write_audit(run, DROPPED_IMAGES, rows)


# Galleries: a few rows for each reason, and a few kept ones ----------------------------------------------------------

OF_KEPT = 48

Part = tuple[pa.Table, list[bytes | None] | None]  # rows, and their pictures where they have any


def write_samples(run: Run, shards: Iterable[str] | None = None) -> None:
    """Write `audit/samples.parquet`: rows of every stage in the order of stages, kept rows last; `shards` as `kept`.

    Rows that the text rules drop were chosen by their keys. Later stages are in the order of image_id, a hash: there
    the first rows are a sample. Rows whose image was fetched have a thumbnail.
    """
    parts = [*_extracted(run), *_judged(run), *_after_judge(run)] if run.config.audit.keep_dropped else []
    tables = [to_samples(*part) for part in (*parts, *kept(run, shards))]
    outputs.write_audit(run, SAMPLES, pa.concat_tables([SAMPLES.schema.empty_table(), *tables]))


def to_samples(rows: pa.Table, pictures: list[bytes | None] | None) -> pa.Table:
    """Rows of `SAMPLES` from rows of `DROPPED` and their pictures."""
    interrupts.check()
    picture = pa.array(pictures or [None] * len(rows), pa.binary())
    return shortened(rows).select(DROPPED.names).append_column("picture", picture).cast(SAMPLES.schema)


def _extracted(run: Run) -> Iterator[Part]:
    """Rows from the sample that `extract` keeps, and the first broken records, which have no key."""
    folder, left = run.path("dropped", "extract"), PER_REASON
    for name in storage.names(folder, ".parquet"):
        if name.startswith("broken-") and left:
            rows = parquet.read_table(storage.join(folder, name)).slice(0, left)
            left -= len(rows)
            yield rows, None
    if storage.exists(path := storage.join(folder, "sample.parquet")):
        yield smallest_pairs(parquet.read_table(path)), None


def _judged(run: Run) -> Iterator[Part]:
    """The rows that units have chosen; then repeated pairs, each once, in the order of image_id."""
    rows, left = DROPPED.empty_table(), PER_REASON
    for of_unit in storage.each(partial(JUDGE_SAMPLE.read, run), run.finished(JUDGED.step), place=run.folder):
        rows = smallest_pairs(pa.concat_tables([rows, of_unit]))
    yield rows, None
    for name in run.finished(GROUPED.step):
        path = outputs.dropped(run, Stage.JUDGE, f"repeated-{name}")
        if left and storage.exists(path):
            rows = pa.Table.from_batches([next(parquet.read_row_groups(path, 0, 0))])  # in the order of keys
            rows = rows.filter(pa.array(is_new(rows, "key"))).slice(0, left)
            left -= len(rows)
            yield rows, None


def _after_judge(run: Run) -> Iterator[Part]:
    """The dropped rows of fetch units, in order, until there are enough for each reason."""
    for stage in (Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE):
        taken: Counter[str] = Counter()
        for name, facts in run.all_facts(DECONTAMINATED if stage is Stage.DECONTAMINATE else FETCHED):
            reasons = {reason for of_stage, _, reason, _ in facts.counts if of_stage == stage.value and reason != KEPT}
            most = {reason: PER_REASON - taken[reason] for reason in reasons if taken[reason] < PER_REASON}
            if not most:
                continue
            made = {each["image_id"]: each["picture"] for each in PICTURES.read(run, name).to_pylist()}
            among = made if stage is Stage.IMAGE else None
            rows = first_rows(parquet.read_table(outputs.dropped(run, stage, name)), most, among=among)
            taken.update(parquet.values(rows, "reason"))
            pictures = [made[image_id] for image_id in parquet.values(rows, "image_id")] if among else None
            if stage is Stage.DECONTAMINATE:
                pictures = _pictures(run, places_as_found(run, name, stored_images(run, name, rows)))
            yield rows, pictures


def kept(run: Run, shards: Iterable[str] | None = None) -> Iterator[Part]:
    """The first rows of the shards, one an image; those of a generation are in the order of image_id.

    `shards` are their names, generation after generation; None: those that the run has just written, all of one.
    """
    parts, pictured = list[pa.Table](), dict[str, bytes | None]()
    for _, names in groupby(run.finished(WRITTEN.step) if shards is None else shards, generations.number_of):
        left, before = OF_KEPT, None
        for name in names:
            if not left:
                break
            every = parquet.read_table(run.path("shards", f"{name}.parquet"))
            rows = first_rows(every, {KEPT: left}, after=before)
            left, before = left - len(rows), parquet.values(every, "image_id")[-1]
            parts.append(rows.append_column("stem", pa.repeat(pa.scalar(run.path("shards", name)), len(rows))))
    if not parts:
        return
    rows = pa.concat_tables(parts).sort_by([("image_id", "ascending"), ("key", "ascending")])
    rows = first_rows(rows, {KEPT: OF_KEPT})
    for stem in dict.fromkeys(parquet.values(rows, "stem")):
        keys = parquet.values(rows.filter(pc.field("stem") == stem), "key")
        pictured |= dict(zip(keys, pictures_of(run, stem, keys), strict=True))
    columns = {column: rows[column] for column in rows.column_names if column in DROPPED.names}
    failed = pa.array([[]] * len(rows), pa.list_(pa.string()))
    pictures = [pictured[key] for key in parquet.values(rows, "key")]
    yield parquet.table({**columns, "stage": KEPT, "reason": KEPT, "failed": failed}, DROPPED), pictures


def first_rows(
    rows: pa.Table, most: Mapping[str, int], *, among: Container[str] | None = None, after: str | None = None
) -> pa.Table:
    """The first rows, one an image, up to so many for each reason; rows are sorted by image, those of shards are kept.

    `among` restricts the images; `after` is the last image of earlier rows, which is not taken again.
    """
    reasons = parquet.values(rows, "reason") if "reason" in rows.column_names else [KEPT] * len(rows)
    taken, numbers, before = Counter[str](), list[int](), after
    for number, (reason, image_id) in enumerate(zip(reasons, parquet.values(rows, "image_id"), strict=True)):
        if image_id != before and taken[reason] < most.get(reason, 0) and (among is None or image_id in among):
            taken[reason] += 1
            numbers.append(number)
        before = image_id
    return rows.take(np.array(numbers, np.int64))


def pictures_of(run: Run, stem: str, keys: Sequence[str]) -> list[bytes | None]:
    """Thumbnails of samples of a shard, whose path without an ending is `stem`, by their keys."""
    rows = parquet.read_table(f"{stem}.parquet").select(["key", "tar_offset", "tar_bytes"]).to_pylist()
    places = {row["key"]: Range(f"{stem}.tar", row["tar_offset"], row["tar_bytes"]) for row in rows}
    return _pictures(run, [places[key] for key in keys])


def _pictures(run: Run, places: Sequence[Range]) -> list[bytes | None]:
    images = storage.each(read_one, places, place=run.folder)
    return [picture(data, pixels_at_most=run.config.image.pixels_at_most) for data in images]


def pictured(dropped: pa.Table, *, per_reason: int) -> pa.Table:
    """The images (`PICTURE`) that galleries show of those that a fetch unit drops: the first of each reason."""
    rows = first_rows(dropped, dict.fromkeys(parquet.values(dropped, "reason"), per_reason))
    return rows.select(PICTURE.names)
