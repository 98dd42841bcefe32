"""Folders of training runs whose weights are random: of tests that need a model and not what it has learned."""

from pathlib import Path
from typing import Any

import torch

from altalign import storage
from altalign.data import listing
from altalign.train.data import tokenizer
from altalign.train.model.batch_norm import BatchNorm
from altalign.train.run import checkpoints, training_folder
from altalign.train.settings.training import TokenizerSettings, TrainConfig
from altalign.train.step.learner import model_of
from altalign.train.step.optimizers import make_optimizer

CAPTIONS = [
    f"{number} {colour} {shape}s below a kite"
    for number in range(9)
    for colour in ("red", "blue")
    for shape in ("ring", "cross")
]


def write_trained(folder: Path, *, words_apart: float = 1.0, **sections: dict[str, Any]) -> str:
    """A run folder with a checkpoint of step 5, of a small model of these settings; gives its path.

    With `words_apart` of 1 all captions are alike to 1e-5, and their order is a matter of rounding.
    """
    values = {
        "data": {"resize_px": 36, "crop_px": 33},
        "tokenizer": {"vocabulary_size": 60, "tokens_at_most": 12},
        "image_tower": {"architecture": "b0", "width": 0.5, "depth": 0.3, "padding": "keras"},
        "text_tower": {"layers": 2, "width": 32, "heads": 2},
        "loop": {"precision": "float32", "device": "cpu"},
    }
    values = {name: {**values.get(name, {}), **sections.get(name, {})} for name in {**values, **sections}}
    config = TrainConfig.from_values({**values, "run": {"folder": str(folder)}}, where="test")
    folder.mkdir(parents=True)
    training_folder.open_run(config)
    words = tokenizer.train(lambda: [CAPTIONS], TokenizerSettings(**values["tokenizer"]))
    words.write(str(folder / "tokenizer.json"))
    model = model_of(config, vocabulary=words.vocabulary)
    randomise(model)
    with torch.no_grad():
        for weight in model.text_tower.bert.encoder.parameters():
            weight.mul_(words_apart if weight.dim() > 1 else 1)
    # only runs that a test has asked for: runs/demo may lie in the folder where the tests are started
    asked = [run for run in sections.get("data", {}).get("runs", ()) if storage.exists(f"{run}/manifest.json")]
    runs = {run: listing.digest(f"{run}/manifest.json").digest for run in asked} or {"runs/demo": "ab" * 32}
    state = {"samples_seen": 80, "manifests": runs, "tokenizer_sha256": words.digest, "pairs": 80}
    kept = checkpoints.Kept.now(model, make_optimizer(model, config.optimizer))
    checkpoints.save(str(folder), 5, kept, state, keep=1)
    storage.write_json(str(folder / "run.json"), {"manifests": state["manifests"], "versions": {}, "attempts": []})
    metrics = {"image_to_text_r1": 12.5, "text_to_image_r1": 25.0, "rsum": 100.0}
    (folder / "eval" / "step-0000005").mkdir(parents=True)
    storage.write_json(str(folder / "eval" / "step-0000005" / "metrics.json"), {"retrieval/held": metrics})
    return str(folder)


@torch.no_grad()
def randomise(model: torch.nn.Module) -> None:
    """Give batch norm, biases and the temperature what they have after training."""
    generator = torch.Generator().manual_seed(3)
    for layer in model.modules():
        if isinstance(layer, BatchNorm):
            for values, low in (
                (layer.weight, 0.5),
                (layer.bias, -0.5),
                (layer.running_mean, -0.5),
                (layer.running_var, 0.5),
            ):
                values.copy_(low + torch.rand(values.shape, generator=generator))
    for name, parameter in model.named_parameters():
        if name.endswith("_projection.bias"):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
        if name == "temperature.logarithm":
            parameter.fill_(-1.5)
