"""`altalign score RUN --with FILE`: measures scores on a finished run's samples, and writes them beside its shards.

Images are decoded once for all scorers, a batch at a time; texts are scored all at once. Embeddings are measured of
dropped images too, where galleries have a picture: all that is left of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage, terminal
from altalign.data import scores as files
from altalign.data.audit_tables import SAMPLES
from altalign.data.reasons import KEPT
from altalign.data.schema import SAMPLE
from altalign.data.stages import own_files
from altalign.errors import UnreadableError, UsageError
from altalign.filters import pixels
from altalign.filters.image_headers import STRICT_PILLOW
from altalign.machine import interrupts
from altalign.machine.threads import in_shared_threads
from altalign.pipelines import curate
from altalign.pipelines.derive import copy_shards, parents
from altalign.pipelines.derive.parents import Shard
from altalign.pipelines.engine.jobs import started
from altalign.pipelines.engine.options import options
from altalign.pipelines.images.measuring import enough_memory
from altalign.pipelines.run import marks, shard_files
from altalign.pipelines.run.image_tables import images_of
from altalign.pipelines.run.shard_tables import ScoreFacts, ScoreUnit
from altalign.pipelines.run.units import Marks, Run, content
from altalign.pipelines.run.units import digest as sha256_of
from altalign.pipelines.score import models, scorers
from altalign.pipelines.score.scorers import Batch, Scorer
from altalign.settings.curate import CurateConfig
from altalign.settings.score import ScoreConfig, ScoreSettings
from altalign.storage import parquet

VERSION = 1  # of what scores are; raised where the same settings would give other values
ROWS_PER_BATCH = 64  # at least, of samples whose images are scored; all captions of an image are in one batch
_ANY_NUMBER = 1 << 62  # of pixels: curation's own limit was kept
_KINDS: dict[str, Callable[[ScoreSettings, str], Scorer]] = {
    "text": scorers.text,
    "image": scorers.image,
    "noise": scorers.noise,
    "language": models.language,
    "embedding": models.embedding,
    "similarity": models.similarity,
    "linear": models.linear,
}

Places = npt.NDArray[np.int64]


def loaded(config: ScoreConfig, config_path: str) -> list[Scorer]:
    """The scorers of a settings file, with their models."""
    made = list[Scorer]()
    for each in config.score:
        where = f"{config_path} [[score]] {each.name}"
        is_own = each.kind == "own"
        made.append(scorers.own(each, where, config_path) if is_own else _KINDS[each.kind](each, where))
    owners = dict[str, str]()
    for scorer in made:
        for column in scorer.columns.names:
            if (other := owners.setdefault(column, scorer.name)) != scorer.name:
                raise UsageError(f"{config_path}: {other} and {scorer.name} both have a column {column}; rename one")
    return made


@lru_cache(maxsize=2)
def _in_worker(settings: str, config_path: str) -> list[Scorer]:
    """The scorers of settings as JSON, loaded once in a process."""
    return loaded(ScoreConfig.model_validate_json(settings), config_path)


def score(config: CurateConfig, scores: ScoreConfig, where: str, flags: list[str], *, anew: bool) -> int:
    """Measure scores on a run; returns the exit code.

    `where` is the file of `scores`, for errors; own functions are beside it. `anew` replaces values that rest on other
    settings or files. `flags` go to Beam.
    """
    pipeline_options = options(config.engine, flags)
    of_settings = list(zip(scores.score, loaded(scores, where), strict=True))
    of_dropped = {scorer.name for _, scorer in of_settings if scorer.is_of_dropped}
    digests = dict[str, str]()  # what the values of each score depend on beside the samples
    for settings, scorer in of_settings:
        columns = [[each.name, str(each.type)] for each in scorer.columns]
        digests[settings.name] = sha256_of([VERSION, settings.kind, columns, dict(scorer.rests_on)])
    run = Run(config.run.folder, config, ())
    parent = parents.opened(run.folder, config)
    shards = [*parent.shards, *(_dropped(run) if of_dropped else ())]
    had_work = storage.kind(run.path("work")) != "missing"
    with storage.locked(run.folder), own_files(run.folder):
        before = {name: _usable(run, name, digest, anew=anew) for name, digest in digests.items()}
        step = Marks(f"score/{sha256_of(sorted(digests.items()))[:16]}", ScoreFacts)
        units = _plan(shards, of_dropped, before, config.engine.threads)
        storage.sweep(run.path(files.FOLDER))
        # units of shards that have changed since, and files that are not as they were written, are forgotten
        marks.unmark_units(run, marks.look(run, (step,)))
        sidecars = {unit["name"]: unit["of"] for unit in units}
        run.marks(step.step).drop([name for name, facts in run.all_facts(step) if facts.of != sidecars.get(name)])
        work = partial(_score, parent.folder, scores.model_dump_json(exclude_unset=True), where)
        with storage.temporary(run.work("temporary")), started(run, pipeline_options):
            curate.run_step(run, curate.each(step, lambda _: units, work), pipeline_options)
        for settings, scorer in of_settings:
            name = settings.name
            stated = {
                "name": name,
                "kind": settings.kind,
                "columns": {column.name: str(column.type) for column in scorer.columns},
                "settings": settings.model_dump(mode="json", exclude_defaults=True),
                "rests_on": dict(scorer.rests_on),
                "digest": digests[name],
            }
            # files of before that still count, and those that were made now
            made = shard_files.scores_made(run, step, name, lambda unit: shards[int(unit)].name)
            earlier = before[name]
            old = earlier.files if earlier else {}
            every = shards if scorer.is_of_dropped else parent.shards
            entries = [{"name": shard.name, **(made.get(shard.name) or old[shard.name])} for shard in every]
            folder = files.folder_of(run.folder, name)
            shard_files.conclude_score(folder, stated, entries, durable=run.config.run.durable)
        storage.delete(run.path("work") if not had_work else run.work("score"))
    for settings in scores.score:
        if (measured := files.opened(run.folder, settings.name)) is not None:
            rows, nulls = measured.sums()
            missing = ", ".join(f"{column} {n:,}" for column, n in nulls.items() if n)
            without = f"; without a value: {missing}" if missing else ""
            line = f"{terminal.shown(measured.folder)}: {rows:,} samples, {', '.join(measured.columns)}{without}"
            terminal.stdout().print(line, highlight=False, soft_wrap=True)
    return 0


def _usable(run: Run, name: str, digest: str, *, anew: bool) -> files.Score | None:
    """What a run has of a score; None where there is nothing, or it is to be replaced."""
    before = files.opened(run.folder, name)
    if before is None or before.facts["digest"] == digest:
        return before
    if not anew:
        raise UsageError(
            f"{before.folder}: measured with other settings, files or versions; give the score another name, or --anew "
            "to measure all of it again"
        )
    storage.delete(before.folder)
    return None


def _dropped(run: Run) -> list[Shard]:
    """The pictures of dropped images, as if they were a shard; empty: there are none."""
    rows = len(_pictures(run.folder))
    digest = content(run.path(*SAMPLES.path.split("/")))
    return [Shard(files.DROPPED, rows, 0, "", digest)] if rows else []


def _pictures(folder: str) -> pa.Table:
    """The dropped rows that galleries show with a picture."""
    path = storage.join(folder, *SAMPLES.path.split("/"))
    if not storage.exists(path):
        return SAMPLES.schema.empty_table()
    return parquet.read_table(path).filter((pc.field("reason") != KEPT) & pc.field("picture").is_valid())


def _plan(
    shards: Sequence[Shard], of_dropped: set[str], before: Mapping[str, files.Score | None], threads: int
) -> list[ScoreUnit]:
    """A unit for each shard that lacks a score; the dropped images are of some scores alone."""

    def has(score: files.Score | None, shard: Shard) -> bool:
        with suppress(UnreadableError):
            is_of_shard = score is not None and score.has(shard.name, shard.parquet_sha256)
            return is_of_shard and bool(score and score.read(shard.name))
        return False

    units = list[ScoreUnit]()
    for place, shard in enumerate(shards):
        takes = {*before} if shard.name != files.DROPPED else of_dropped
        if names := [name for name, score in before.items() if name in takes and not has(score, shard)]:
            of_shard = {"shard": shard.name, "rows": shard.rows, "of": shard.parquet_sha256}
            units.append(ScoreUnit(name=f"{place:05d}", **of_shard, scores=names, threads=threads))
    return units


def _score(folder: str, settings: str, where: str, run: Run, unit: ScoreUnit) -> ScoreFacts:
    """Measure the scores that a shard lacks."""
    lacking = [each for each in _in_worker(settings, where) if each.name in unit["scores"]]
    if unit["shard"] == files.DROPPED:
        pictures = _pictures(folder)
        tables = _measured(pictures, lacking, lambda rows: parquet.values(rows, "picture"), unit["threads"])
    else:
        tables = of_shard(storage.join(folder, "shards", unit["shard"]), lacking, threads=unit["threads"])
    nulls = {
        name: shard_files.write_score(run.path(*shard_files.score_path(name, unit["shard"]).split("/")), table)
        for name, table in tables.items()
    }
    return ScoreFacts(of=unit["of"], rows=unit["rows"], nulls=nulls)


def of_shard(stem: str, lacking: Sequence[Scorer], *, threads: int) -> dict[str, pa.Table]:
    """The scores of the shard with this path (without an ending): key and the scorer's columns, by its name."""
    names = {"key", "image_id"}.union(*(SAMPLE.names if each.reads is None else each.reads for each in lacking))
    rows = parquet.read_table(f"{stem}.parquet", [name for name in SAMPLE.names if name in names])

    def read(images: pa.Table) -> Iterable[bytes]:
        places = zip(*(parquet.values(images, name) for name in ("tar_offset", "tar_bytes")), strict=True)
        return copy_shards.images(f"{stem}.tar", list(places))

    return _measured(rows, lacking, read, threads)


