"""LAMB, LARS, AdamW and SGD over the parts of a dual encoder.

A parameter is of one kind: `batch_norm` (scale or shift of one), `norm` (of a layer or group norm), `bias` (of anything
else) or `weight`. To exclude `norm` excludes batch norm too. What is frozen is in no group. Of a group are, beside what
torch keeps there: `param_names`, `part`, `kinds`, `trust` (LAMB and LARS) and `factor`, which the loop multiplies the
rate with.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, assert_never

import numpy as np
import torch
from torch import Tensor, nn

from altalign.errors import UsageError
from altalign.train.model.blocks import is_on_cpu
from altalign.train.model.dual_encoder import PARTS, Part, part_of
from altalign.train.model.passes import is_sharded
from altalign.train.run import sharded_tensors
from altalign.train.settings.training import OptimizerSettings

KINDS = ("weight", "bias", "norm", "batch_norm")
LARS_TRUST = 0.001  # You et al. 2017 (arXiv 1708.03888), section 5: the trust coefficient

_many: Any = torch  # `_foreach_*` are private by name alone: torch's own optimisers are made of them
# timm's are subclasses of them
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_NORMS = (nn.LayerNorm, nn.GroupNorm)
_NUMBERS_AT_A_TIME = 1 << 26  # of the parameters stepped together: two copies of as many are scratch memory, 512 MiB
_ROW = 1024  # numbers


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The optimiser of a model's parameters that are not frozen; its rate is 0 until the loop sets `group["lr"]`."""
    groups = _groups(model, settings)
    if not groups:
        raise UsageError(
            "[image_tower] frozen, [text_tower] frozen: no parameter is left to train; set one of them to false"
        )
    betas = (settings.beta1, settings.beta2)
    if settings.name == "lamb":
        return Lamb(groups, betas=betas, epsilon=settings.epsilon)
    if settings.name == "lars":
        return Lars(groups, momentum=settings.beta1, epsilon=settings.epsilon)
    foreach = is_sharded(model) or None  # torch's own choice for what is spread: tensor by tensor
    if settings.name == "adamw":
        return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=settings.epsilon, foreach=foreach)
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=settings.beta1, foreach=foreach)
    assert_never(settings.name)


