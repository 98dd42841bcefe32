"""The training loop, top to bottom."""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import torch

from altalign import storage, terminal
from altalign.errors import AltalignError, UsageError
from altalign.machine import interrupts
from altalign.machine.cores import cores
from altalign.train import checkpoints, evaluation, metrics, training_folder
from altalign.train.data import loader
from altalign.train.data.batches import Batch
from altalign.train.data.training_data import TrainingData, prepared
from altalign.train.encoders import Encoders
from altalign.train.ranks import Ranks, joined, share
from altalign.train.settings import TrainConfig
from altalign.train.step.learner import Learner, NotFiniteError


def train(config: TrainConfig) -> int:
    """Train until the last step, from the newest checkpoint on; returns the exit code.

    Raises:
        UsageError: the settings do not fit the run folder, the shards or this machine; before any work.
        AltalignError: the loss is not finite, or shards cannot be read.
    """
    with joined(config.loop.device) as ranks, _held(config, ranks):
        say = terminal.stderr().print if ranks.is_first else _nobody
        _check_shares(config, ranks)
        threads = take_threads(config, ranks)
        data = prepared(config, ranks, say=say)
        learner = Learner(config, vocabulary=data.tokenizer.vocabulary, ranks=ranks)
        encoders = Encoders(config, learner.model, data.tokenizer, ranks)
        evaluated = evaluation.Evaluation(config, encoders, data.samples, is_first=ranks.is_first)
        first = _restored(config, data, learner, ranks)
        if ranks.is_first:
            training_folder.begin(config, data.lineage, step=first, ranks=ranks.ranks, device=str(ranks.device))
        say(f"{_about(config, data, learner, first)}; {threads}", soft_wrap=True)
        with metrics.opened(config, first_step=first, is_first=ranks.is_first) as lines:
            with interrupts.deferred() as asked:
                signal = _steps(config, data, learner, evaluated, first, ranks, lines, asked)
            if not signal:
                _ended(config, evaluated, ranks, lines)
    if signal:
        raise interrupts.Interrupted(signal)
    return 0


def _steps(
    config: TrainConfig,
    data: TrainingData,
    learner: Learner,
    evaluated: evaluation.Evaluation,
    first: int,
    ranks: Ranks,
    lines: metrics.Metrics | metrics.Unwritten,
    asked: Callable[[], int],
) -> int:
    """The steps after the first `first`; returns the signal that ended them before the last, or 0."""
    loop, last = config.loop, config.schedule.steps
    with closing(_batches(config, data, first, ranks)) as batches:
        for step, batch in enumerate(batches, start=first + 1):
            is_logged = step % loop.log_every == 0 or step == last
            values = _stepped(config, learner, step, batch, ranks, list(data.samples.sources) if is_logged else [])
            signal = ranks.any(asked())
            if is_logged:
                lines.write(step, values)
            if signal or step == last or step % loop.checkpoint_every == 0:
                _save(config, data, learner, step, ranks)
            if signal:
                return signal
            if loop.evaluate_every and step % loop.evaluate_every == 0 and step < last:
                lines.evaluated(step, evaluated.of_model())
    return 0


def _batches(config: TrainConfig, data: TrainingData, first: int, ranks: Ranks) -> Generator[Batch, None, None]:
    """This rank's share of the global batches that are still to come; step n has batch n - 1."""
    batches = loader.batches(
        data.samples,
        data.sampler,
        data.tokenizer,
        config.data,
        seed=config.run.seed,
        first_batch=first,
        after_batch=config.schedule.steps,
        rank=ranks.rank,
        ranks=ranks.ranks,
        undecodable=loader.log_undecodable(config.run.folder),
        pinned=ranks.device.type == "cuda",
    )
    # without workers a thread would read tars at the same time as evaluation
    return loader.ahead(batches) if config.data.workers else batches


def _stepped(
    config: TrainConfig, learner: Learner, step: int, batch: Batch, ranks: Ranks, sources: Sequence[str]
) -> dict[str, float]:
    """One step. Where loss or gradient is not finite, each rank writes the keys of its pairs, to find the cause."""
    try:
        return learner.step(step, batch, sources=sources)
    except NotFiniteError as error:
        place = training_folder.path(config, "log", f"not-finite-step-{step}-rank-{ranks.rank}.json")
        storage.write_json(place, {"step": step, "keys": batch.keys, "sources": batch.sources})
        raise AltalignError(
            f"{error}; its pairs are in {place} (a file a process); go on from an earlier checkpoint with a lower "
            "[schedule] peak, or a longer warm-up"
        ) from None


