"""Trains the runs of an experiment that are not finished yet, a process a core.

Below `runs/experiments/NAME/version-N`: `data/`, the sets; `finished/ARM-SEED.json`, what each run came to; `runs/`,
which a run leaves when it ends; `log/`. A run that was stopped begins again. Results that are committed, each with the
digest of its settings and of the version of the code, count as finished in every checkout; those of other code do not.
"""

import contextlib
import importlib
import json
import multiprocessing
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import nullcontext, suppress
from itertools import repeat
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

from altalign import storage, terminal
from altalign.errors import AltalignError
from altalign.settings.common import merged
from altalign.train import NUMBERS_VERSION
from experiments import plan
from experiments.data import Absent
from experiments.plan import Experiment, Job

ROOT = Path(__file__).parents[1]
_SPAWN = multiprocessing.get_context("spawn")


def read(name: str) -> Experiment:
    """The experiment of a name."""
    return Experiment.load(ROOT / "experiments" / f"{name}.toml")


def run(
    module: str, experiment: Experiment, folder: Path, *, processes: int, pilots_alone: bool = False
) -> dict[str, str]:
    """Make the sets, and train what is not finished; gives the sets that are absent, with the reasons.

    Args:
        module: by its import name; it has `SETS`, functions that write a set to a folder, and `VARIANTS`, contexts in
            which training differs as no setting makes it. It may have `before`, called before a run, and `measured`,
            which gives measures of its own after it.
        experiment: the runs.
        folder: absolute.
        processes: that train at a time.
        pilots_alone: train the arms alone that others replace.

    Raises:
        AltalignError: a process ended before its runs did.
    """
    absent = make_sets(module, set().union(*(job.sets for job in plan.jobs(experiment))), folder)
    jobs = plan.jobs(experiment, absent=absent)
    planned = [job for job in jobs if job.arm in experiment.pilots or not pilots_alone]
    todo = plan.left(planned, digests(folder))
    with suppress(BrokenExecutor), ProcessPoolExecutor(processes, _SPAWN) as pool:
        for line in pool.map(_tried, repeat(module), todo, repeat(str(folder))):
            terminal.stderr().print(line, soft_wrap=True)
    if missing := plan.left(planned, digests(folder)):
        raise AltalignError(
            f"{len(missing)} of {len(planned)} runs are not finished, {missing[0].name} among them; look at "
            f"{folder / 'log'}, and run it again: it continues"
        )
    return absent