def _measured(
    rows: pa.Table, lacking: Sequence[Scorer], read: Callable[[pa.Table], Iterable[bytes]], threads: int
) -> dict[str, pa.Table]:
    """The scores of rows; `read` gives the bytes of images by the first row of each."""
    rows = rows.combine_chunks()
    firsts, image_of = images_of(rows)
    whole, of_images = Batch(rows, image_of), [scorer for scorer in lacking if scorer.prepares]
    parts = {scorer.name: [scorer.measure(whole)] for scorer in lacking if not scorer.prepares}
    if of_images:
        prepares = {name: prepare for scorer in of_images for name, prepare in scorer.prepares.items()}
        begins = [0]  # of batches, each at an image of its own, and the end of the last one
        for begin in [*firsts.tolist(), len(rows)]:
            if begin - begins[-1] >= ROWS_PER_BATCH or (begin == len(rows) and begin > begins[-1]):
                begins.append(begin)

        def one(number: int) -> list[Sequence["pa.Array[Any]"]]:
            begin, end = begins[number : number + 2]
            image_of = whole.image_of[begin:end]
            batch = _decoded(rows.slice(begin, end - begin), image_of - image_of[0], read, prepares)
            return [scorer.measure(batch) for scorer in of_images]

        with STRICT_PILLOW:
            of_batches = in_shared_threads(one, range(len(begins) - 1), threads)
        parts |= {scorer.name: [batch[place] for batch in of_batches] for place, scorer in enumerate(of_images)}
    tables = dict[str, pa.Table]()
    for scorer in lacking:
        values = enumerate(scorer.columns)
        columns = [pa.chunked_array([part[at] for part in parts[scorer.name]], each.type) for at, each in values]
        schema = pa.schema([pa.field("key", pa.string()), *scorer.columns])
        tables[scorer.name] = pa.table([rows["key"], *columns], schema=schema).combine_chunks()
    return tables


def _decoded(
    rows: pa.Table,
    image_of: Places,
    read: Callable[[pa.Table], Iterable[bytes]],
    prepares: Mapping[str, Callable[[scorers.Pixels], Any]],
) -> Batch:
    """A batch with all that scorers look at of its images."""
    interrupts.check()
    rows, images = rows.combine_chunks(), list[dict[str, Any] | None]()
    for data in read(rows.take(np.flatnonzero(np.diff(image_of, prepend=-1)))):
        with enough_memory(None, data, colour=True, pixels_at_most=_ANY_NUMBER, short_side_px=pixels.FULL_SIZE_PX):
            image = pixels.decode(data, pixels_at_most=_ANY_NUMBER, colour=True, short_side_px=pixels.FULL_SIZE_PX)
            made = image.pixels
            images.append(None if made is None else {name: prepare(made) for name, prepare in prepares.items()})
    return Batch(rows, image_of, images)
