"""One of several processes that train a dual encoder in float64, whole on each rank and spread over all of them.

`python sharded.py RANK RANKS FOLDER`; what it finds goes to FOLDER/RANK.pt.
"""

import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from altalign.errors import UsageError
from altalign.train.data.batches import Batch, padded
from altalign.train.model import drawn as step_draws
from altalign.train.model import passes
from altalign.train.run import sharded_tensors
from altalign.train.run.ranks import share
from altalign.train.settings.training import TrainConfig
from altalign.train.step import optimizers
from altalign.train.step.accumulation import gradients, towers_of
from altalign.train.step.learner import model_of
from altalign.train.step.loss import Noise, contrastive_loss

PAIRS, STEPS, SIDE, VOCABULARY = 16, 3, 32, 50
CONVOLUTIONS = {"architecture": "b0", "width": 0.25, "depth": 0.3, "ghost_group": 2, "embedding_width": 10}
PATCHES = {"architecture": "vit_ti16", "width": 0.34, "depth": 0.17, "positions_px": SIDE, "embedding_width": 10}
BERT = {"layers": 2, "width": 12, "heads": 2}
PLAIN = {"label_smoothing": 0.0}
CASES: dict[str, dict[str, Any]] = {
    "two passes, mixup": {"loss": {"mixup": 0.4, "mixup_group": 2}, "loop": {"chunk": 2}},
    # epsilon: LAMB would make a whole step of a gradient that is rounding alone
    "one pass": {"loop": {"chunk": PAIRS}, "optimizer": {"weight_decay": 0.01, "epsilon": 1e-4}},
    "activations computed again": {"loop": {"chunk": 2, "recompute": "all"}},
    "noise, AdamW": {"loss": PLAIN, "noise": {"smoothing": 0.5, "estimates": "given"}, "optimizer": {"name": "adamw"}},
    "a frozen tower, LARS": {"image_tower": {"frozen": True}, "optimizer": {"name": "lars"}},
    "statistics of all ranks, SGD": {"image_tower": {"batch_norm": "sync"}, "optimizer": {"name": "sgd"}},
    "patches left out, decoders": {
        "image_tower": {**PATCHES, "token_drop": 0.5},
        "text_tower": {"architecture": "bart", "layers": 1},
        "reconstruction": {"weight": 1.0, "blocks": 1, "width": 8},
        "captioner": {"weight": 1.0, "layers": 1, "tokens_at_most": 8},
    },
}

OF_RANKS = {2: list(CASES), 4: ["two passes, mixup", "noise, AdamW", "patches left out, decoders"]}


def config_of(case: str) -> TrainConfig:
    """The settings of a case."""
    of = CASES[case]
    image = of.get("image_tower", {})
    base = {
        "data": {"runs": ["any"], "crop_px": SIDE},
        "image_tower": image if "architecture" in image else {**CONVOLUTIONS, **image},
        "text_tower": {**BERT, **of.get("text_tower", {})},
        "tokenizer": {"tokens_at_most": 8},
        "loop": {"global_batch": PAIRS, "chunk": 4, **of.get("loop", {})},
        "optimizer": {"name": "lamb", "epsilon": 1e-3, **of.get("optimizer", {})},
    }
    return TrainConfig.model_validate({**{name: value for name, value in of.items() if name not in base}, **base})


def batch_of(step: int, config: TrainConfig) -> Batch:
    """The global batch of a step."""
    generator = torch.Generator().manual_seed(step)
    images = torch.randint(256, (PAIRS, 3, SIDE, SIDE), generator=generator, dtype=torch.uint8)
    tokens, mask = padded([[2, 5 + number, step + 7, 3][: 2 + number % 3] for number in range(PAIRS)], 8)
    prompted = padded([[2, 6 + number, 3] for number in range(PAIRS)], 8, width=8) if config.captioner.weight else None
    keys = [f"{number:032x}" for number in range(PAIRS)]
    return Batch(keys, ["web"] * PAIRS, [0] * PAIRS, images, tokens, mask, prompted)