def gradient_norm(model: nn.Module) -> Tensor:
    """The joint norm of all gradients, (), on their device."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    parts = sharded_tensors.own(gradients)
    if is_sharded(model):
        return torch.linalg.vector_norm(sharded_tensors.norms(parts, gradients))
    return nn.utils.get_total_norm(parts)


# Groups --------------------------------------------------------------------------------------------------------------


def _groups(model: nn.Module, settings: OptimizerSettings) -> list[dict[str, Any]]:
    """Parameters that are treated alike, those of a part together."""
    adapts, kinds = settings.name in ("lamb", "lars"), dict[str, str]()
    for prefix, module in model.named_modules():
        if isinstance(module, (*_BATCH_NORMS, *_NORMS)):
            kind = "batch_norm" if isinstance(module, _BATCH_NORMS) else "norm"
            kinds |= {f"{prefix}.{name}".lstrip("."): kind for name, _ in module.named_parameters(recurse=False)}
    undecayed, untrusted = (
        {*excludes, "batch_norm"} if "norm" in excludes else {*excludes}
        for excludes in (settings.decay_excludes, settings.trust_excludes)
    )
    factors = _factors(model, settings)
    members: dict[tuple[Part, bool, bool, float], list[tuple[str, nn.Parameter, str]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            part, kind = part_of(name), kinds.get(name) or ("bias" if name.split(".")[-1] == "bias" else "weight")
            is_temperature = part == "temperature"
            decays = settings.weight_decay > 0 and not is_temperature and kind not in undecayed
            trusts = adapts and not is_temperature and kind not in untrusted
            key = part, decays, trusts, factors.get(name, settings.rate_factors.get(part, 1.0))
            members.setdefault(key, []).append((name, parameter, kind))
    order = sorted(members, key=lambda key: (PARTS.index(key[0]), not key[1], not key[2], key[3]))
    return [
        {
            "params": [(name, parameter) for name, parameter, _ in members[key]],
            "part": key[0],
            "kinds": [kind for kind in KINDS if any(kind == each for _, _, each in members[key])],
            "weight_decay": settings.weight_decay if key[1] else 0.0,
            "trust": key[2],
            "factor": key[3],
        }
        for key in order
    ]


def _factors(model: nn.Module, settings: OptimizerSettings) -> dict[str, float]:
    """The factors of parameters of towers whose rates fall from layer to layer."""
    factors = dict[str, float]()
    for part, decay in settings.layer_decay.items():
        tower: Any = getattr(model, part, None)
        if tower is None:
            raise UsageError(f"[optimizer] layer_decay: the model has no {part}; leave it out")
        last, whole = len(tower.layers()) + 1, settings.rate_factors.get(part, 1.0)
        factors |= {f"{part}.{name}": whole * decay ** (last - depth) for name, depth in tower.depths().items()}
    return factors


# Methods -------------------------------------------------------------------------------------------------------------


class _Stepped(torch.optim.Optimizer):
    """What LAMB and LARS share: the walk over parameters that have gradients, so many that scratch memory allows.

    `steps` of every group is the number of steps taken, also by a parameter that got no gradient in some of them.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], defaults: dict[str, Any]):
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "trust": True, "steps": 0, **defaults})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # torch's takes a closure
        """Take a step with the gradients as they are."""
        for group in self.param_groups:
            group["steps"] += 1
            together, numbers = list[Tensor](), 0
            for parameter in [parameter for parameter in group["params"] if parameter.grad is not None]:
                if together and numbers + parameter.numel() > _NUMBERS_AT_A_TIME:
                    self._step(together, group)
                    together, numbers = [], 0
                together.append(parameter)
                numbers += parameter.numel()
            if together:
                self._step(together, group)

    def _step(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        raise NotImplementedError

    def _own(self, parameters: list[Tensor], *names: str) -> Iterator[list[Tensor]]:
        """This rank's parts of parameters, of their gradients, and of these states, zeros where there are none yet."""
        yield sharded_tensors.own(parameters)
        yield sharded_tensors.own([parameter.grad for parameter in parameters if parameter.grad is not None])
        for name in names:
            for parameter in parameters:
                if name not in self.state[parameter]:
                    self.state[parameter][name] = torch.zeros_like(parameter)
            yield sharded_tensors.own([self.state[parameter][name] for parameter in parameters])


class Lamb(_Stepped):
    """LAMB: You et al. 2019 (arXiv 1904.00962), algorithm 2, moments corrected as in TensorFlow Addons; not clipped.

    update = m / (sqrt(v) + epsilon) + weight_decay * w; w -= rate * |w| / |update| * update, the ratio 1 where a norm
    is 0 or in a group without trust.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-6
    ):
        super().__init__(groups, {"betas": betas, "epsilon": epsilon})

    def _step(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        (beta1, beta2), steps, wholes = group["betas"], group["steps"], parameters
        parameters, gradients, means, squares = self._own(wholes, "mean", "square")
        corrected1, corrected2 = 1 - beta1**steps, math.sqrt(1 - beta2**steps)
        scratch, rows, updates = _like(parameters)
        _many._foreach_lerp_(means, gradients, 1 - beta1)
        _many._foreach_mul_(squares, beta2)
        _many._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        divisors = _many._foreach_sqrt(squares)
        _many._foreach_mul_(divisors, corrected1 / corrected2)
        _many._foreach_add_(divisors, corrected1 * group["epsilon"])
        _many._foreach_copy_(updates, means)
        _many._foreach_div_(updates, divisors)
        if group["weight_decay"]:
            _many._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        if group["trust"]:
            weights, moves = (sharded_tensors.norms(parts, wholes) for parts in (parameters, updates))
            ratios = torch.where((weights > 0) & (moves > 0), weights / moves, 1.0)
            if is_on_cpu(scratch):
                _many._foreach_addcmul_(parameters, updates, ratios.unbind(), value=-group["lr"])
                return
            # a GPU would wait for hundreds of products by one number each to be started
            owners = torch.from_numpy(np.repeat(np.arange(len(rows)), rows))
            if scratch.is_cuda:
                owners = owners.pin_memory().to(scratch.device, non_blocking=True)  # nothing waits for it
            scratch.mul_(ratios[owners][:, None])
        _many._foreach_add_(parameters, updates, alpha=-group["lr"])


class Lars(_Stepped):
    """LARS: You et al. 2017 (arXiv 1708.03888), algorithm 1.

    velocity = momentum * velocity + rate * ratio * (g + weight_decay * w); w -= velocity, where ratio = 0.001 * |w| /
    (|g| + weight_decay * |w| + epsilon), and 1 where a norm is 0 or in a group without trust.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], *, momentum: float = 0.9, epsilon: float = 1e-6):
        super().__init__(groups, {"momentum": momentum, "epsilon": epsilon})

    def _step(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        decay, wholes = group["weight_decay"], parameters
        parameters, gradients, velocities = self._own(wholes, "velocity")
        moves = _many._foreach_add(gradients, parameters, alpha=decay)
        if group["trust"]:
            weights, slopes = (sharded_tensors.norms(parts, wholes) for parts in (parameters, gradients))
            ratios = torch.where(
                (weights > 0) & (slopes > 0), LARS_TRUST * weights / (slopes + decay * weights + group["epsilon"]), 1.0
            )
            _many._foreach_mul_(moves, ratios.unbind())
        _many._foreach_mul_(velocities, group["momentum"])
        _many._foreach_add_(velocities, moves, alpha=group["lr"])
        _many._foreach_sub_(parameters, velocities)


def _like(tensors: list[Tensor]) -> tuple[Tensor, list[int], list[Tensor]]:
    """Scratch memory (rows, _ROW); how many rows of it each tensor has; and one like each, which begins with a row."""
    rows = list[int]()
    for tensor in tensors:  # as many numbers as there are from its first place in memory to its last
        steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        rows.append(-(-(1 + sum(steps)) // _ROW) if tensor.numel() else 0)
    scratch = tensors[0].new_empty(sum(rows), _ROW)
    begins = itertools.accumulate(rows, initial=0)
    alike = [
        scratch.as_strided(tensor.shape, tensor.stride(), begin * _ROW)
        for tensor, begin in zip(tensors, begins, strict=False)  # one more: where all end
    ]
    return scratch, rows, alike
