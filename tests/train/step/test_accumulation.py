import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from altalign.errors import UsageError
from altalign.train.step import accumulation
from altalign.train.step.accumulation import StepResult, chunk_seed, towers_of
from altalign.train.step.loss import contrastive_loss
from tests.train.pairs import plain_losses
from tests.train.small_model import gradients_of, pairs, small_model

SEED, STEP = 7, 3
LOSS = partial(contrastive_loss, label_smoothing=0.1, directions="sum", block=3)


def step(model: Any, batch: Any, chunk: int, **settings: Any) -> StepResult:
    return accumulation.gradients(
        towers_of(model), model, batch, **{"chunk": chunk, "loss": LOSS, "seed": SEED, "step": STEP} | settings
    )


def at_once(model: Any, batch: Any, chunk: int) -> torch.Tensor:
    """The loss of the batch in one graph, written plainly; only dropout and batch norm are a chunk's.

    Leaves its gradients.
    """
    model.zero_grad()
    encoded = []
    for start in range(0, len(batch.keys), chunk):
        torch.manual_seed(chunk_seed(SEED, STEP, start))
        held = batch.chunk(start, start + chunk)
        encoded.append(model(held.images, held.tokens, held.mask))
    images, texts = (torch.cat(parts) for parts in zip(*encoded, strict=True))
    loss = plain_losses(images, texts, model.temperature.value(), label_smoothing=0.1, directions="sum").mean()
    loss.backward()
    return loss.detach()


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], relative: float = 1e-9) -> None:
    """Each parameter's gradient is, as a whole, as close as this; those that are zero but for rounding (a shift before
    a norm) to that.
    """
    assert found.keys() == expected.keys()
    rounding = 1e-14 * sum(gradient.norm() for gradient in expected.values())
    for name, gradient in expected.items():
        assert gradient.norm() > 0, name
        assert (found[name] - gradient).norm() <= relative * gradient.norm() + rounding, name


@pytest.mark.parametrize("chunk", [4, 5, 12])
@pytest.mark.parametrize("statistics", ["ghost", "local", "frozen"])
def test_the_gradient_of_chunks_is_that_of_the_batch(statistics: str, chunk: int) -> None:
    """12 pairs; chunks of 5 leave a smaller one."""
    batch, settings = pairs(12), {"statistics": statistics, "group": chunk}
    plain, ours = small_model(**settings), small_model(**settings)
    loss = at_once(plain, batch, chunk)
    result = step(ours, batch, chunk)
    assert result.loss == pytest.approx(float(loss), rel=1e-12)
    assert result.temperature == pytest.approx(0.2)
    assert result.drift == 0
    assert_same(gradients_of(ours), gradients_of(plain))


@pytest.mark.parametrize("statistics", ["ghost", "frozen"])
def test_without_dropout_chunks_are_nothing_but_memory(statistics: str) -> None:
    """Ghost groups of a chunk's size, or fixed statistics: the full batch in one forward has the same gradients and
    statistics.
    """
    whole, chunked = (small_model(statistics=statistics, group=4, dropout=0.0) for _ in range(2))
    batch = pairs(16)
    assert step(whole, batch, 16).loss == pytest.approx(step(chunked, batch, 4).loss, rel=1e-12)
    assert_same(gradients_of(chunked), gradients_of(whole))
    for name, buffer in whole.named_buffers():
        torch.testing.assert_close(chunked.get_buffer(name), buffer, rtol=1e-12, atol=1e-12)


def test_the_temperature_has_its_gradient_once() -> None:
    """Not once for each chunk, as where each chunk's loss goes back to it."""
    batch, plain, ours = pairs(16), small_model(dropout=0.0), small_model(dropout=0.0)
    at_once(plain, batch, 16)
    step(ours, batch, 4)
    assert float(ours.temperature.logarithm.grad / plain.temperature.logarithm.grad) == pytest.approx(1.0, rel=1e-10)


