"""Tensors of which each rank holds a part (FSDP2): its part, the whole, the norm, and reading the part from a file."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor

_many: Any = torch  # as in optimizers


def own(tensors: Sequence[Tensor]) -> list[Tensor]:
    """This rank's parts, in the same memory; what is not spread is there as it is."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def norms(parts: Sequence[Tensor], of: Sequence[Tensor]) -> Tensor:
    """The norm of each whole tensor, from this rank's parts of tensors that are spread as `of` are: (n,).

    A collective where some are spread.
    """
    found = torch.stack(_many._foreach_norm(parts))
    groups = [tensor.device_mesh.get_group() if isinstance(tensor, DTensor) else None for tensor in of]
    if not (spread := [group for group in groups if group is not None]):
        return found
    is_spread = torch.tensor([group is not None for group in groups], device=found.device)
    squares = torch.where(is_spread, found.double().square(), 0.0)
    distributed.all_reduce(squares, group=spread[0])
    return torch.where(is_spread, squares.sqrt().to(found.dtype), found)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, on its device. A collective where it is spread."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def read_like(file: Any, name: str, other: Tensor | None) -> Tensor:
    """A tensor of an open safetensors file, as `other` is: of one that is spread this rank reads its rows alone."""
    kept = file.get_slice(name)
    if not isinstance(other, DTensor) or tuple(kept.get_shape()) != tuple(other.shape):
        return file.get_tensor(name)
    own, mesh = other.to_local(), other.device_mesh
    begin = -(-len(other) // mesh.size()) * mesh.get_local_rank()  # as torch.chunk cuts, and FSDP2
    rows = kept[begin : begin + len(own)].to(own.device) if len(own) else own
    about: dict[str, Any] = {"shape": other.shape, "stride": other.stride(), "run_check": False}
    return DTensor.from_local(rows, mesh, other.placements, **about)
