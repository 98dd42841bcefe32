"""The training loop, top to bottom."""

import gc
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from datetime import timedelta
from socket import gethostname

import torch

from altalign import storage, terminal
from altalign.errors import DamagedError, UsageError
from altalign.machine import interrupts
from altalign.machine.cores import cores
from altalign.train import evaluation
from altalign.train.data import loader, on_device
from altalign.train.data.batches import Batch
from altalign.train.data.packed import ClassNumbers
from altalign.train.data.training_data import TrainingData, check_there, prepared
from altalign.train.exchange.encoders import Encoders
from altalign.train.model.passes import is_sharded
from altalign.train.report import metrics
from altalign.train.report import page as report
from altalign.train.run import checkpoints, training_folder
from altalign.train.run.checkpoints import Kept
from altalign.train.run.ranks import WAIT, Ranks, joined, share
from altalign.train.run.sharded_tensors import Meeting
from altalign.train.settings.training import OF_RUN, TrainConfig
from altalign.train.step.flops import longest_captions
from altalign.train.step.learner import ClassLearner, Learner, NotFiniteError, prepare

_DECODERS = ("image_decoder.", "captioner.")  # what a run that goes on from another may have, and the other not
OF_A_GPU = 0.9  # of its memory, that `chunk = "auto"` may take: images on their way, and gaps, have the rest


def train(config: TrainConfig, *, data_changed: bool = False) -> int:
    """Train until the last step, from the newest checkpoint on; returns the exit code.

    With `data_changed` it goes on though a run that it learns from is not as it was.

    Raises UsageError: the settings do not fit the run folder, the shards or this machine; before any work;
    AltalignError: the loss is not finite, or shards cannot be read.
    """
    metrics.check_wandb(config)
    on_device.check_installed(config.data)
    evaluation.sets_of(config)  # before any work
    with joined(config.loop.device) as ranks, held(config, ranks):
        say = terminal.stderr().print if ranks.is_first else (lambda *_, **__: None)
        _check_shares(config, ranks)
        prepare(config.loop.precision, ranks.device)
        threads = take_threads(config, ranks)
        data = prepared(config, ranks, say=say, data_changed=data_changed)
        size, encoders = data.tokenizer.vocabulary, None
        config = with_chunk(config, ranks, vocabulary=size)
        if isinstance(data.tokenizer, ClassNumbers):
            learner = ClassLearner(config, classes=size, ranks=ranks)
            evaluated = evaluation.ClassEvaluation(config, learner.model, data.tokenizer, ranks)
        else:
            learner = Learner(config, vocabulary=size, ranks=ranks, estimates=data.estimates)
            encoders = Encoders(config, learner.model, data.tokenizer, ranks)
            evaluated = evaluation.Evaluation(config, encoders.encoder, data.samples, is_first=ranks.is_first)
        first = _restored(config, data, learner, ranks)
        if ranks.is_first:
            training_folder.begin(config, data.lineage, step=first, ranks=ranks.ranks, device=str(ranks.device))
        say(f"{report.about(config, data, learner.model, first)}; {threads}", soft_wrap=True)
        with metrics.opened(config, ranks, first_step=first, vocabulary=size) as lines:
            with interrupts.deferred() as signalled:
                ranks.expect(timedelta(seconds=config.loop.timeout_s))
                signal = _steps(config, data, learner, evaluated, first, ranks, lines, signalled)
                ranks.expect(WAIT)
            if not signal:
                measured = _measured(config, learner, evaluated)
                if measured:
                    lines.evaluated(config.schedule.steps, measured)
                if ranks.is_first:
                    step = config.schedule.steps
                    if measured:
                        evaluation.report(config, measured, step=step)
                    training_folder.end(config)
                    if lost := len(loader.logged(training_folder.local(config))):
                        words = f"{lost:,} times a pair could not be decoded and another took its place"
                        terminal.stderr().print(f"{words}: see undecodable.jsonl", style="yellow")
                    place = checkpoints.place_of(config.run.folder, step)
                    terminal.stdout().print(f"trained: {terminal.shown(place)}", soft_wrap=True)
                lines.published()
                if encoders and ranks.is_first:
                    report.write(config, data, learner.model, measured)
                ranks.wait()  # none leaves before the first is done
    if signal:
        raise interrupts.Interrupted(signal)
    return 0


