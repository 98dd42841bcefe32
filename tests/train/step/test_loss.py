import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from altalign.train.model.drawn import Mixed
from altalign.train.step.loss import contrastive_loss, negatives_log_p, pair_losses, sigmoid_loss
from tests.train.pairs import drawn, plain_losses

derandomized = settings(derandomize=True, deadline=None, max_examples=80)
ALIGN = {"label_smoothing": 0.1, "directions": "sum"}


def temperature(value: float, kind: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(value, dtype=kind, requires_grad=True)


def gradients(loss: torch.Tensor, *of: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, of))


@given(
    st.integers(1, 12),
    st.integers(1, 15),
    st.sampled_from([0.0, 0.1, 0.7]),
    st.sampled_from([1.0, 0.1, 1 / 64, 0.005]),
    st.sampled_from([1.0, 0.5, 0.25, 0.01]),
    st.sampled_from(["sum", "mean"]),
    st.integers(0, 9),
)
@derandomized
def test_in_blocks_as_in_plain_loops(
    pairs: int,
    block: int,
    label_smoothing: float,
    sigma: float,
    negatives: float,
    directions: str,
    seed: int,
) -> None:
    images, texts = drawn(pairs, seed=seed)
    sigma_ = temperature(sigma)
    weights = torch.rand(pairs, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    chosen = {"label_smoothing": label_smoothing, "directions": directions, "negatives": negatives}
    plain = plain_losses(images, texts, sigma_, **chosen)
    losses, count = pair_losses(images, texts, sigma_, block=block, **chosen)
    torch.testing.assert_close(losses, plain, rtol=1e-10, atol=1e-10)
    assert count == pairs
    for ours, theirs in zip(
        gradients((losses * weights).sum(), images, texts, sigma_),
        gradients((plain * weights).sum(), images, texts, sigma_),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9 / sigma)
    whole = contrastive_loss(images, texts, sigma_, block=block, **chosen)
    torch.testing.assert_close(whole, plain.mean(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("sigma", [1.0, 1 / 64])
def test_smoothing_is_that_of_torch(sigma: float) -> None:
    images, texts = drawn(9)
    logits, own = images @ texts.T / sigma, torch.arange(9)
    expected = functional.cross_entropy(logits, own, label_smoothing=0.1) + functional.cross_entropy(
        logits.T, own, label_smoothing=0.1
    )
    torch.testing.assert_close(contrastive_loss(images, texts, temperature(sigma), **ALIGN, block=4), expected)


def test_one_pair_alone_costs_nothing() -> None:
    images, texts = drawn(1)
    assert contrastive_loss(images, texts, temperature(0.01), **ALIGN).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("sigma", [0.01, 0.001])
@pytest.mark.parametrize("negatives", [1.0, 0.5])
def test_small_temperatures_overflow_nowhere(sigma: float, negatives: float) -> None:
    """Opposite pairs: the match has the least logit there is, the others the greatest; exp of their difference is no
    float32.
    """
    images = functional.normalize(torch.ones(8, 4) + 1e-3 * torch.arange(32).reshape(8, 4), dim=1).requires_grad_()
    texts = (-images).detach()
    texts[3:] *= -1
    texts.requires_grad_()
    sigma_ = temperature(sigma, torch.float32)
    loss = contrastive_loss(images, texts, sigma_, label_smoothing=0.1, directions="sum", negatives=negatives, block=3)
    double = plain_losses(
        images.double(), texts.double(), sigma_.double(), label_smoothing=0.1, directions="sum", negatives=negatives
    ).mean()
    torch.testing.assert_close(loss, double.float(), rtol=1e-4, atol=1e-4)
    assert all(found.isfinite().all() for found in gradients(loss, images, texts, sigma_))


def test_under_autocast_logits_are_float32() -> None:
    images, texts = drawn(16, kind=torch.float32)
    plain = contrastive_loss(images, texts, temperature(0.02, torch.float32), **ALIGN)
    with torch.autocast("cpu", torch.bfloat16):
        cast = contrastive_loss(images, texts, temperature(0.02, torch.float32), **ALIGN)
        of_cast = gradients(cast, images, texts)
    assert cast.item() == plain.item()
    assert cast.dtype == torch.float32
    for ours, theirs in zip(of_cast, gradients(plain, images, texts), strict=True):
        assert torch.equal(ours, theirs)


def test_mixed_targets_are_those_of_torch() -> None:
    images, texts = drawn(7)
    partner, share = torch.arange(7).flip(0), torch.full((7,), 0.3, dtype=torch.float64)
    target = 0.3 * torch.eye(7, dtype=torch.float64) + 0.7 * torch.eye(7, dtype=torch.float64).flip(0)
    logits = images @ texts.T / 0.1
    expected = functional.cross_entropy(logits, target, label_smoothing=0.1) + functional.cross_entropy(
        logits.T, target, label_smoothing=0.1
    )
    found = contrastive_loss(images, texts, temperature(0.1), **ALIGN, block=3, targets=Mixed(partner, share))
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(gradients(found, images, texts), gradients(expected, images, texts), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_are_no_pairs_is_refused() -> None:
    images, texts = drawn(4)
    with pytest.raises(ValueError, match=r"shapes \(3, 6\) and \(4, 6\) are no pairs"):
        contrastive_loss(images[:3], texts, temperature(1.0), **ALIGN)
    with pytest.raises(ValueError, match="every rank needs one"):
        contrastive_loss(images[:0], texts[:0], temperature(1.0), **ALIGN)


def test_a_share_of_the_negatives_has_exactly_as_many_candidates() -> None:
    """All logits equal: the loss is the logarithm of the number of candidates, in each direction."""
    images = torch.ones(21, 1, dtype=torch.float64)
    for negatives, candidates in ((1.0, 21), (0.5, 11), (0.25, 6), (0.01, 1)):
        found = contrastive_loss(images, images, temperature(0.1), **ALIGN, negatives=negatives, block=4)
        assert found.item() == pytest.approx(2 * math.log(candidates))


class _Largest(TorchDispatchMode):
    """The most elements of any one tensor that is made, and of all results of products."""

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.products = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
                self.products += tensor.numel() * (func is torch.ops.aten.mm.default)
        return made


@pytest.mark.parametrize("negatives", [1.0, 0.25])
@pytest.mark.parametrize("pairs", [512, 1024, 2048])
def test_no_tensor_is_larger_than_a_block_or_the_embeddings(pairs: int, negatives: float) -> None:
    block, width = 128, 16
    images, texts = drawn(pairs, width, kind=torch.float32)
    with _Largest() as largest:
        contrastive_loss(
            images, texts, temperature(0.1, torch.float32), **ALIGN, negatives=negatives, block=block
        ).backward()
    assert largest.elements == max(block**2, pairs * width)


def test_blocks_without_candidates_are_not_computed() -> None:
    images, texts = drawn(1024, kind=torch.float32)
    products = {}
    for negatives in (1.0, 0.25):
        with _Largest() as largest, torch.no_grad():
            contrastive_loss(images, texts, temperature(0.1, torch.float32), **ALIGN, negatives=negatives, block=64)
        products[negatives] = largest.products
    assert products[1.0] == 1024**2
    assert products[0.25] <= 0.6 * 1024**2  # a quarter for each direction, and the blocks at the edges


@given(st.integers(2, 9), st.integers(1, 12), st.sampled_from([1.0, 0.1, 0.02]), st.integers(0, 9))
@derandomized
def test_how_hard_negatives_are_is_as_in_plain_loops(pairs: int, block: int, sigma: float, seed: int) -> None:
    images, texts = drawn(pairs, seed=seed)
    logits = images @ texts.T / sigma
    to_texts, to_images = functional.log_softmax(logits, 1), functional.log_softmax(logits, 0)
    others = range(pairs)
    expected = [
        sum((to_texts[i, j] + to_images[j, i]).item() / 2 for j in others if j != i) / (pairs - 1) for i in others
    ]
    found = negatives_log_p(images, texts, temperature(sigma), block=block)
    assert found.tolist() == pytest.approx(expected, rel=1e-9)


def plain_sigmoids(images: torch.Tensor, texts: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """SigLIP's loss (arXiv 2303.15343, section 3.2), a pair after the other."""
    total, pairs = images.new_zeros(()), len(images)
    for i in range(pairs):
        for j in range(pairs):
            z = 1 if i == j else -1
            total = total + torch.log(1 / (1 + torch.exp(z * (-images[i] @ texts[j] / logits[0] - logits[1]))))
    return -total / pairs


@given(st.integers(1, 9), st.integers(1, 11), st.sampled_from([1.0, 0.1]), st.sampled_from([-10.0, 0.0]))
@derandomized
def test_sigmoids_in_blocks_as_in_plain_loops(pairs: int, block: int, sigma: float, bias: float) -> None:
    images, texts = drawn(pairs, seed=block)
    logits = torch.tensor([sigma, bias], dtype=torch.float64, requires_grad=True)
    ours, plain = sigmoid_loss(images, texts, logits, block=block), plain_sigmoids(images, texts, logits)
    torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-12)
    for own, expected in zip(
        gradients(ours, images, texts, logits), gradients(plain, images, texts, logits), strict=True
    ):
        torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-10)


def test_sigmoids_of_two_pairs_by_hand() -> None:
    """Similarities 1 and 0 of SigLIP's first t and b: logits of the matches are 10 - 10, of the others -10."""
    both = torch.eye(2, dtype=torch.float64)
    loss = sigmoid_loss(both, both, torch.tensor([0.1, -10.0], dtype=torch.float64))
    assert float(loss) == pytest.approx(math.log(2) + math.log1p(math.exp(-10)), rel=1e-12)