def test_running_statistics_move_once_by_the_mean_over_groups() -> None:
    model, batch = small_model(group=4), pairs(12)
    norm = model.image_tower.norm
    before = norm.running_mean.clone()
    features = model.image_tower.convolution(batch.images.double() / 128 - 1).detach()
    step(model, batch, 4)
    expected = before + norm.momentum * (features.mean((0, 2, 3)) - before)
    torch.testing.assert_close(norm.running_mean, expected, rtol=1e-6, atol=1e-7)
    assert norm.num_batches_tracked == 1


def test_gradients_from_before_are_dropped() -> None:
    model, again, batch = small_model(), small_model(), pairs(8)
    step(model, batch, 4)
    step(again, pairs(8, seed=5), 4)
    step(again, batch, 4)
    assert_same(gradients_of(again), gradients_of(model))


def test_dropout_is_the_same_in_both_passes_and_another_for_each_chunk_and_step() -> None:
    model, seen = small_model(), []
    model.text_tower.dropout.register_forward_hook(lambda _module, _inputs, made: seen.append(made.detach() == 0))
    batch = pairs(4)
    twice = type(batch)(batch.keys * 2, *(torch.cat([part, part]) for part in (batch.images, batch.tokens, batch.mask)))
    step(model, twice, 4)
    step(model, twice, 4, step=STEP + 1)
    first, second, first_again, second_again, of_next_step = seen[:5]
    assert torch.equal(first, first_again)
    assert torch.equal(second, second_again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, of_next_step)


def test_embeddings_that_differ_between_passes_are_told() -> None:
    """A tower that is not a function of seed and input."""
    model, calls = small_model(), []

    def turned(
        _module: nn.Module, _inputs: Any, made: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(0)
        return (made[0], made[1]) if len(calls) <= 2 else (made[0], -made[1])

    model.register_forward_hook(turned)
    assert step(model, pairs(8), 4).drift == pytest.approx(2)  # texts are on the other side: twice their length away


@pytest.mark.parametrize("chunk", [4, 8])
def test_activation_checkpointing_changes_no_gradient(chunk: int) -> None:
    plain, ours = small_model(), small_model(checkpointing=True)
    step(plain, pairs(8), chunk)
    step(ours, pairs(8), chunk)
    assert_same(gradients_of(ours), gradients_of(plain), 1e-12)
    assert torch.equal(ours.image_tower.norm.running_mean, plain.image_tower.norm.running_mean)


@pytest.mark.trained
def test_a_compiled_model_has_the_same_gradients() -> None:
    plain, ours = small_model(), small_model()
    ours.compile(backend="aot_eager")
    step(plain, pairs(10), 4)
    assert step(ours, pairs(10), 4).drift == 0
    assert_same(gradients_of(ours), gradients_of(plain))


@pytest.mark.parametrize("chunk", [4, 8])
@pytest.mark.parametrize("frozen", [("image_tower",), ("text_tower",), ("image_tower", "text_tower"), ("temperature",)])
def test_frozen_parts_have_no_gradient_and_the_others_theirs(frozen: tuple[str, ...], chunk: int) -> None:
    plain, ours = small_model(), small_model()
    for part in frozen:
        ours.get_submodule(part).requires_grad_(requires_grad=False)
    step(plain, pairs(8), chunk)
    step(ours, pairs(8), chunk)
    assert_same(
        gradients_of(ours),
        {name: gradient for name, gradient in gradients_of(plain).items() if not name.startswith(frozen)},
    )


@pytest.mark.parametrize("chunk", [4, 8])
def test_a_loss_that_is_no_number_leaves_nothing_to_apply(chunk: int) -> None:
    model = small_model()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        model.text_tower.linear.bias.fill_(math.nan)
    result = step(model, pairs(8), chunk)
    assert math.isnan(result.loss)
    assert not math.isfinite(result.loss)
    assert not gradients_of(model)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name


def test_batch_norm_over_devices_wants_as_many_chunks_on_each() -> None:
    accumulation.check_sync(small_model(statistics="ghost"), [4, 8], 4)
    accumulation.check_sync(small_model(statistics="sync"), [3, 4], 4)
    with pytest.raises(UsageError, match=r"ranks have \[1, 2\] chunks of 4"):
        accumulation.check_sync(small_model(statistics="sync"), [4, 8], 4)
