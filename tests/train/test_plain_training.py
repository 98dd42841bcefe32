"""Fifty steps of a training, beside the plain loop that they stand for.

The plain loop reads, decodes and encodes a pair at a time, has one graph a step, an optimiser that goes over one tensor
after the other, and neither workers, threads, chunks, blocks nor checkpoints. Weights are not recorded, for another CPU
rounds otherwise: both run here, on one thread.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from altalign import cli
from altalign.train.data import augment
from altalign.train.data.batches import Batch
from altalign.train.data.order import Order, Sampler
from altalign.train.data.samples import key_of
from altalign.train.data.training_data import TrainingData, prepared
from altalign.train.model.batch_norm import BatchNorm
from altalign.train.model.dual_encoder import DualEncoder
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import TrainConfig
from altalign.train.step.accumulation import chunk_seed
from altalign.train.step.learner import Learner, model_of
from altalign.train.step.loss import contrastive_loss
from tests.support.run_folders import Pair, pairs, write_run
from tests.train.test_training_run import written

pytestmark = pytest.mark.trained

STEPS, WARMUP, PEAK = 50, 10, 5e-3
LOOP = {"global_batch": 8, "chunk": 8}
ALONE = Ranks(0, 1, torch.device("cpu"))
PLACE = f"trained/checkpoints/step-{STEPS:07}"
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def given(folder: Path, **changed: dict[str, Any]) -> str:
    """Settings of a training on captions of which some batches have a long one."""
    of = [
        Pair(pair.image, pair.caption + " and another kite" * (number % 15 == 0), pair.url)
        for number, pair in enumerate(pairs(60, images=30))
    ]
    write_run(folder / "curated", of)
    always = {
        "schedule": {"steps": STEPS, "warmup_steps": WARMUP, "peak": PEAK},
        "tokenizer": {"tokens_at_most": 24},
        "evaluation": {"retrieval": []},
    }
    return written(folder, **always, **changed)


def batches(config: TrainConfig, data: TrainingData) -> list[Batch]:
    """Those of all steps, a pair after the other."""
    order, seed = Order(data.samples.sources, {}, config.run.seed), config.run.seed
    sampler, found = Sampler(order, config.loop.global_batch), list[Batch]()
    for number in range(STEPS):
        keys, images, encoded = list[str](), list[Tensor](), list[list[int]]()
        numbers, epochs = sampler.batch(number)
        for pair, epoch in zip(numbers, epochs.tolist(), strict=True):
            rows = data.samples.pairs(np.array([pair]))
            ((image, caption),) = data.samples.read(rows)
            keys.append(key_of(rows[0]))
            images.append(augment.training_pixels(image, config.data, seed=seed, epoch=epoch, key=keys[-1]))
            encoded += data.tokenizer.encode([caption])
        width = 8 * math.ceil(max(map(len, encoded)) / 8)
        tokens = torch.tensor([one + [0] * (width - len(one)) for one in encoded])
        mask = torch.tensor([[place < len(one) for place in range(width)] for one in encoded])
        pixels = torch.stack(images).contiguous(memory_format=torch.channels_last)
        found.append(Batch(keys, ["web"] * len(keys), epochs.tolist(), pixels, tokens, mask))
    assert len({batch.tokens.shape[1] for batch in found}) > 1
    return found


class PlainLamb(torch.optim.Optimizer):
    """LAMB with the settings' other defaults, a tensor after the other."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0, "steps": 0})

    @torch.no_grad()
    def step(self, _: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["steps"] += 1
            for weight in group["params"]:
                self._step(weight, **{name: group[name] for name in ("lr", "weight_decay", "steps")})

    def _step(self, weight: Tensor, *, lr: float, weight_decay: float, steps: int) -> None:
        of = self.state[weight]
        mean, square = (of.setdefault(name, torch.zeros_like(weight)) for name in ("mean", "square"))
        corrected1, corrected2 = 1 - 0.9**steps, math.sqrt(1 - 0.999**steps)
        assert weight.grad is not None
        mean.lerp_(weight.grad, 1 - 0.9)
        square.mul_(0.999).addcmul_(weight.grad, weight.grad, value=1 - 0.999)
        move = mean / (square.sqrt() * (corrected1 / corrected2) + corrected1 * 1e-6)
        if not weight_decay:  # nor a trust ratio
            weight.add_(move, alpha=-lr)
            return
        move.add_(weight, alpha=weight_decay)
        norms = torch.linalg.vector_norm(weight), torch.linalg.vector_norm(move)
        ratio = norms[0] / norms[1] if min(norms) > 0 else torch.ones(())
        weight.addcmul_(move, ratio, value=-lr)


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """What decays, and what does not: scales and shifts of norms, and the temperature."""
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d | nn.LayerNorm)]
    others = [*model.temperature.parameters(), *(of for layer in norms for of in layer.parameters(recurse=False))]
    known = {id(of) for of in others}
    decaying = [of for of in model.parameters() if id(of) not in known]
    return [{"params": decaying, "weight_decay": 1e-5}, {"params": others, "weight_decay": 0.0}]