def _steps(
    config: TrainConfig,
    data: TrainingData,
    learner: Learner | ClassLearner,
    evaluated: evaluation.Evaluation | evaluation.ClassEvaluation,
    first: int,
    ranks: Ranks,
    lines: metrics.Metrics | metrics.Unwritten,
    signalled: Callable[[], int],
) -> int:
    """The steps after the first `first`; returns the signal that ended them before the last, or 0.

    Checkpoints are written while the steps go on, one at a time.
    """
    loop, last = config.loop, config.schedule.steps
    meeting = Meeting.among(ranks, timeout_s=loop.timeout_s) if is_sharded(learner.model) else None
    batches = loader.batches(  # step n has batch n - 1
        data.samples,
        data.sampler,
        data.tokenizer,
        config.data,
        seed=config.run.seed,
        first_batch=first,
        after_batch=last,
        rank=ranks.rank,
        ranks=ranks.ranks,
        swapped=data.swapped,
        prompts=data.prompts,
        undecodable=loader.log(training_folder.local(config)),
        device=ranks.device,
    )
    if config.data.workers:  # without them a thread would read tars at the same time as evaluation
        batches = loader.ahead(batches)

    def write(step: int, kept: Kept, state: Mapping[str, object]) -> None:
        lines.published()
        checkpoints.save(config.run.folder, step, kept, state, keep=loop.keep_checkpoints)

    writing: Future[None] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="checkpoint") as writer, closing(batches):
        waited, idle = 0.0, time.monotonic()  # seconds, and since when the next batch is waited for
        for step, batch in enumerate(batches, start=first + 1):
            waited += time.monotonic() - idle
            if writing and writing.done():
                writing.result()  # raises what has befallen it
            ranks.noted(step)
            is_logged = step % loop.log_every == 0 or step == last
            values = _stepped(config, learner, step, batch, ranks, list(data.samples.sources) if is_logged else [])
            signal = ranks.any(signalled())
            if is_logged:
                lines.write(step, values, waited_s=waited)
            else:
                lines.passed(step)
            if step == first + 1:
                lines.began(step)
            if is_logged or step == first + 1:
                waited = 0.0
            is_end = bool(signal) or step == last
            if (ranks.is_first or meeting is not None) and (is_end or step % loop.checkpoint_every == 0):
                if writing:
                    writing.result()
                average = learner.average.values if learner.average else None
                kept = Kept.now(learner.model, learner.optimizer, meeting, average)
                writing = writer.submit(write, step, kept, data.state(step))
                del kept  # memory, of which the next checkpoint takes as much
            if is_end:
                if writing:
                    writing.result()
                ranks.wait()  # a launcher ends all when one has ended
            if signal:
                return signal
            if loop.evaluate_every and step % loop.evaluate_every == 0 and step < last:
                lines.evaluated(step, _measured(config, learner, evaluated))
            idle = time.monotonic()
    return 0


def _stepped(
    config: TrainConfig, learner: Learner | ClassLearner, step: int, batch: Batch, ranks: Ranks, sources: Sequence[str]
) -> dict[str, float]:
    """One step. Where loss or gradient is not finite, each rank writes the keys of its pairs, to find the cause."""
    try:
        return learner.step(step, batch, sources=sources)
    except NotFiniteError as error:
        place = training_folder.path(config, "log", f"not-finite-step-{step}-rank-")
        storage.write_json(f"{place}{ranks.rank}.json", {"step": step, "keys": batch.keys, "sources": batch.sources})
        raise NotFiniteError(
            f"{error}; its pairs are in {place}*.json (a file a process); go on from an earlier checkpoint with a "
            "lower [schedule] peak, or a longer warm-up"
        ) from None


def _measured(
    config: TrainConfig,
    learner: Learner | ClassLearner,
    evaluated: evaluation.Evaluation | evaluation.ClassEvaluation,
) -> evaluation.Metrics:
    """Metrics of the weights that `[evaluation]` asks for. A collective."""
    with learner.average.in_place() if learner.average and config.evaluation.averaged else nullcontext():
        return evaluated.of_model()


def _restored(config: TrainConfig, data: TrainingData, learner: Learner | ClassLearner, ranks: Ranks) -> int:
    """Load the newest checkpoint into learner and order; returns its number of steps, 0 if there is none."""
    training_folder.check_lineage(config.run.folder, training_folder.recorded(config), data.lineage)
    if ranks.is_first_of_machine:
        checkpoints.sweep(config.run.folder)
    newest = checkpoints.newest(config.run.folder) if ranks.is_first else None
    place = checkpoints.on_all_machines(config.run.folder, newest, ranks)
    if place is None:
        if config.run.start:
            started(config, learner)
            if learner.average:
                learner.average.begin()
        return 0
    state = checkpoints.state_of(place)
    training_folder.check_checkpoint(config, place, state, data.lineage)
    checkpoints.load_model(place, learner.model)
    checkpoints.load_optimizer(place, learner.optimizer)
    if learner.average:
        learner.average.load(checkpoints.load_average(place, learner.average.values))
    data.resume(state["step"], state)
    return state["step"]


def started(config: TrainConfig, learner: Learner | ClassLearner) -> None:
    """Give the learner the newest weights of another run, and the moments of its optimiser.

    Raises UsageError: there is no such run, or its model or optimiser is another.
    """
    run = config.run.start.removeprefix(OF_RUN)
    place = checkpoints.chosen(run, None)
    try:
        checkpoints.load_model(place, learner.model, optional=_DECODERS)
        checkpoints.load_optimizer(place, learner.optimizer, optional=_DECODERS)
    except (DamagedError, ValueError, KeyError, RuntimeError):
        raise UsageError(
            f"[run] start: {run}: a run of another model or optimiser than these settings; give one of the same towers,"
            " tokenizer and [optimizer] name"
        ) from None


