"""Tensors of which each rank holds a part (FSDP2): norms, wholes, parts of files; and their moments in a checkpoint.

Each rank writes its parts of moments, and any number reads them: by torch's distributed checkpoint, as safetensors, for
a pickle would run code.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from altalign.errors import AltalignError
from altalign.train.run.ranks import Ranks

_many: Any = torch  # as in optimizers


def own(tensors: Sequence[Tensor]) -> list[Tensor]:
    """This rank's parts, in the same memory; what is not spread is given as it is."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def norms(parts: Sequence[Tensor], tensors: Sequence[Tensor]) -> Tensor:
    """The norm (n,) of each whole tensor, from this rank's parts, spread as `tensors` are. A collective."""
    local = torch.stack(_many._foreach_norm(parts))
    groups = [tensor.device_mesh.get_group() if isinstance(tensor, DTensor) else None for tensor in tensors]
    if not (spread := [group for group in groups if group is not None]):
        return local
    is_spread = torch.tensor([group is not None for group in groups], device=local.device)
    squares = torch.where(is_spread, local.double().square(), 0.0)
    distributed.all_reduce(squares, group=spread[0])
    return torch.where(is_spread, squares.sqrt().to(local.dtype), local)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, on its device. A collective where it is spread."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def read_like(file: Any, name: str, other: Tensor | None) -> Tensor:
    """A tensor of an open safetensors file, as `other` is: of one that is spread this rank reads its rows alone."""
    kept = file.get_slice(name)
    if not isinstance(other, DTensor) or tuple(kept.get_shape()) != tuple(other.shape):
        return file.get_tensor(name)
    part, mesh = other.to_local(), other.device_mesh
    begin = -(-len(other) // mesh.size()) * mesh.get_local_rank()  # as torch.chunk cuts, and FSDP2
    return _part(kept[begin : begin + len(part)].to(part.device) if len(part) else part, mesh, other)


def _part(rows: Tensor, mesh: DeviceMesh, other: DTensor) -> Tensor:
    """This rank's part of a tensor that is spread as another."""
    layout: dict[str, Any] = {"shape": other.shape, "stride": other.stride(), "run_check": False}
    return DTensor.from_local(rows, mesh, other.placements, **layout)


@dataclass(frozen=True)
class Meeting:
    """Where ranks meet to write a checkpoint, by gloo, while they train: apart from where they meet to train."""

    group: Any
    mesh: DeviceMesh
    is_first: bool
    is_first_of_machine: bool

    @classmethod
    def among(cls, ranks: Ranks, *, timeout_s: int) -> Self:
        """A meeting of all ranks. A collective."""
        group: Any = distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        return cls(group, DeviceMesh.from_group(group, "cpu"), ranks.is_first, ranks.is_first_of_machine)

    def gathered(self, own: Mapping[str, str]) -> list[Mapping[str, str]]:
        """What all ranks give. A collective."""
        gifts: list[Any] = [None] * distributed.get_world_size(self.group)
        distributed.all_gather_object(gifts, own, group=self.group)
        return gifts

    def parts_of(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies, in the CPU's memory, of this rank's parts of those that are spread."""
        return {
            name: _part(tensor.to_local().detach().to("cpu", copy=True), self.mesh, tensor)
            for name, tensor in tensors.items()
            if isinstance(tensor, DTensor)
        }

    def write(self, parts: Mapping[str, Tensor], folder: Path) -> None:
        """Write parts to a folder inside one that was made anew. A collective; all have written after."""
        distributed.barrier(group=self.group)
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        try:
            save(dict(parts), storage_writer=writer, process_group=self.group)
        except CheckpointException as error:
            own = distributed.get_rank()
            rank = own if own in error.failures else min(error.failures)
            why = error.failures[rank][0]
            if rank == own and isinstance(why, OSError):
                raise why from None
            raise AltalignError(f"{folder}: rank {rank} cannot write its part of a checkpoint: {why}") from None


def read_moments(folder: Path, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by PARAMETER/KEY, of each as much as this rank has of the parameter; empty without a folder."""
    if not folder.is_dir():
        return {}
    reader = HuggingFaceStorageReader(str(folder))
    tensors: dict[str, Tensor] = {}
    for name, entry in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata)  # safetensors have nothing else
        parameter = parameters.get(name.rpartition("/")[0])
        tensors[name] = torch.empty(entry.size) if parameter is None else torch.zeros_like(parameter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each rank reads by itself: so it is meant
        load(dict(tensors), storage_reader=reader, no_dist=True)
    return tensors
