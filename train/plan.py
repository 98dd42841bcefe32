"""`altalign train --dry-run`: what would be trained, on what and how."""

import torch
from rich.table import Table

from altalign import terminal
from altalign.train import training_folder
from altalign.train.data.index import Runs
from altalign.train.settings import TrainConfig
from altalign.train.step import optimizers
from altalign.train.step.learner import model_of

MOMENTS = {"lamb": 2, "adamw": 2, "lars": 1, "sgd": 1}  # numbers that an optimiser keeps of each


def describe(config: TrainConfig) -> int:
    """Print it; nothing is written.

    Raises:
        UsageError: the run folder holds something else, or a curated run is not finished.
    """
    training_folder.check_folder(config)
    runs = Runs.open(config.data.runs)
    pairs = sum(shard.rows for shard in runs.shards)
    with torch.device("meta"):
        model = model_of(config, vocabulary=config.tokenizer.vocabulary_size)
    out = terminal.stdout()
    plain = ", and what tars and tables hold, which are packed first" if config.data.tars or config.data.tables else ""
    out.print(f"{pairs:,} pairs in {len(runs.shards):,} shards{_less(config)}{plain}", soft_wrap=True)
    steps, batch, chunk = config.schedule.steps, config.loop.global_batch, config.loop.chunk
    out.print(
        f"{steps:,} steps of {batch:,} pairs, {steps * batch / max(1, pairs):.1f} epochs; {chunk:,} pairs of a device "
        "in its towers at a time"
    )
    numbers = sum(parameter.numel() for parameter in model.parameters())
    optimizer = optimizers.make_optimizer(model, config.optimizer)
    kept = numbers + MOMENTS[config.optimizer.name] * sum(row.numbers for row in optimizers.describe(optimizer))
    out.print(
        f"{numbers:,} parameters, embeddings of {model.width:,}; a checkpoint has about {kept * 4 / 1e6:,.0f} MB",
        soft_wrap=True,
    )
    out.print(_groups(config, optimizer))
    return 0


def _less(config: TrainConfig) -> str:
    """What of the pairs is not trained on."""
    held = f", of which {config.data.held_out:.1%} of the images are held out" if config.data.held_out else ""
    return held + (f", {config.data.pairs:,} of the rest are trained on" if config.data.pairs else "")


def _groups(config: TrainConfig, optimizer: torch.optim.Optimizer) -> Table:
    """Which parameters decay, and whose step is scaled by their own norm."""
    table = Table(title=f"{config.optimizer.name}, rate {config.schedule.peak * config.rate_scale:g}")
    for name in ("part", "parameters"):
        table.add_column(name)
    for name in ("numbers", "decay", "trust ratio", "rate"):
        table.add_column(name, justify="right")
    for row in optimizers.describe(optimizer):
        trust = "yes" if row.has_trust_ratio else "no"
        table.add_row(
            row.part, ", ".join(row.kinds), f"{row.numbers:,}", f"{row.weight_decay:g}", trust, f"x {row.rate_factor:g}"
        )
    return table
