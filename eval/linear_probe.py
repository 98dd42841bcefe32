"""Linear probe: multinomial logistic regression on frozen features by L-BFGS, as CLIP has it; and VTAB's tasks by it.

CLIP (arXiv 2103.00020), appendix A.3: at most 1,000 iterations; the strength of the L2 penalty is one of 8 values a
decade from 1e-6 to 1e6, found on a validation part by halving the interval around the best; then both parts are fitted.
A strength is the factor of half the squared weights beside the sum of the losses: scikit-learn's 1 / C.

VTAB has 19 tasks (Zhai et al., arXiv 1910.04867) with 1,000 examples each. A task is a folder of its name with
`train800.txt`, `val200.txt` and `test.txt`, lines of FILE CLASS. ALIGN fine-tunes all layers with 50 trials a task
(section 5.3): `altalign train --sweep`. The probe stands in its place, with the same examples.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from altalign import storage
from altalign.errors import UnreadableError
from altalign.eval.classification import classified
from altalign.eval.encoded import Features
from altalign.eval.image_sources import Images
from altalign.eval.outcomes import Outcomes, Result
from altalign.eval.sets import LabelledSet, classes_of_lists, labelled_set

ITERATIONS_AT_MOST = 1_000
VALIDATION_SHARE = 0.2  # ours: CLIP does not say how much of a training part it splits off

_A_DECADE, _DECADES = 8, 6
_GRADIENT_AT_MOST, _WHILE_SEARCHING = 1e-7, 1e-5  # of the mean loss; scikit-learn's default is 1e-4
_ROWS = 1 << 14  # of features that are float64 at a time

GROUPS = {  # of VTAB
    "natural": ("caltech101", "cifar", "dtd", "oxford_flowers102", "oxford_iiit_pet", "sun397", "svhn"),
    "specialised": ("patch_camelyon", "eurosat", "resisc45", "diabetic_retinopathy"),
    "structured": (
        "clevr_count", "clevr_dist", "dmlab", "dsprites_loc", "dsprites_ori", "kitti", "smallnorb_azi", "smallnorb_ele",
    ),
}  # fmt: skip
TASKS = tuple(name for group in GROUPS.values() for name in group)


class Probe(NamedTuple):
    """A linear classifier."""

    weights: Tensor  # (classes, width) float64
    bias: Tensor  # (classes,) float64
    strength: float  # of the penalty

    def scores(self, features: Tensor) -> Tensor:
        """Logits (n, classes) float64 of features (n, width)."""
        return torch.cat([rows.double() @ self.weights.T + self.bias for rows in features.split(_ROWS)])


def linear_probe(
    labelled: LabelledSet, train: LabelledSet, validation: LabelledSet | None, features: Features
) -> Result:
    """Fit a classifier on one set and measure it on another; all number their classes in one way."""
    encoded, parts, classes = features.of_images(labelled.images), list[tuple[Tensor, Tensor]](), labelled.classes.names
    for part in (train, validation) if validation else (train,):
        of_part = features.of_images(part.images)
        labels = torch.from_numpy(part.labels[of_part.rows])
        parts.append((of_part.embeddings, labels.to(of_part.embeddings.device)))
    classifier = probe(*parts[0], classes=len(classes), validation=parts[1] if validation else None)
    facts = {"strength": classifier.strength, "train_images": sum(len(labels) for _, labels in parts)}
    scores = classifier.scores(encoded.embeddings).float()
    return classified(labelled, encoded, scores, torch.eye(len(classes), device=scores.device), facts)


def probe(
    features: Tensor, labels: Tensor, *, classes: int, validation: tuple[Tensor, Tensor] | None = None, seed: int = 0
) -> Probe:
    """The classifier whose strength is the best on a validation part, fitted on all that is given.

    Features are (n, width), labels int64 (n,) from 0 to `classes` - 1; without a validation part, a random fifth of
    the training part is taken for it.
    """
    train = whole = features, labels
    if validation is not None:
        whole = torch.cat([features, validation[0]]), torch.cat([labels, validation[1]])
    else:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
        kept = max(1, int(len(labels) * VALIDATION_SHARE))
        validation = features[order[:kept]], labels[order[:kept]]
        train = features[order[kept:]], labels[order[kept:]]
    return fitted(*whole, classes=classes, strength=best_strength(*train, *validation, classes=classes))


def best_strength(
    features: Tensor, labels: Tensor, validation: Tensor, validation_labels: Tensor, *, classes: int
) -> float:
    """The strength with the most right answers on the validation part; of equals the strongest."""
    right: dict[int, int] = {}  # by eighths of a decade
    best, most = 0, _DECADES * _A_DECADE
    around = [*range(-most, most + 1, 2 * _A_DECADE)]
    for step in (8, 4, 2, 1, 0):
        for place in (place for place in around if place not in right and abs(place) <= most):
            strength = 10 ** (place / _A_DECADE)
            some = fitted(features, labels, classes=classes, strength=strength, gradient_at_most=_WHILE_SEARCHING)
            right[place] = int((some.scores(validation).argmax(1) == validation_labels).sum())
        best = max(right, key=lambda place: (right[place], place))
        around = [best - step, best + step]
    return 10 ** (best / _A_DECADE)


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


# VTAB -----------------------------------------------------------------------------------------------------------------


def tasks_in(folder: str) -> list[str]:
    """The tasks that are there. Raises UnreadableError: none is."""
    existing = [name for name in TASKS if storage.exists(storage.join(folder, name, "test.txt"))]
    if not existing:
        raise UnreadableError(f"{folder}: no folder of VTAB, as {TASKS[0]} with its test.txt; give the folder of them")
    return existing


def lists_of(folder: str, task: str) -> list[str]:
    """The lists of a task: 800 examples, 200, and the test images."""
    return [storage.join(folder, task, f"{part}.txt") for part in ("train800", "val200", "test")]


def vtab(folder: str, features: Features) -> Result:
    """The probe of every task that is there; the rows are the test images of all of them."""
    existing = tasks_in(folder)
    names, rows, tasks, ranks = list[str](), list[int](), list[int](), list[int]()
    missing = [name for name in TASKS if name not in existing]
    left_out = {"no folder of this task": missing} if missing else {}
    for name in existing:
        lists = lists_of(folder, name)
        classes = classes_of_lists(lists)
        train, held, test = (labelled_set(path, classes=classes) for path in lists)
        result = linear_probe(test, train, held, features)
        rows += [len(names) + row for row in result.rows]
        tasks += [TASKS.index(name)] * len(result.rows)
        ranks += result.outcomes["rank"].tolist()
        left_out |= {f"{name}: {why}": some for why, some in result.left_out.items()}
        names += [f"{name}/{one}" for one in test.images.names]
    outcomes = {"task": np.array(tasks), "rank": np.array(ranks)}
    facts = {"tasks": len(existing), "of_tasks": len(TASKS)}
    return Result(Images(names, names), rows, outcomes, measured_of_vtab(outcomes), facts, left_out)


def measured_of_vtab(outcomes: Outcomes) -> dict[str, float]:
    """Top-1 in percent of each task that is there, their mean (`mean_there`), and `means` of them."""
    tasks, hits = outcomes["task"], outcomes["rank"] == 1
    accuracies = {TASKS[task]: 100 * float(hits[tasks == task].mean()) for task in np.unique(tasks)}
    return {**accuracies, "mean_there": sum(accuracies.values()) / len(accuracies), **means(accuracies)}


def means(accuracies: Mapping[str, float]) -> dict[str, float]:
    """The mean of each group that is whole, and of all where all 19 are there."""
    return {
        f"mean_{group}": sum(accuracies[name] for name in names) / len(names)
        for group, names in {**GROUPS, "all": TASKS}.items()
        if all(name in accuracies for name in names)
    }
