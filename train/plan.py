"""`altalign train --dry-run`: prints what would be trained, on which data and how."""

import torch

from altalign import terminal
from altalign.train.data import tokenizer
from altalign.train.data.runs import Runs
from altalign.train.exchange import export
from altalign.train.report import metrics
from altalign.train.run import training_folder
from altalign.train.settings.training import TrainConfig
from altalign.train.step.learner import model_of

MOMENTS = {"lamb": 2, "adamw": 2, "lars": 1, "sgd": 1}  # numbers that an optimiser keeps of each


def describe(config: TrainConfig) -> int:
    """Print the plan; nothing is written.

    Raises UsageError: the run folder holds something else, or a curated run is not finished.
    """
    metrics.check_wandb(config)
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
    numbers = sum(parameter.numel() for parameter in model.parameters())
    moved = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    kept = numbers + MOMENTS[config.optimizer.name] * moved
    size = f"a checkpoint has about {kept * 4 / 1e6:,.0f} MB"
    out.print(f"{numbers:,} parameters, embeddings of {model.width:,}; {size}", soft_wrap=True)
    forms = export.foreseen(config, model)
    out.print("can be exported to " + ", ".join(to for to, why in forms.items() if not why))
    for why in filter(None, forms.values()):
        out.print(f"- {why}", soft_wrap=True)
    if not config.classification.train:
        passes = "once" if loop.chunk >= batch else "twice"
        chunk, memory = min(loop.chunk, batch), (kept + moved) * 4 / 1e6
        out.print(f"{chunk:,} pairs of a device in its towers at a time, {passes} through them", soft_wrap=True)
        out.print(f"{memory:,.1f} MB of weights, gradients and moments; the towers' activations come on top")
    return 0
