"""A model spread over ranks (FSDP2): each holds its part of every weight, gradient and moment.

A block of a tower is gathered while it computes, forward and backward, and the sum of its gradients is spread again.
What is no block (stem, embeddings, linear layers) is gathered with the model. The temperature stays whole on each rank.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from altalign.train.model.compiled import BLOCKS
from altalign.train.step.global_batch import Group

if TYPE_CHECKING:
    from altalign.train.model.dual_encoder import DualEncoder

_many: Any = torch  # as in optimizers


def shard(model: "DualEncoder", group: Group = None, *, blocks: tuple[type[nn.Module], ...] = BLOCKS) -> None:
    """Leave each rank of a group its part of a model that all have alike, on the device that it computes on.

    Everything is let go after each forward, so that the model's parameters are always these parts between steps.
    """
    device = next(model.parameters()).device
    mesh = DeviceMesh.from_group(group or distributed.distributed_c10d._get_default_group(), device.type)  # pyright: ignore[reportPrivateUsage] - no other name
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()  # it takes no other; channels last are one, but for the stem
    for module in reversed(list(model.modules())):
        if isinstance(module, blocks):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=True, ignored_params=set(model.temperature.parameters()))
    for name in ("encode_image", "encode_text"):
        if hasattr(model, name):
            register_fsdp_forward_method(model, name)


def is_sharded(model: nn.Module) -> bool:
    """Whether ranks hold parts of it."""
    return isinstance(model, FSDPModule)


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