def moves_statistics(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Before a forward of batch norm: its running statistics move by the mean over groups."""
    assert isinstance(layer, BatchNorm)
    groups = [group.detach() for group in inputs[0].split(layer.group)]
    means = torch.stack([group.mean((0, 2, 3)) for group in groups]).mean(0)
    variances = torch.stack([group.var((0, 2, 3), correction=0) for group in groups]).mean(0)
    layer.running_mean.copy_((1 - layer.momentum) * layer.running_mean + layer.momentum * means)
    layer.running_var.copy_((1 - layer.momentum) * layer.running_var + layer.momentum * variances)


def plainly(model: DualEncoder, given: Sequence[Batch], loss: Loss) -> PlainLamb:
    """Train a model, of seed 0, on these batches; gives the optimiser as it is in the end."""
    for layer in model.train().modules():
        if isinstance(layer, BatchNorm):
            layer.register_forward_pre_hook(moves_statistics)
    optimizer = PlainLamb(groups_of(model))
    for step, batch in enumerate(given, start=1):
        torch.manual_seed(chunk_seed(0, step, 0))  # of dropout
        of_images = functional.normalize(model.image_projection(model.image_tower(batch.images)), dim=1)
        of_texts = functional.normalize(model.text_projection(model.text_tower(batch.tokens, batch.mask)), dim=1)
        model.zero_grad()
        loss(of_images, of_texts, model.temperature.logarithm.exp()).backward()
        for group in optimizer.param_groups:
            group["lr"] = PEAK * step / WARMUP if step < WARMUP else PEAK * ((STEPS - step) / (STEPS - WARMUP))
        optimizer.step()
    return optimizer


def test_fifty_steps_are_those_of_a_plain_loop_bit_for_bit(tmp_path: Path) -> None:
    """Of the command: a worker, a thread that goes ahead, checkpoints in the background, LAMB in parts of a cache.

    Towers and loss are its own, called plainly, the loss in one block: the next test has torch's.
    """
    settings = given(tmp_path, data={"workers": 1}, loop={**LOOP, "checkpoint_every": 20})
    assert cli.main(["train", settings]) == 0
    ours, moments = (load_file(tmp_path / PLACE / f"{name}.safetensors") for name in ("model", "optimizer"))

    def loss(*of: Tensor) -> Tensor:
        return contrastive_loss(*of, label_smoothing=0.1, directions="sum")

    config = TrainConfig.load(settings)
    data = prepared(config, ALONE, say=lambda _: None)
    model = model_of(config, vocabulary=data.tokenizer.vocabulary).to(memory_format=torch.channels_last)
    optimizer = plainly(model, batches(config, data), loss)
    for name, weight in model.named_parameters():
        assert torch.equal(ours[name], weight), name
        assert all(torch.equal(moments[f"{name}/{key}"], moment) for key, moment in optimizer.state[weight].items())
    assert len(moments) == 2 * len(optimizer.state) > 0
    for name, statistic in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):  # a group's sums are divided in another order
            torch.testing.assert_close(ours[name], statistic, rtol=1e-5, atol=1e-6, msg=name)


def test_fifty_steps_in_chunks_and_blocks_are_those_of_a_plain_loop_but_for_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two passes and logits in blocks, beside one graph and torch's own cross entropy.

    Sums are in another order, and fifty steps through batch norm of small groups make a difference 10^10 times larger.
    So it is float64 here: a weight was apart by 1/30,000 of the way that it had gone, at most. In float32 nothing is
    left to compare.
    """
    loop = {**LOOP, "chunk": 4}
    monkeypatch.setattr("altalign.train.step.learner._BLOCK", 3)
    # dropout is drawn anew for each chunk
    config = TrainConfig.load(given(tmp_path, text_tower={"dropout": 0.0}, loop=loop))
    data = prepared(config, ALONE, say=lambda _: None)
    of = batches(config, data)
    learner = Learner(config, vocabulary=data.tokenizer.vocabulary, ranks=ALONE)
    learner.model.double()
    first = {name: weight.detach().clone() for name, weight in learner.model.named_parameters()}
    for step, batch in enumerate(of, start=1):
        learner.step(step, batch)

    def loss(images: Tensor, texts: Tensor, temperature: Tensor) -> Tensor:
        logits, matches = images @ texts.T / temperature, torch.arange(len(images))
        of_images, of_texts = (
            functional.cross_entropy(way, matches, label_smoothing=0.1) for way in (logits, logits.T)
        )
        return of_images + of_texts

    model = model_of(config, vocabulary=data.tokenizer.vocabulary).double()
    plainly(model, of, loss)
    for name, weight in model.named_parameters():
        ours = learner.model.get_parameter(name).detach()
        apart, moved = (weight.detach() - ours).abs().max(), (weight.detach() - first[name]).abs().max()
        assert apart <= 1e-3 * moved + 1e-9, (name, apart, moved)
