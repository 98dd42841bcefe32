"""NLIP's noise-adaptive loss against a pair and a candidate at a time, and its two limits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.train.step.loss import Form, Noise, contrastive_loss, pair_losses
from tests.train.pairs import drawn

derandomized = settings(derandomize=True, deadline=None, max_examples=60)
PLAIN = {"label_smoothing": 0.0, "directions": "mean"}


def weights_of(pairs: int, seed: int) -> torch.Tensor:
    """Some 0, some near 1."""
    drawn_ = torch.rand(pairs, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.where(drawn_ < 0.3, 0.0, 0.99 * drawn_)


def plain_loss(
    images: torch.Tensor, texts: torch.Tensor, sigma: torch.Tensor, weights: torch.Tensor, form: Form
) -> torch.Tensor:
    """Each pair's loss (N,) of both directions averaged, as equations 9 to 11 or as label smoothing."""
    pairs, losses = len(images), []
    for i in range(pairs):
        of_pair, w = [], weights[i]
        for one, others in ((images[i], texts), (texts[i], images)):
            logits = [one @ others[j] / sigma for j in range(pairs)]
            rest = [logits[j] for j in range(pairs) if j != i]
            if form == "printed":
                own = (1 - w) * logits[i].exp()
                of_rest = sum((logit.exp() for logit in rest), torch.zeros((), dtype=own.dtype))
                of_pair.append(-(own / (own + w / max(1, pairs - 1) * of_rest)).log())
            else:
                log_sum = torch.stack(logits).logsumexp(0)
                smoothed = sum((log_sum - logit for logit in rest), torch.zeros((), dtype=w.dtype))
                of_pair.append((1 - w) * (log_sum - logits[i]) + w / max(1, pairs - 1) * smoothed)
        losses.append((of_pair[0] + of_pair[1]) / 2)
    return torch.stack(losses)


@given(
    st.integers(2, 12), st.integers(1, 15), st.sampled_from([1.0, 0.1, 0.02]), st.sampled_from(["intended", "printed"]),
    st.integers(0, 9),
)  # fmt: skip
@derandomized
def test_both_forms_in_blocks_are_those_of_plain_loops(
    pairs: int, block: int, sigma: float, form: Form, seed: int
) -> None:
    images, texts = drawn(pairs, seed=seed)
    sigma_ = torch.tensor(sigma, dtype=torch.float64, requires_grad=True)
    weights = weights_of(pairs, seed)
    expected = plain_loss(images, texts, sigma_, weights, form)
    found, _ = pair_losses(images, texts, sigma_, block=block, noise=Noise(weights, form), **PLAIN)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    of = (images, texts, sigma_)
    for ours, theirs in zip(
        torch.autograd.grad(found.mean(), of), torch.autograd.grad(expected.mean(), of), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9 / sigma)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("negatives", [1.0, 0.5])
def test_without_noise_the_intended_form_is_the_plain_loss_to_the_bit(kind: torch.dtype, negatives: float) -> None:
    images, texts = drawn(33, seed=3, kind=kind)
    sigma = torch.tensor(0.05, dtype=kind, requires_grad=True)
    of, more = (images, texts, sigma), {"block": 7, "negatives": negatives, **PLAIN}
    plain = contrastive_loss(*of, **more)
    noisy = contrastive_loss(*of, noise=Noise(torch.zeros(33)), **more)
    assert noisy.item() == plain.item()
    for ours, theirs in zip(torch.autograd.grad(noisy, of), torch.autograd.grad(plain, of), strict=True):
        assert torch.equal(ours, theirs)


def test_without_noise_the_printed_form_is_exactly_0_and_teaches_nothing() -> None:
    """Equation 10 with w = 0: the pairs that are held for clean are those that are not learned from."""
    images, texts = drawn(9, seed=1)
    sigma = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    noise = Noise(torch.zeros(9, dtype=torch.float64), "printed")
    loss = contrastive_loss(images, texts, sigma, noise=noise, block=4, **PLAIN)
    assert loss.item() == 0
    assert all((found == 0).all() for found in torch.autograd.grad(loss, (images, texts, sigma)))


def test_the_intended_form_spreads_over_the_others_alone() -> None:
    """The gradient of the logits is softmax less target: 1 - w on the match, w / (N - 1) on each other."""
    images, texts = drawn(5, width=5)
    logits = (images @ texts.T).detach().requires_grad_()
    same, weights = torch.eye(5, dtype=torch.float64), torch.tensor([0.0, 0.1, 0.2, 0.4, 0.49], dtype=torch.float64)
    loss = contrastive_loss(
        same, logits.T, torch.ones((), dtype=torch.float64), noise=Noise(weights), label_smoothing=0.0, directions="sum"
    )
    found = torch.autograd.grad(loss, logits)[0] * 5
    targets = logits.softmax(1) + logits.softmax(0) - found
    of_images = torch.diag(1 - weights) + (weights / 4)[:, None] * (1 - same)
    torch.testing.assert_close(targets, of_images + of_images.T)


@pytest.mark.parametrize("form", ["intended", "printed"])
def test_small_temperatures_overflow_nowhere(form: Form) -> None:
    images, texts = drawn(12, seed=2, kind=torch.float32)
    sigma = torch.tensor(0.001, requires_grad=True)
    weights = weights_of(12, 4)
    loss = contrastive_loss(images, texts, sigma, noise=Noise(weights, form), block=5, **PLAIN)
    assert math.isfinite(loss.item())
    assert all(found.isfinite().all() for found in torch.autograd.grad(loss, (images, texts, sigma)))
