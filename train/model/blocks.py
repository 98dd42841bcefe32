"""What the towers are made with: parts in the place of others, activations computed again, and a CPU's own ways."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from altalign.errors import UsageError
from altalign.train.run import weights
from altalign.train.settings.training import ImageTowerSettings, TextTowerSettings

EIGHT = 8  # of channels, 16 bytes of bfloat16, are read at once on a GPU
_AS_A_GPU: list[bool] = []


class Scales(NamedTuple):
    """What images are normalised with, by `normalise` and its kernels on a GPU."""

    weight: torch.Tensor  # (channels)
    bias: torch.Tensor
    mean: torch.Tensor  # (groups, channels)
    inverse: torch.Tensor  # of the standard deviation

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return self.mean.shape[0]


class Tower(nn.Module):
    """What all towers have: first weights that may be somebody else's, and that may stay as they are."""

    frozen = False
    after_layers: tuple[str, ...] = ()  # names of what follows the last layer begin so
    _still: tuple[nn.Module, ...] = ()  # frozen parts of a tower that learns

    def layers(self) -> list[nn.Module]:
        """The blocks, in the order in which they compute."""
        raise NotImplementedError

    def depths(self) -> dict[str, int]:
        """The group of each parameter by its name: 0 before the layers, then one a layer, then what follows them."""
        layers = self.layers()
        numbers = {id(one): number for number, layer in enumerate(layers, start=1) for one in layer.parameters()}
        last = len(layers) + 1
        return {
            name: numbers.get(id(one), last if name.startswith(self.after_layers or ("\0",)) else 0)
            for name, one in self.named_parameters()
        }

    def begin(
        self,
        settings: ImageTowerSettings | TextTowerSettings,
        module: nn.Module,
        *,
        prefixes: Sequence[str],
        unused: Sequence[str],
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        """Give `module` the weights that the settings name (`weights.read_into`), and freeze what shall stay so."""
        section = "image" if isinstance(settings, ImageTowerSettings) else "text"
        if settings.weights:
            setting = f"[{section}_tower] weights"
            weights.read_into(
                module, settings.weights, setting=setting, prefixes=prefixes, unused=unused, renamed=renamed
            )
        if settings.frozen_groups:
            self._freeze(settings.frozen_groups, f"[{section}_tower] frozen_groups")
        self.frozen = settings.frozen
        if settings.frozen:
            self.requires_grad_(requires_grad=False).eval()

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - torch's signature
        """As torch's, but what is frozen stays in evaluation: its running statistics, and nothing dropped."""
        super().train(mode and not self.frozen)
        for module in self._still:
            module.eval()
        return self

    def _freeze(self, groups: int, setting: str) -> None:
        """Freeze the first groups of layers."""
        if groups > 1 + (layers := len(self.layers())):
            why = f"the tower has {layers + 1}: what is before its layers, and {layers} layers"
            raise UsageError(f"{setting} = {groups}: {why}; give fewer, or frozen = true")
        depths, parameters = self.depths(), dict(self.named_parameters())
        for name, one in parameters.items():
            one.requires_grad = depths[name] >= groups
        of = [(module, list(module.parameters())) for module in self.modules()]
        self._still = tuple(each for each, own in of if own and not any(one.requires_grad for one in own))


def replace(module: nn.Module, kind: type[nn.Module], made: Callable[[Any], nn.Module]) -> None:
    """Put what is made of each part of a kind in its place; the names of the state stay, so far as the parts' do."""
    for name, child in module.named_children():
        if isinstance(child, kind):
            setattr(module, name, made(child))
        else:
            replace(child, kind, made)


def compute_again(blocks: Iterable[nn.Module], *, enable: bool = True) -> None:
    """Have the activations of blocks computed again instead of kept, or not any longer. `passes` knows this form."""
    for block in blocks:
        block.__dict__.pop("forward", None)
        if enable:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)


@contextmanager
def as_a_gpu() -> Iterator[None]:
    """Compute on a CPU as on a GPU, to count its operations."""
    _AS_A_GPU.append(True)
    try:
        yield
    finally:
        _AS_A_GPU.pop()


def is_on_cpu(tensor: torch.Tensor) -> bool:
    """Whether what is computed with a tensor goes the CPU's way."""
    return tensor.device.type == "cpu" and not _AS_A_GPU
