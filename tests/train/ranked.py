"""One of several processes that compute a loss and gradients together: `python ranked.py RANK RANKS FOLDER`.

What it finds goes to FOLDER/RANK.pt.
"""

import math
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from altalign.train.step.accumulation import gradients, towers_of
from altalign.train.step.loss import Noise, contrastive_loss, pair_losses, sigmoid_loss
from tests.train.pairs import drawn
from tests.train.small_model import gradients_of, pairs, small_model

LOSSES = {  # how many pairs each rank has; two ranks: a group of those two
    "three ranks, uneven": ((4, 3, 3), {"negatives": 1.0}),
    "three ranks, one has the most": ((1, 8, 1), {"negatives": 1.0}),
    "three ranks, even": ((3, 3, 3), {"negatives": 1.0}),
    "three ranks, half of the negatives": ((4, 3, 3), {"negatives": 0.5}),
    "three ranks, few negatives": ((2, 3, 5), {"negatives": 0.1}),
    "two ranks": ((7, 3), {"negatives": 1.0}),
    "three ranks, sigmoids": ((4, 3, 3), {"name": "sigmoid"}),
    "two ranks, sigmoids": ((7, 3), {"name": "sigmoid"}),
    "three ranks, noise as intended": ((4, 3, 3), {"form": "intended"}),
    "three ranks, noise as printed": ((2, 3, 5), {"form": "printed"}),
}
STEPS = {  # pairs of each rank, of a chunk, parts that are not trained
    "two passes, as many chunks": ((4, 4, 3), 2, ()),
    "two passes, other numbers of chunks": ((6, 2, 1), 2, ()),
    "one pass": ((4, 4, 2), 4, ()),
    "two ranks": ((6, 4), 2, ()),
    "sigmoids": ((4, 4, 3), 2, ()),
    "a frozen tower": ((4, 2, 2), 2, ("image_tower",)),
    "frozen towers": ((4, 2, 2), 2, ("image_tower", "text_tower")),
}
OF_STEP = {"loss": partial(contrastive_loss, label_smoothing=0.1, directions="sum", block=3), "seed": 7}


def sigmoids(images: torch.Tensor, texts: torch.Tensor, logits: torch.Tensor, *, targets: None, group: Any) -> Any:
    """SigLIP's loss as `gradients` calls a loss."""
    assert targets is None
    return sigmoid_loss(images, texts, logits, block=3, group=group)


def loss_of(sizes: tuple[int, ...], rank: int, settings: dict[str, Any], group: Any = None) -> dict[str, Any]:
    """A rank's part of a loss, its gradients, and its pairs' losses. Weights are of the pair's place."""
    pairs_of_all = sum(sizes)
    own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    images, texts = (embeddings.detach()[own].requires_grad_() for embeddings in drawn(pairs_of_all))
    is_sigmoid = settings.get("name") == "sigmoid"
    temperature = torch.tensor([0.1, -3] if is_sigmoid else 0.1, dtype=torch.float64, requires_grad=True)
    chosen = {"label_smoothing": 0.1, "directions": "sum", "block": 2, "group": group} | settings
    if form := chosen.pop("form", None):
        noise = torch.linspace(0, 0.9, pairs_of_all, dtype=torch.float64)[own]
        chosen |= {"label_smoothing": 0.0, "noise": Noise(noise, form)}
    weights = (1 + torch.arange(pairs_of_all, dtype=torch.float64))[own]
    if is_sigmoid:
        part, losses = sigmoid_loss(images, texts, temperature, block=2, group=group), images.new_zeros(0)
    else:
        losses, count = pair_losses(images, texts, temperature, **chosen)
        part = (losses * weights).sum() / count
    part.backward()
    return {
        "loss": part.detach(),
        "images": images.grad,
        "texts": texts.grad,
        "temperature": temperature.grad,
        "pairs": losses.detach(),
    }


SAME_ON_ALL = ("loss", "temperature", "bias", "drift")  # of a step's result


def steps_of(
    sizes: tuple[int, ...], rank: int, chunk: int, frozen: tuple[str, ...], group: Any = None, name: str = ""
) -> dict[str, Any]:
    """Three steps down the gradient: what each said, the last one's gradients, the state after it, and how often
    gradients were summed over ranks.
    """
    is_sigmoid = name == "sigmoids"
    model, of_step = small_model(group=2, bias=-3.0 if is_sigmoid else None), dict(OF_STEP)
    if is_sigmoid:
        of_step["loss"] = sigmoids
    for part in frozen:
        model.get_submodule(part).requires_grad_(requires_grad=False)
    towers = towers_of(model, group)
    results, reduced = [], []
    if isinstance(towers, DistributedDataParallel):
        towers.register_comm_hook((reduced, group), _counted)
    for step in range(3):
        of_all = pairs(sum(sizes), seed=step)
        own = of_all.chunk(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        results.append(gradients(towers, model, own, chunk=chunk, step=step, group=group, **of_step))
        with torch.no_grad():
            for name, gradient in gradients_of(model).items():
                model.get_parameter(name).sub_(gradient, alpha=0.1)
    return {
        "results": [
            {name: value for name in SAME_ON_ALL if (value := getattr(result, name)) is not None} for result in results
        ],
        "gradients": gradients_of(model),
        "state": model.state_dict(),
        "reduced": len(reduced),
    }


def with_a_broken_rank(rank: int, chunk: int) -> dict[str, Any]:
    """A step of three ranks, the last with a weight that is no number: what each says, and what it would apply."""
    model = small_model(group=2)
    towers = towers_of(model)  # with the weights of the first rank on all
    if rank == 2:
        with torch.no_grad():
            model.text_tower.linear.bias[0] = float("nan")
    own = pairs(12).chunk(4 * rank, 4 * rank + 4)
    result = gradients(towers, model, own, chunk=chunk, step=1, **OF_STEP)
    return {"is_finite": math.isfinite(result.loss), "gradients": len(gradients_of(model)), "named": result.broken}


def _counted(state: tuple[list[int], Any], bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:  # pyright: ignore[reportPrivateImportUsage]
    """The usual sum over ranks of a bucket of gradients, by their number; counted."""
    state[0].append(bucket.index())
    return default_hooks.allreduce_hook(state[1], bucket)


def main() -> None:
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks, timeout=timedelta(seconds=600)
    )
    two = distributed.new_group([0, 1])
    found: dict[str, Any] = {"losses": {}, "steps": {}}
    for name, (sizes, settings) in LOSSES.items():
        if rank < len(sizes):
            found["losses"][name] = loss_of(sizes, rank, settings, two if len(sizes) == 2 else None)
    for name, (sizes, chunk, frozen) in STEPS.items():
        if rank < len(sizes):
            found["steps"][name] = steps_of(sizes, rank, chunk, frozen, two if len(sizes) == 2 else None, name)
    found["broken"] = {chunk: with_a_broken_rank(rank, chunk) for chunk in (2, 4)}
    torch.save(found, folder / f"{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