def trained(case: str, places: range, *, is_sharded: bool) -> dict[str, Any]:
    """Some steps on this rank's places: what each said; gradients, and the state after, of the first and the last."""
    config = config_of(case)
    model = model_of(config, vocabulary=VOCABULARY).double().train()
    if config.loop.recompute == "all":
        model.checkpoint_activations()
    if is_sharded:
        passes.shard(model)
    optimizer, towers, said = optimizers.make_optimizer(model, config.optimizer), towers_of(model), list[list[float]]()
    steps = list[dict[str, Any]]()
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    for step in range(STEPS):
        batch = batch_of(step, config).chunk(places.start, places.stop)
        noise = torch.linspace(0, 0.5, PAIRS, dtype=torch.float64)[places.start : places.stop]
        loss = partial(contrastive_loss, label_smoothing=config.loss.label_smoothing, directions="sum", block=5)
        result = gradients(
            towers,
            model,
            batch,
            chunk=config.loop.chunk,
            loss=partial(loss, noise=Noise(noise, "intended") if config.noise.smoothing else None),
            seed=7,
            step=step,
            mixup=step_draws.mixup(config.loss, seed=7, step=step),
            token_drop=step_draws.token_drop(config.image_tower, seed=7, step=step),
            own_weights=(1.0, 1.0) if model.has_decoders else (),
        )
        norm = float(optimizers.gradient_norm(model))
        found = {name: of.grad for name, of in model.named_parameters() if of.grad is not None}
        of_step = {name: sharded_tensors.whole(gradient).clone() for name, gradient in found.items()}
        optimizer.step()
        said.append([result.loss, result.temperature, result.drift, *result.own])
        after = {name: sharded_tensors.whole(value).detach().clone() for name, value in model.state_dict().items()}
        steps.append({"gradients": of_step, "norm": torch.tensor(norm), "state": after})
    with torch.no_grad():
        model.eval()
        encoded = model.encode_image(batch_of(9, config).images[:4])
    parts = sum(of.numel() for of in sharded_tensors.own([*model.parameters()]))
    return {"said": said, "first": steps[0], "last": steps[-1], "encoded": encoded, "parts": parts}


def refused(rank: int, ranks: int) -> str:
    """What is said where the first rank has more chunks than the others."""
    config = config_of("one pass")
    model = model_of(config, vocabulary=VOCABULARY).double().train()
    passes.shard(model)
    pairs = batch_of(0, config).chunk(0, 4) if rank == 0 else batch_of(0, config).chunk(4 + rank, 5 + rank)
    try:
        gradients(towers_of(model), model, pairs, chunk=2, loss=contrastive_loss, seed=7, step=0)  # type: ignore[arg-type]
    except UsageError as error:
        return str(error)
    return ""


class Spied:
    """An open safetensors file that notes which rows are read."""

    def __init__(self, file: Any) -> None:
        self.file, self.rows, self.whole = file, list[int](), list[str]()

    def get_tensor(self, name: str) -> Any:
        self.whole.append(name)
        return self.file.get_tensor(name)

    def get_slice(self, name: str) -> Any:
        return Slice(self, name)


class Slice:
    def __init__(self, of: Spied, name: str) -> None:
        self.of, self.kept = of, of.file.get_slice(name)

    def get_shape(self) -> Any:
        return self.kept.get_shape()

    def __getitem__(self, rows: slice) -> Any:
        self.of.rows.append(len(found := self.kept[rows]))
        return found


def read(ranks: int, folder: Path) -> dict[str, Any]:
    """What a rank reads of tensors of 1 to 9 rows that are spread, and of one that is whole."""
    mesh, found = init_device_mesh("cpu", (ranks,)), {}
    for rows in range(1, 10):
        whole = torch.arange(rows * 2.0).reshape(rows, 2)
        spread = distribute_tensor(whole, mesh, [Shard(0)])
        path = folder / f"{rows}-{distributed.get_rank()}.safetensors"
        save_file({"x": whole}, path)
        with safe_open(path, framework="pt") as file:
            spied = Spied(file)
            same = sharded_tensors.read_like(spied, "x", spread)
            assert isinstance(same, DTensor)
            found[rows] = {
                "is_right": torch.equal(same.full_tensor(), whole) and torch.equal(same.to_local(), spread.to_local()),
                "rows": sum(spied.rows),
                "whole": spied.whole,
            }
            found["plain"] = torch.equal(sharded_tensors.read_like(file, "x", whole), whole)
    return found


def main() -> None:
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    meeting = f"file://{folder}/meeting"
    distributed.init_process_group("gloo", meeting, timedelta(seconds=120), rank=rank, world_size=ranks)
    own, found = share(PAIRS, rank, ranks), {}
    for case in OF_RANKS[ranks]:
        found[case] = {kind: trained(case, own, is_sharded=kind == "sharded") for kind in ("whole", "sharded")}
    found["refused"], found["read"] = refused(rank, ranks), read(ranks, folder)
    torch.save(found, folder / f"{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
