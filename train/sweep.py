"""`altalign train CONFIG --sweep`: VTAB by fine-tuning, as ALIGN has it (section 5.3).

Every task has the same trials. A trial is a training on 800 examples that is measured on 200 others; the best one is
trained on all 1,000, and measured on the test images. Each is a training run in RUN/TASK, which goes on where it was
stopped; when it is done, its settings and metrics stay, and its weights go.
"""

import os
import statistics
from collections.abc import Sequence

from rich.table import Table

from altalign import storage, terminal
from altalign.errors import AltalignError, UsageError
from altalign.eval import linear_probe
from altalign.eval.sets import beside, classes_of_lists, lines_of
from altalign.settings.common import dump
from altalign.train import loop
from altalign.train.run import training_folder
from altalign.train.settings.sweep import SweepConfig
from altalign.train.settings.training import TrainConfig
from altalign.train.step.learner import NotFiniteError

RESULT = "sweep.json"
RUNS = 3  # trainings of the chosen trial on all 1,000 examples (ALIGN, table 6)

_CLASSES, _ALL = "classes.txt", "train1000.txt"
_BULKY = ("checkpoints", "index", "packed", "tensorboard")  # of a training run that is done


def sweep(config: SweepConfig) -> int:
    """Make the trials that are not there yet, train the best ones, and report; returns the exit code.

    Raises UsageError: the settings do not fit, or the folder has trials of others; before any work; AltalignError: all
    trials of a task, or a training on all examples, diverged.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("a sweep is one process; give several of them tasks of their own in [sweep] tasks")
    tasks, folder, seed, out = _tasks(config), config.run.folder, config.run.seed, terminal.stdout()
    storage.check(folder)
    own = {*linear_probe.TASKS, "config.toml", RESULT}  # the settings of each trial are compared when its turn comes
    if others := [name for name in storage.entries(folder) if name not in own and not storage.is_partial(name)]:
        raise UsageError(f"{folder}: not the folder of a sweep ({others[0]} is in it); choose another [run] folder")
    planned = dict[str, list[TrainConfig]]()
    for task in tasks:
        lists, place = linear_probe.lists_of(storage.absolute(config.sweep.path), task), storage.join(folder, task)
        names = "".join(f"{name}\n" for name in classes_of_lists(lists).names)
        storage.write_bytes(storage.join(place, _CLASSES), names.encode())
        rows = "".join(f"{beside(path, file)} {label}\n" for path in lists[:2] for file, label in lines_of(path))
        storage.write_bytes(storage.join(place, _ALL), rows.encode())
        trials = range(config.sweep.trials)
        planned[task] = [_training(config, task, trial, f"trial-{trial:03}", seed=seed) for trial in trials]
    settings = dump(config.model_dump(mode="json", exclude={"run": {"folder"}}))
    storage.write_bytes(training_folder.path(config, "config.toml"), settings.encode())
    results, table = dict[str, dict[str, object]](), Table("task", "trial", "validation", "test", "deviation")
    by_run: list[dict[str, float]] = [{} for _ in range(RUNS)]
    for number, (task, trainings) in enumerate(planned.items(), start=1):
        terminal.stderr().print(f"{task}, {number} of {len(planned)} tasks: {len(trainings)} trials", soft_wrap=True)
        validation = [_measured(training) for training in trainings]
        chosen = best(validation)
        if chosen is None:
            raise AltalignError(f"{task}: all {len(trainings)} trials diverged; draw lower rates in [sweep.draws]")
        test = list[float]()
        for run, name in enumerate(f"best-{chosen:03}-seed-{seed + run}" for run in range(RUNS)):
            top1 = _measured(_training(config, task, chosen, name, seed=seed + run, is_last=True))
            if top1 is None:
                raise AltalignError(f"{task}: trial {chosen:03} diverged on all examples; draw lower rates")
            test.append(top1)
            by_run[run][task] = top1
        drawn = config.sweep.drawn(chosen, seed=seed)
        results[task] = {"trial": chosen, "settings": drawn, "validation": validation, "test": test}
        figures = f"{validation[chosen]:.1f}", f"{statistics.fmean(test):.1f}", f"{statistics.stdev(test):.2f}"
        table.add_row(task, f"{chosen:03}", *figures)
    of_runs = [{**linear_probe.means(tests), "mean_there": statistics.fmean(tests.values())} for tests in by_run]
    columns = {name: [of_run[name] for of_run in of_runs] for name in of_runs[0]}
    means = {
        name: {"mean": statistics.fmean(values), "deviation": statistics.stdev(values)}
        for name, values in columns.items()
    }
    storage.write_json(result := training_folder.path(config, RESULT), {"tasks": results, "means": means})
    out.print(table)
    for name, spread in means.items():
        out.print(f"{name}: {spread['mean']:.2f}, deviation {spread['deviation']:.2f} of {RUNS} runs")
    out.print(f"{len(results)} of {len(linear_probe.TASKS)} tasks; {terminal.shown(result)}", soft_wrap=True)
    return 0


def describe(config: SweepConfig) -> int:
    """Print the trials; nothing is written."""
    tasks, out = _tasks(config), terminal.stdout()
    for trial in range(config.sweep.trials):
        drawn = config.sweep.drawn(trial, seed=config.run.seed)
        values = (f"{section}.{name} = {value}" for section, of in drawn.items() for name, value in of.items())
        out.print(f"{trial:03}: {', '.join(values)}", soft_wrap=True)
    trainings = len(tasks) * (config.sweep.trials + RUNS)
    out.print(f"{trainings:,} trainings of {len(tasks)} tasks: {', '.join(tasks)}", soft_wrap=True)
    return 0


def best(validation: Sequence[float | None]) -> int | None:
    """The trial with the highest accuracy, of equal ones the first; None where all diverged."""
    measured = [trial for trial, top1 in enumerate(validation) if top1 is not None]
    return max(measured, key=lambda trial: (validation[trial], -trial), default=None)


def _tasks(config: SweepConfig) -> list[str]:
    """The tasks that the settings name, or all."""
    existing = linear_probe.tasks_in(config.sweep.path)
    if missing := [name for name in config.sweep.tasks if name not in existing]:
        names = ", ".join(existing)
        raise UsageError(f"[sweep] tasks: {missing[0]} is not in {config.sweep.path} (there are: {names}); give others")
    return [name for name in existing if not config.sweep.tasks or name in config.sweep.tasks]


def _training(
    config: SweepConfig, task: str, trial: int, name: str, *, seed: int, is_last: bool = False
) -> TrainConfig:
    """The settings of a trial; or, `is_last`, of the training on all examples."""
    values = config.model_dump(mode="json", exclude={"sweep"})
    for section, drawn in config.sweep.drawn(trial, seed=config.run.seed).items():
        values[section] = {**values.get(section, {}), **drawn}
    first, validation, test = linear_probe.lists_of(config.sweep.path, task)
    own = training_folder.path(config, task)
    values["run"] = {"folder": storage.join(own, name), "seed": seed}
    values["classification"] |= {
        "train": storage.join(own, _ALL) if is_last else first,
        "test": test if is_last else validation,
        "classes": storage.join(own, _CLASSES),
    }
    return TrainConfig.from_values(values, where=f"[sweep] trial {trial:03}")


def _measured(config: TrainConfig) -> float | None:
    """The accuracy that a training ends with, after what is left of it to do; None: it diverged."""

    def has_diverged() -> bool:
        return any(name.startswith("not-finite") for name in storage.entries(training_folder.path(config, "log")))

    if storage.exists(training_folder.path(config, "config.toml")):
        training_folder.check_trained(config)
    if not has_diverged() and not training_folder.recorded(config).get("finished"):
        try:
            loop.train(config)
        except NotFiniteError as error:
            terminal.stderr().print(terminal.shown(str(error)), style="yellow", soft_wrap=True)
    for name in _BULKY:
        for place in {training_folder.path(config, name), training_folder.local(config, name)}:
            storage.delete(place)
    if has_diverged():
        return None
    metrics = training_folder.path(config, "eval", f"step-{config.schedule.steps:07}", "metrics.json")
    return float(storage.read_json(metrics)["classification/test"]["top1"])