def _save(config: TrainConfig, data: TrainingData, learner: Learner, step: int, ranks: Ranks) -> None:
    if ranks.is_first:
        checkpoints.save(
            config.run.folder,
            step,
            learner.model,
            learner.optimizer,
            data.state(step),
            keep=config.loop.keep_checkpoints,
        )
    ranks.wait()


def _restored(config: TrainConfig, data: TrainingData, learner: Learner, ranks: Ranks) -> int:
    """Steps that the newest checkpoint has behind it, which learner and order are given; 0 where there is none."""
    training_folder.check_lineage(config, data.lineage)
    if ranks.is_first:
        checkpoints.sweep(config.run.folder)
    place = ranks.told(checkpoints.newest(config.run.folder) if ranks.is_first else None)
    if place is None:
        return 0
    state = checkpoints.state_of(place)
    training_folder.check_checkpoint(config, place, state, data.lineage)
    checkpoints.load_model(place, learner.model)
    checkpoints.load_optimizer(place, learner.optimizer)
    data.resume(state["step"], state)
    return state["step"]


def _ended(
    config: TrainConfig, evaluated: evaluation.Evaluation, ranks: Ranks, lines: metrics.Metrics | metrics.Unwritten
) -> None:
    """Evaluate what was learned, and say where it is."""
    step = config.schedule.steps
    found = evaluated.of_model()
    if found:
        lines.evaluated(step, found)
    if ranks.is_first:
        if found:
            evaluation.report(config, step, found)
        training_folder.end(config)
        if lost := loader.undecodable_so_far(config.run.folder):
            terminal.stderr().print(
                f"{lost:,} times a pair could not be decoded and another took its place: see undecodable.jsonl",
                style="yellow",
            )
        terminal.stdout().print(
            f"trained: {terminal.shown(str(checkpoints.folder_of(config.run.folder, step)))}", soft_wrap=True
        )


def _check_shares(config: TrainConfig, ranks: Ranks) -> None:
    """Refuse groups of pairs that would begin elsewhere than with one rank: those of batch norm, and of mixup.

    Raises:
        UsageError: a rank's share is no multiple of them.
    """
    tower, loss, size = config.image_tower, config.loss, config.loop.global_batch
    shares = {len(share(size, rank, ranks.ranks)) for rank in range(ranks.ranks)}
    groups = {"[image_tower] ghost_group": tower.ghost_group} if tower.has_groups else {}
    groups |= {"[loss] mixup_group": loss.mixup_group} if loss.mixup else {}
    for name, group in groups.items():
        if ranks.ranks > 1 and any(pairs % group for pairs in shares):
            raise UsageError(
                f"[loop] global_batch = {size:,} gives {ranks.ranks} processes shares of "
                f"{' and '.join(map(str, sorted(shares)))} pairs, no multiples of {name} ({group}); give a multiple of "
                f"{ranks.ranks * group:,}"
            )


def take_threads(config: TrainConfig, ranks: Ranks) -> str:
    """Leave a core to each process that decodes, and say how many threads torch has; OMP_NUM_THREADS is left alone."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores() // ranks.of_machine - config.data.workers))
    threads, workers = torch.get_num_threads(), config.data.workers
    return f"{threads} thread{'s' * (threads != 1)} and {workers} worker{'s' * (workers != 1)} a process"


def _about(config: TrainConfig, data: TrainingData, learner: Learner, first: int) -> str:
    """What is about to be done, in a line."""
    pairs, batch, steps = len(data.samples), config.loop.global_batch, config.schedule.steps
    numbers = sum(parameter.numel() for parameter in learner.model.parameters())
    begun = f", going on after step {first:,}" if first else ""
    return (
        f"{steps:,} steps of {batch:,} pairs ({steps * batch / pairs:.1f} epochs of {pairs:,}), {numbers / 1e6:.1f} M "
        "parameters, "
        f"{data.tokenizer.vocabulary:,} word pieces{begun}"
    )


@contextmanager
def _held(config: TrainConfig, ranks: Ranks) -> Iterator[None]:
    """Make or check the run's folder and lock it in rank 0 against a second command; the other ranks wait."""
    if not ranks.is_first:
        ranks.wait()
        yield
        return
    training_folder.check_folder(config)
    with storage.locked(config.run.folder):
        training_folder.open_run(config)
        ranks.wait()
        yield


def _nobody(*_: Any, **__: Any) -> None:
    """Ranks but the first say nothing."""
