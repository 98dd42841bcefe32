"""`altalign train --dry-run`: prints what would be trained, on which data and how."""

import os
from collections.abc import Mapping
from typing import Any

import torch
from rich.table import Table

from altalign import terminal
from altalign.train import loop as trainer
from altalign.train.data import on_device, tokenizer
from altalign.train.data.runs import Runs
from altalign.train.exchange import export
from altalign.train.report import metrics
from altalign.train.run import training_folder
from altalign.train.run.ranks import Ranks, device_of
from altalign.train.settings.training import TrainConfig
from altalign.train.step import optimizers
from altalign.train.step.learner import model_of

MOMENTS = {"lamb": 2, "adamw": 2, "lars": 1, "sgd": 1}  # numbers that an optimiser keeps of each


def describe(config: TrainConfig) -> int:
    """Print the plan; nothing is written.

    Raises UsageError: the run folder holds something else, or a curated run is not finished.
    """
    metrics.check_wandb(config)
    on_device.check_installed(config.data)
    training_folder.check_folder(config)
    runs = Runs(config.data.runs, config.data)
    pairs = sum(shard.rows for shard in runs.shards)
    words = tokenizer.given(config.tokenizer, config.text_tower.weights)
    vocabulary = words.vocabulary if words else config.tokenizer.vocabulary_size
    with torch.device("meta"):
        model = model_of(config, vocabulary=vocabulary)
    out = terminal.stdout()
    data = config.data
    less = f", of which {data.held_out:.1%} of the images are held out" if data.held_out else ""
    less += f", of which those are trained on where {data.where}" if data.where else ""
    less += f", {data.pairs:,} of the rest are trained on" if data.pairs else ""
    plain = ", and what tars and tables hold, which are packed first" if data.files else ""
    out.print(f"{pairs:,} pairs in {len(runs.shards):,} shards{less}{plain}", soft_wrap=True)
    steps, batch = config.schedule.steps, config.loop.global_batch
    epochs = "" if plain else f", {steps * batch / max(1, pairs):.1f} epochs"
    out.print(f"{steps:,} steps of {batch:,} pairs{epochs}")
    numbers = sum(parameter.numel() for parameter in model.parameters())
    optimizer = optimizers.make_optimizer(model, config.optimizer)
    kept = numbers + MOMENTS[config.optimizer.name] * sum(_numbers(group) for group in optimizer.param_groups)
    out.print(
        f"{numbers:,} parameters, embeddings of {model.width:,}; a checkpoint has about {kept * 4 / 1e6:,.0f} MB",
        soft_wrap=True,
    )
    forms = export.foreseen(config, model)
    out.print("can be exported to " + ", ".join(to for to, why in forms.items() if not why))
    for why in filter(None, forms.values()):
        out.print(f"- {why}", soft_wrap=True)
    out.print(_groups(config, optimizer))
    if not config.classification.train:
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        _print_memory(config, vocabulary=vocabulary, kept=kept + trained)
    return 0


def _print_memory(config: TrainConfig, *, vocabulary: int, kept: int) -> None:
    """Print how many pairs a device takes at a time, and the memory of a step that a GPU has taken."""
    out, loop = terminal.stdout(), config.loop
    ranks = Ranks(0, int(os.environ.get("WORLD_SIZE", "1")), device_of(loop.device))
    config = trainer.with_chunk(config, ranks, vocabulary=vocabulary)
    chunk = min(config.loop.chunk, loop.global_batch)
    passes = "once" if chunk >= loop.global_batch else "twice"
    out.print(f"{chunk:,} pairs of a device in its towers at a time, {passes} through them", soft_wrap=True)
    if ranks.device.type != "cuda":
        out.print(
            f"memory: {kept * 4 / 1e6:,.1f} MB of weights, gradients and moments; what the towers need beside them is "
            "measured on a GPU, which takes one step, and this is a CPU",
            soft_wrap=True,
        )
        return
    most = trainer.most_of_a_step(config, ranks.device, vocabulary=vocabulary)
    out.print(f"memory: {most / 1e9:,.2f} GB, measured by one step of this GPU", soft_wrap=True)


def _groups(config: TrainConfig, optimizer: torch.optim.Optimizer) -> Table:
    """Which parameters decay, and whose step is scaled by their own norm."""
    table = Table(title=f"{config.optimizer.name}, rate {config.schedule.peak * config.rate_scale:g}")
    for name in ("part", "parameters"):
        table.add_column(name)
    for name in ("numbers", "decay", "trust ratio", "rate"):
        table.add_column(name, justify="right")
    for group in optimizer.param_groups:
        trust = "yes" if group["trust"] else "no"
        decay, factor = f"{group['weight_decay']:g}", f"x {group['factor']:g}"
        table.add_row(group["part"], ", ".join(group["kinds"]), f"{_numbers(group):,}", decay, trust, factor)
    return table


def _numbers(group: Mapping[str, Any]) -> int:
    return sum(parameter.numel() for parameter in group["params"])
