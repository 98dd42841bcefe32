"""`altalign train --dry-run`: prints what would be trained, on which data and how."""

import os

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
    data, loop, out = config.data, config.loop, terminal.stdout()
    runs = Runs(data.runs, data)
    pairs = sum(shard.rows for shard in runs.shards)
    words = tokenizer.given(config.tokenizer, config.text_tower.weights)
    vocabulary = words.vocabulary if words else config.tokenizer.vocabulary_size
    less = f", of which {data.held_out:.1%} of the images are held out" if data.held_out else ""
    less += f", of which those are trained on where {data.where}" if data.where else ""
    less += f", {data.pairs:,} of the rest are trained on" if data.pairs else ""
    plain = ", and what tars and tables hold, which are packed first" if data.files else ""
    out.print(f"{pairs:,} pairs in {len(runs.shards):,} shards{less}{plain}", soft_wrap=True)
    steps, batch = config.schedule.steps, loop.global_batch
    epochs = "" if plain else f", {steps * batch / max(1, pairs):.1f} epochs"
    out.print(f"{steps:,} steps of {batch:,} pairs{epochs}")

    with torch.device("meta"):
        model = model_of(config, vocabulary=vocabulary)
    optimizer, title = optimizers.make_optimizer(model, config.optimizer), config.optimizer.name
    table = Table("part", "parameters", title=f"{title}, rate {config.schedule.peak * config.rate_scale:g}")
    for name in ("numbers", "decay", "trust ratio", "rate"):
        table.add_column(name, justify="right")
    numbers, moved = sum(parameter.numel() for parameter in model.parameters()), 0
    for group in optimizer.param_groups:  # which parameters decay, and whose step is scaled by their own norm
        of_group = sum(parameter.numel() for parameter in group["params"])
        moved += of_group
        trust, decay, factor = "yes" if group["trust"] else "no", f"{group['weight_decay']:g}", f"x {group['factor']:g}"
        table.add_row(group["part"], ", ".join(group["kinds"]), f"{of_group:,}", decay, trust, factor)
    kept = numbers * (2 if config.optimizer.average else 1) + MOMENTS[config.optimizer.name] * moved
    size = f"a checkpoint has about {kept * 4 / 1e6:,.0f} MB"
    out.print(f"{numbers:,} parameters, embeddings of {model.width:,}; {size}", soft_wrap=True)
    forms = export.foreseen(config, model)
    out.print("can be exported to " + ", ".join(to for to, why in forms.items() if not why))
    for why in filter(None, forms.values()):
        out.print(f"- {why}", soft_wrap=True)
    out.print(table)
    if config.classification.train:
        return 0

    ranks = Ranks(0, int(os.environ.get("WORLD_SIZE", "1")), device_of(loop.device))
    config = trainer.with_chunk(config, ranks, vocabulary=vocabulary)
    chunk = min(config.loop.chunk, batch)
    passes = "once" if chunk >= batch else "twice"
    out.print(f"{chunk:,} pairs of a device in its towers at a time, {passes} through them", soft_wrap=True)
    if ranks.device.type == "cuda":
        most = trainer.most_of_a_step(config, ranks.device, vocabulary=vocabulary)
        out.print(f"memory: {most / 1e9:,.2f} GB, measured by one step of this GPU", soft_wrap=True)
    else:
        out.print(
            f"memory: {(kept + moved) * 4 / 1e6:,.1f} MB of weights, gradients and moments; what the towers need "
            "beside them is measured on a GPU, which takes one step, and this is a CPU",
            soft_wrap=True,
        )
    return 0
