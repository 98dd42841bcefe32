"""Linear probe: multinomial logistic regression on frozen features by L-BFGS, as CLIP has it.

CLIP (arXiv 2103.00020), appendix A.3: at most 1,000 iterations; the strength of the L2 penalty is one of 8 values a
decade from 1e-6 to 1e6, found on a validation part by halving the interval around the best; then both parts are fitted.
A strength is the factor of half the squared weights beside the sum of the losses: scikit-learn's 1 / C.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from altalign.eval.encoded import Features
from altalign.eval.outcomes import Result
from altalign.eval.sets import LabelledSet
from altalign.eval.zero_shot import classified

ITERATIONS_AT_MOST = 1_000
VALIDATION_SHARE = 0.2  # ours: CLIP does not say how much of a training part it splits off

_A_DECADE, _DECADES = 8, 6
_GRADIENT_AT_MOST, _WHILE_SEARCHING = 1e-7, 1e-5  # of the mean loss; scikit-learn's default is 1e-4
_ROWS = 1 << 14  # of features that are float64 at a time


@dataclass(frozen=True)
class Probe:
    """A linear classifier."""

    weights: Tensor  # (classes, width) float64
    bias: Tensor  # (classes,) float64
    strength: float  # of the penalty

    def scores(self, features: Tensor) -> Tensor:
        """Logits (n, classes) float64 of features (n, width)."""
        return torch.cat([rows.double() @ self.weights.T + self.bias for rows in features.split(_ROWS)])


def probe(
    features: Tensor, labels: Tensor, *, classes: int, validation: tuple[Tensor, Tensor] | None = None, seed: int = 0
) -> Probe:
    """The classifier whose strength is the best on a validation part, fitted on all that is given.

    Args:
        features: (n, width), of the training part.
        labels: int64 (n,), from 0 to `classes` - 1.
        classes: how many there are.
        validation: features and labels of a part for this; None: a fifth of the training part is taken for it.
        seed: of that fifth.
    """
    train = features, labels
    if validation is None:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
        kept = max(1, int(len(labels) * VALIDATION_SHARE))
        validation = features[order[:kept]], labels[order[:kept]]
        train = features[order[kept:]], labels[order[kept:]]
    strength = best_strength(*train, *validation, classes=classes)
    whole = (features, labels) if len(train[1]) < len(labels) else map(torch.cat, zip(train, validation, strict=True))
    return fitted(*whole, classes=classes, strength=strength)


def linear_probe(of: LabelledSet, train: LabelledSet, validation: LabelledSet | None, features: Features) -> Result:
    """Fit a classifier on one set and measure it on another; all number their classes in one way.

    Raises UnreadableError: no image of one of them can be decoded.
    """
    encoded, (known, labels) = features.of_images(of.images), _with_labels(train, features)
    held = _with_labels(validation, features) if validation else None
    classes = len(of.classes.names)
    found = probe(known, labels, classes=classes, validation=held)
    facts = {"strength": found.strength, "train_images": len(labels) + (len(held[1]) if held else 0)}
    vectors = torch.eye(classes, device=known.device)
    return classified(of, encoded, found.scores(encoded.embeddings).float(), vectors, facts)


def _with_labels(of: LabelledSet, features: Features) -> tuple[Tensor, Tensor]:
    encoded = features.of_images(of.images)
    return encoded.embeddings, torch.from_numpy(of.labels[encoded.rows]).to(encoded.embeddings.device)


def best_strength(
    features: Tensor, labels: Tensor, validation: Tensor, validation_labels: Tensor, *, classes: int
) -> float:
    """The strength with the most right answers on the validation part; of equals the strongest."""
    right: dict[int, int] = {}  # by eighths of a decade
    step, best = 2 * _A_DECADE, 0
    around = range(-_DECADES * _A_DECADE, _DECADES * _A_DECADE + 1, step)
    while True:
        for place in around:
            if place not in right and abs(place) <= _DECADES * _A_DECADE:
                of = fitted(
                    features,
                    labels,
                    classes=classes,
                    strength=10 ** (place / _A_DECADE),
                    gradient_at_most=_WHILE_SEARCHING,
                )
                right[place] = int((of.scores(validation).argmax(1) == validation_labels).sum())
        best = max(right, key=lambda place: (right[place], place))
        if step == 1:
            return 10 ** (best / _A_DECADE)
        step //= 2
        around = (best - step, best + step)


def fitted(
    features: Tensor, labels: Tensor, *, classes: int, strength: float, gradient_at_most: float = _GRADIENT_AT_MOST
) -> Probe:
    """The classifier with the least penalised loss, in float64; it ends where no part of the gradient is above a limit.

    Of two classes, scikit-learn has one vector, the difference of our two: its penalty is ours of twice the strength.
    """
    penalty = strength * (2 if classes == 2 else 1) / len(labels)
    parameters = torch.zeros(classes, features.shape[1] + 1, dtype=torch.float64, device=features.device)
    method = torch.optim.LBFGS(
        [parameters],
        max_iter=ITERATIONS_AT_MOST,
        max_eval=2 * ITERATIONS_AT_MOST,
        tolerance_grad=gradient_at_most,
        tolerance_change=0,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def loss() -> float:
        weights, bias = parameters[:, :-1], parameters[:, -1]
        gradient, total = torch.zeros_like(parameters), 0.0
        for rows, own in zip(features.split(_ROWS), labels.split(_ROWS), strict=True):
            log_p = (rows.double() @ weights.T + bias).log_softmax(1)
            total -= float(log_p.gather(1, own[:, None]).sum())
            error = log_p.exp_().scatter_add_(1, own[:, None], -torch.ones_like(log_p[:, :1]))
            gradient[:, :-1] += error.T @ rows.double()
            gradient[:, -1] += error.sum(0)
        gradient /= len(labels)
        gradient[:, :-1] += penalty * weights
        parameters.grad = gradient
        return total / len(labels) + penalty / 2 * float(weights.square().sum())

    method.step(loss)
    return Probe(parameters[:, :-1], parameters[:, -1], strength)