def _check_shares(config: TrainConfig, ranks: Ranks) -> None:
    """Refuse groups of pairs, of batch norm and of mixup, that would begin elsewhere than with one rank.

    And chunks of unequal size, where passes are recorded.
    """
    size = config.loop.global_batch
    shares = {len(share(size, rank, ranks.ranks)) for rank in range(ranks.ranks)}
    shown = " and ".join(f"{pairs:,}" for pairs in sorted(shares))
    for name, group in _groups(config).items():
        if ranks.ranks > 1 and any(pairs % group for pairs in shares):
            raise UsageError(
                f"[loop] global_batch = {size:,} gives {ranks.ranks} processes shares of {shown} pairs, no multiples "
                f"of {name} ({group}); give a multiple of {ranks.ranks * group:,}"
            )
    chunk = config.loop.chunk
    if config.loop.speed == "recorded" and any(pairs > chunk and pairs % chunk for pairs in shares):
        raise UsageError(
            f'[loop] speed = "recorded" needs chunks of one size, and chunk = {chunk:,} does not divide the {shown} '
            "pairs of a process; give one that does"
        )


def _groups(config: TrainConfig) -> dict[str, int]:
    """Pairs of a group of batch norm and of mixup, by the setting."""
    tower, loss = config.image_tower, config.loss
    groups = {"[image_tower] ghost_group": tower.ghost_group} if tower.has_groups else {}
    return groups | ({"[loss] mixup_group": loss.mixup_group} if loss.mixup else {})


def take_threads(config: TrainConfig, ranks: Ranks) -> str:
    """Leave a core to each process that decodes; returns how many threads torch has. OMP_NUM_THREADS wins."""
    workers = config.data.workers
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores() // ranks.of_machine - workers))
    threads = torch.get_num_threads()
    return f"{threads} thread{'s' * (threads != 1)} and {workers} worker{'s' * (workers != 1)} a process"


@contextmanager
def held(config: TrainConfig, ranks: Ranks) -> Iterator[None]:
    """Make or check the run's folder and lock it in rank 0 against a second command; the other ranks wait.

    Raises UsageError: it may not be written to, or another rank does not see it.
    """
    if not ranks.is_first:
        ranks.wait()
        place = training_folder.path(config, "config.toml")
        if not storage.exists(place):
            why = f"not there on {gethostname()}, and the first rank has written it"
            raise UsageError(f"{place}: {why}: machines of one run share [run] folder; give one that all see")
        yield
        return
    training_folder.check_folder(config)
    check_there(config)
    with storage.locked(config.run.folder):
        training_folder.open_run(config)
        ranks.wait()
        yield


# The memory of a training, measured: a GPU takes one step of pairs that are as large as they may be ------------------


def most_of_a_step(config: TrainConfig, device: torch.device, *, vocabulary: int) -> int:
    """The most bytes that torch takes of a device in a step of two chunks, or of the global batch if that is less.

    The pairs are random pixels, with captions as long as they may be. Raises torch.cuda.OutOfMemoryError: it does not
    fit.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    learner = Learner(config, vocabulary=vocabulary, ranks=Ranks(0, 1, device))
    pairs, side = min(2 * config.loop.chunk, config.loop.global_batch), config.data.crop_px
    images = torch.randint(256, (pairs, side, side, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    tokens, mask = longest_captions(pairs, config.tokenizer.tokens_at_most)
    prompted = longest_captions(pairs, config.captioner.tokens_at_most) if learner.model.has_decoders else None
    keys = [f"{number:032x}" for number in range(pairs)]
    batch = Batch(keys, ["measured"] * pairs, [0] * pairs, images, tokens, mask, prompted)
    learner.step(1, batch.to(device))
    return metrics.most_memory(device)


def with_chunk(config: TrainConfig, ranks: Ranks, *, vocabulary: int) -> TrainConfig:
    """The same settings, with a number in the place of `chunk = "auto"`.

    It is the first of the global batch, its half, its quarter and so on, with which a step fits into the GPU.

    Raises UsageError: there is no GPU, there are several processes, or no chunk fits.
    """
    if config.loop.chunk:
        return config
    if ranks.device.type != "cuda" or ranks.ranks > 1:
        raise UsageError(
            '[loop] chunk = "auto" is measured by one process on a GPU; give a number of pairs, such as the one that '
            "`altalign train --dry-run` finds there"
        )
    unit = unit_of(config)
    units = math.ceil(config.loop.global_batch / unit)
    while units:
        chosen = config.model_copy(update={"loop": config.loop.model_copy(update={"chunk": units * unit})})
        torch.cuda.set_per_process_memory_fraction(OF_A_GPU, ranks.device)
        try:
            most_of_a_step(chosen, ranks.device, vocabulary=vocabulary)
        except torch.cuda.OutOfMemoryError:
            units //= 2
        else:
            return chosen
        finally:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(1.0, ranks.device)
    raise UsageError(
        f'[loop] chunk = "auto": a step with {unit} pairs at a time does not fit into this GPU; give '
        'recompute = "all", smaller towers, or a larger GPU'
    )


def unit_of(config: TrainConfig) -> int:
    """Chunks are multiples of this: of the groups of batch norm and of mixup."""
    return math.lcm(*_groups(config).values())
