"""A model spread over ranks (FSDP2): each holds its part of every weight, gradient and moment.

A block of a tower is gathered while it computes, forward and backward, and the sum of its gradients is spread again.
What is no block (stem, embeddings, linear layers) is gathered with the model. The temperature stays whole on each rank.
"""

from typing import TYPE_CHECKING

from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from altalign.train.model.compiled import BLOCKS
from altalign.train.step.global_batch import Group

if TYPE_CHECKING:
    from altalign.train.model.dual_encoder import DualEncoder


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
