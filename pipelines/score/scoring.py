"""`altalign score RUN --with FILE`: measures scores on a finished run's samples, and writes them beside its shards.

Units are shards, with marks in `work/score` while the command is under way. The tars stay as they are.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from altalign import storage, terminal
from altalign.data import scores as files
from altalign.data.stages import own_files
from altalign.errors import UnreadableError, UsageError
from altalign.pipelines import curate
from altalign.pipelines.derive import parents
from altalign.pipelines.derive.parents import Parent, Shard
from altalign.pipelines.engine.jobs import started
from altalign.pipelines.engine.options import options
from altalign.pipelines.run import marks, shard_files
from altalign.pipelines.run.shard_tables import ScoreFacts, ScoreUnit
from altalign.pipelines.run.units import Marks, Run
from altalign.pipelines.score import kinds, of_shard
from altalign.pipelines.score.scorer import Scorer
from altalign.settings.curate import CurateConfig
from altalign.settings.score import ScoreConfig, ScoreSettings
from altalign.storage import parquet


def score(config: CurateConfig, scores: ScoreConfig, where: str, flags: list[str], *, anew: bool) -> int:
    """Measure scores on a run; returns the exit code.

    Args:
        config: the settings of the run.
        scores: what to measure.
        where: the settings file, for errors; modules of own functions are beside it.
        flags: for Beam.
        anew: whether values that rest on other settings or files are replaced.

    Raises:
        UsageError: the run is not finished, a model or a file is missing, or a score rests on something else.
    """
    pipeline_options = options(config.engine, flags)
    scorers = kinds.loaded(scores, where)
    digests = {of.name: kinds.digest(of, scorer) for of, scorer in zip(scores.score, scorers, strict=True)}
    run = Run(config.run.folder, config, ())
    parent = parents.opened(run.folder, config)
    had_work = storage.kind(run.path("work")) != "missing"
    with storage.locked(run.folder), own_files(run.folder):
        found = {name: _usable(run, name, digest, anew=anew) for name, digest in digests.items()}
        of_all = hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()
        step = Marks(f"score/{of_all[:16]}", ScoreFacts)
        units = _plan(parent, found, config.engine.threads)
        storage.sweep(run.path(files.FOLDER))
        vouched_for = {unit["name"]: unit["of"] for unit in units}
        _unmark_others(run, step, vouched_for)
        work = partial(_score, parent.folder, scores.model_dump_json(exclude_unset=True), where)
        with storage.temporary(run.work("temporary")), started(run, pipeline_options):
            curate.run_step(run, curate.each(step, lambda _: units, work), pipeline_options)
        for of, scorer in zip(scores.score, scorers, strict=True):
            _write_manifest(run, parent, of, scorer, digests[of.name], found[of.name], step)
        storage.delete(run.path("work") if not had_work else run.work("score"))
    for of in scores.score:
        terminal.stdout().print(_said(run, of.name), highlight=False, soft_wrap=True)
    return 0


def _usable(run: Run, name: str, digest: str, *, anew: bool) -> files.Score | None:
    """What is there of a score; None where there is nothing, or it is to be replaced.

    Raises:
        UsageError: it rests on something else.
    """
    there = files.opened(run.folder, name)
    if there is None or there.facts["digest"] == digest:
        return there
    if not anew:
        raise UsageError(
            f"{there.folder}: measured with other settings, files or versions; give the score another name, or --anew "
            "to measure all of it again"
        )
    storage.delete(there.folder)
    return None


def _plan(parent: Parent, found: Mapping[str, files.Score | None], at_once: int) -> list[ScoreUnit]:
    """A unit for each shard that lacks a score."""

    def lacks(there: files.Score | None, shard: Shard) -> bool:
        if there is None or not there.has(shard.name, shard.parquet_sha256):
            return True
        with suppress(UnreadableError):
            return not there.read(shard.name)
        return True

    missing = [
        (place, shard, [name for name, there in found.items() if lacks(there, shard)])
        for place, shard in enumerate(parent.shards)
    ]
    return [
        ScoreUnit(
            name=f"{place:05d}",
            shard=shard.name,
            rows=shard.rows,
            of=shard.parquet_sha256,
            scores=names,
            threads=at_once,
        )
        for place, shard, names in missing
        if names
    ]


def _unmark_others(run: Run, step: Marks[ScoreFacts], wanted: Mapping[str, str]) -> None:
    """Forget units of shards that have changed since, and files that are not as they were written."""
    wrong = {damage.mark.path for damage in marks.look(run, (step,))}
    for name in run.finished(step.step):
        path = run.mark(step.step, name)
        if path in wrong or run.facts_of(step, name).of != wanted.get(name):
            storage.delete(path)


def _score(folder: str, settings: str, where: str, run: Run, unit: ScoreUnit) -> ScoreFacts:
    """Measure the scores that a shard lacks."""
    scorers = [each for each in kinds.in_worker(settings, where) if each.name in unit["scores"]]
    tables = of_shard.score(storage.join(folder, "shards", unit["shard"]), scorers, threads=unit["threads"])
    for name, table in tables.items():
        parquet.write(run.path(*shard_files.score_path(name, unit["shard"]).split("/")), table, table.schema)
    nulls = {name: {of: table[of].null_count for of in table.column_names[1:]} for name, table in tables.items()}
    return ScoreFacts(of=unit["of"], rows=unit["rows"], nulls=nulls)


def _write_manifest(
    run: Run,
    parent: Parent,
    of: ScoreSettings,
    scorer: Scorer,
    digest: str,
    before: files.Score | None,
    step: Marks[ScoreFacts],
) -> None:
    """Write the manifest of a score: files of before that still count, and those that were made now."""
    made = shard_files.scores_made(run, step, of.name, lambda unit: parent.shards[int(unit)].name)
    old = before.files if before else {}
    shards = [{"name": shard.name, **(made.get(shard.name) or old[shard.name])} for shard in parent.shards]
    stated = {
        "name": of.name,
        "kind": of.kind,
        "columns": {column.name: str(column.type) for column in scorer.columns},
        "settings": of.model_dump(mode="json", exclude_defaults=True),
        "rests_on": dict(scorer.rests_on),
        "digest": digest,
    }
    shard_files.conclude_score(files.folder_of(run.folder, of.name), stated, shards, durable=run.config.run.durable)


def _said(run: Run, name: str) -> str:
    """What a score has, in a line."""
    there = files.opened(run.folder, name)
    assert there is not None
    rows, nulls = there.sums()
    missing = ", ".join(f"{column} {n:,}" for column, n in nulls.items() if n)
    without = f"; without a value: {missing}" if missing else ""
    return f"{terminal.shown(there.folder)}: {rows:,} samples, {', '.join(there.columns)}{without}"
