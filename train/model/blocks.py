"""What is done to the parts of a model one by one: others in their place, and activations that are computed again."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


def replace(module: nn.Module, kind: type[nn.Module], made: Callable[[Any], nn.Module]) -> None:
    """Put what is made of each part of a kind in its place; the names of the state stay, so far as the parts' do."""
    for name, child in module.named_children():
        if isinstance(child, kind):
            setattr(module, name, made(child))
        else:
            replace(child, kind, made)


def compute_again(blocks: Iterable[nn.Module], *, enable: bool = True) -> None:
    """Have the activations of blocks computed again instead of kept, or not any longer. `compiled` knows this form."""
    for block in blocks:
        block.__dict__.pop("forward", None)
        if enable:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