def make_sets(module: str, names: Iterable[str], folder: Path) -> dict[str, str]:
    """Make the sets that are not there, in the order of names; gives those that cannot be made, with the reasons."""
    absent = {}
    for wanted in sorted(names):
        place = folder / "data" / wanted
        if place.is_dir():
            continue
        partial = place.with_name(f"{wanted}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            importlib.import_module(module).SETS[wanted](partial)
        except Absent as reason:
            absent[wanted] = str(reason)
            shutil.rmtree(partial)
        else:
            partial.rename(place)
    return absent


def results(folder: Path) -> dict[str, Any]:
    """What runs came to, by their names."""
    return {path.stem: json.loads(path.read_bytes()) for path in sorted((folder / "finished").glob("*.json"))}


def remember(folder: Path, experiment: Experiment, runs: Mapping[str, Any]) -> None:
    """Take over what runs of the same settings came to elsewhere, where they are not finished here."""
    for job in plan.left(list(plan.jobs(experiment)), digests(folder)):
        if (run := runs.get(job.name, {})).get("digest") == job.digest:
            storage.write_json(str(folder / "finished" / f"{job.name}.json"), run)


def code() -> str:
    """The version of the code that trains, and its commit; `+` stands for changes that are not committed."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain", "*.py", "*.toml"], capture_output=True, check=False)
    return f"{NUMBERS_VERSION} of {head.stdout.strip() or 'no checkout'}{'+' if changed.stdout else ''}"


def digests(folder: Path) -> dict[str, str]:
    """The digests of finished runs, by their names."""
    return {name: result["digest"] for name, result in results(folder).items()}


def _tried(module: str, job: Job, folder: str) -> str:
    """Train a run in a process of the pool; gives what it came to in a line, its error where it is to be tried again.

    Paths in settings begin at the folder.
    """
    os.chdir(folder)
    try:
        result = trained(module, job)
    except AltalignError as error:
        return f"{job.name}: {error}"
    values = result["values"]
    ended = f"rsum {values.get('rsum', 0):.1f}, {values['cpu_s']:.0f} CPU seconds, {values['wall_s']:.0f} s"
    return f"{job.name}: {result['failed'] or ended}"


def trained(module: str, job: Job) -> dict[str, Any]:
    """Train a run from its start, and write what it came to; that its loss is not finite is a result too.

    Raises:
        AltalignError: it could not be trained.
    """
    run_folder = Path("runs", job.name)
    shutil.rmtree(run_folder, ignore_errors=True)
    _hook(module, "before")(job, run_folder)
    begun, used = time.monotonic(), _cpu_s()
    values, failed = dict[str, float](), ""
    try:
        (_train if job.ranks == 1 else _train_by_ranks)(module, job)
        values = values_of(run_folder) | (_hook(module, "measured")(job, run_folder) or {})
    except AltalignError:
        if not (marks := sorted((run_folder / "log").glob("not-finite-step-*.json"))):
            raise
        failed = f"loss or gradient is not finite at step {storage.read_json(str(marks[0]))['step']}"
    values |= {"cpu_s": _cpu_s() - used, "wall_s": time.monotonic() - begun}
    result = {"digest": job.digest, "code": code(), "values": values, "failed": failed}
    storage.write_json(f"finished/{job.name}.json", result)
    shutil.rmtree(run_folder, ignore_errors=True)
    return result


def again(module: str, experiment: Experiment, folder: Path) -> str:
    """Train a finished run, drawn at random, once more; gives what it came to.

    Raises:
        AltalignError: no run has ended, or a measure differs.
    """
    finished, found = results(folder), digests(folder)
    if not (jobs := [job for job in plan.jobs(experiment) if found.get(job.name) == job.digest]):
        raise AltalignError("no run of these settings and this code has ended; train some first")
    job = secrets.choice(jobs)
    if absent := make_sets(module, job.sets, folder):
        raise AltalignError(f"{job.name}: {'; '.join(absent.values())}")
    place = folder / "again"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "data").symlink_to(folder / "data")
    with contextlib.chdir(place):
        values = trained(module, job)["values"]
    before = finished[job.name]["values"]
    of_both = {name: (before[name], round(values[name], 6)) for name in before if name not in ("cpu_s", "wall_s")}
    if moved := [f"{name} was {old} and is {new}" for name, (old, new) in of_both.items() if round(old, 6) != new]:
        raise AltalignError(f"{job.name}: {'; '.join(moved)}; {len(of_both) - len(moved)} measures are the same")
    return f"{job.name}, trained again: all {len(of_both)} measures are the same"


def values_of(run_folder: Path) -> dict[str, float]:
    """The measures of a finished run: of its last evaluation, and means over the second half of its steps.

    Of a run in phases they are those of the last phase that trains. `rsum` is the mean over sets of retrieval, others
    have the names of `metrics.jsonl`.
    """
    run_folder = last_phase(run_folder)
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_bytes().splitlines()]
    steps = [line for line in lines if "loss" in line]
    late = [line for line in steps if line["step"] > steps[-1]["step"] / 2]
    measured = {name: float(value) for name, value in lines[-1].items() if "/" in name}
    of_sources = [
        fmean(line[name] for line in late if name in line)
        for name in sorted({name for line in late for name in line if name.startswith("negatives_log_p/")})
    ]
    return {
        **measured,
        "rsum": fmean(value for name, value in measured.items() if name.endswith("/rsum")),
        "loss": fmean(line["loss"] for line in late),
        "drift": fmean(line["drift"] for line in late),
        **({"negatives_log_p": fmean(of_sources)} if of_sources else {}),
    }


def last_phase(run_folder: Path) -> Path:
    """The folder of the last phase that trains; of a run without phases its own."""
    of_phases = tomllib.loads((run_folder / "config.toml").read_text())["phases"]
    trained = [phase["name"] for phase in of_phases if phase["does"] == "train"]
    return run_folder / "phases" / trained[-1] if trained else run_folder


def _hook(module: str, name: str) -> Callable[[Job, Path], Any]:
    """What an experiment does before a run, or measures after it, where its module has such a function."""
    return getattr(importlib.import_module(module), name, lambda *_: None)


def _train(module: str, job: Job) -> None:
    from altalign.train import loop
    from altalign.train.nlip import phases
    from altalign.train.settings.training import TrainConfig

    settings = merged(job.settings, {"run": {"folder": f"runs/{job.name}", "seed": job.seed}})
    config = TrainConfig.from_values(settings, where=job.arm)
    with (
        _log(job) as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
        importlib.import_module(module).VARIANTS[job.variant]() if job.variant else nullcontext(),
    ):
        if config.phases:
            phases.train(config)
        else:
            loop.train(config)


def _log(job: Job) -> TextIO:
    """What a run says on the way."""
    Path("log").mkdir(exist_ok=True)
    return Path("log", f"{job.name}.log").open("a", encoding="utf-8")


def _train_by_ranks(module: str, job: Job) -> None:
    """As `_train`, by processes that find each other as those of torchrun do."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": str(job.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [_SPAWN.Process(target=_rank, args=(module, job, {**world, "RANK": str(n)})) for n in range(job.ranks)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if codes := [rank.exitcode for rank in ranks if rank.exitcode]:
        raise AltalignError(f"its processes ended with {codes}; look at log/{job.name}.log")


def _rank(module: str, job: Job, environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    try:
        _train(module, job)
    except AltalignError as error:
        with _log(job) as log:
            log.write(f"{error}\n")
        sys.exit(error.exit_code)


def _cpu_s() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
