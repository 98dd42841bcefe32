"""Tensors of an optimiser of which ranks hold parts, in a checkpoint: each rank writes its own, any number reads them.

They are written by torch's distributed checkpoint, as safetensors: nothing of it is a pickle, which would run code.
"""

import warnings
from collections.abc import Mapping
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


@dataclass(frozen=True)
class Meeting:
    """Where ranks meet to write a checkpoint, by gloo, while they train: apart from where they meet to train."""

    group: Any
    mesh: DeviceMesh
    is_first: bool
    is_first_of_machine: bool

    @classmethod
    def of(cls, ranks: Ranks, *, timeout_s: int) -> Self:
        """A meeting of all ranks. A collective."""
        group: Any = distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        return cls(group, DeviceMesh.from_group(group, "cpu"), ranks.is_first, ranks.is_first_of_machine)

    def has_own_folder(self, *, is_shared: bool) -> bool:
        """Whether this rank makes the folder: the first of all, or of each machine, where machines share none."""
        return self.is_first if is_shared else self.is_first_of_machine

    def gathered(self, own: Mapping[str, str]) -> list[Mapping[str, str]]:
        """What all ranks give. A collective."""
        found: list[Any] = [None] * distributed.get_world_size(self.group)
        distributed.all_gather_object(found, own, group=self.group)
        return found

    def parts_of(self, tensors: Mapping[str, Tensor]) -> "Parts":
        """Copies of this rank's parts, in the CPU's memory."""
        return Parts(self, {name: self._part(of) for name, of in tensors.items() if isinstance(of, DTensor)})

    def _part(self, of: DTensor) -> Tensor:
        own = of.to_local().detach().to("cpu", copy=True)
        about: dict[str, Any] = {"shape": of.shape, "stride": of.stride(), "run_check": False}
        return DTensor.from_local(own, self.mesh, of.placements, **about)


@dataclass(frozen=True)
class Parts:
    """This rank's parts of tensors by name."""

    meeting: Meeting
    tensors: dict[str, Tensor]

    def write(self, folder: Path) -> None:
        """Write them to a folder inside one that was made anew. A collective; all have written after.

        Raises:
            OSError: this rank's disk does not take them.
            AltalignError: another's does not.
        """
        distributed.barrier(group=self.meeting.group)
        try:
            save(
                dict(self.tensors),
                storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True),
                process_group=self.meeting.group,
            )
        except CheckpointException as error:
            own = distributed.get_rank()
            rank = own if own in error.failures else min(error.failures)
            why = error.failures[rank][0]
            if rank == own and isinstance(why, OSError):
                raise why from None
            raise AltalignError(f"{folder}: rank {rank} cannot write its part of a checkpoint: {why}") from None


def read(folder: Path, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by PARAMETER/KEY; of each as much as this rank has of the parameter. Empty where there is no folder.

    Any number of ranks has written them.
    """
    if not folder.is_dir():
        return {}
    reader = HuggingFaceStorageReader(str(folder))
    kept = reader.read_metadata().state_dict_metadata
    tensors: dict[str, Tensor] = {}
    for name, about in kept.items():
        assert isinstance(about, TensorStorageMetadata)  # there is nothing else in safetensors
        parameter = parameters.get(name.rpartition("/")[0])
        tensors[name] = torch.empty(about.size) if parameter is None else torch.zeros_like(parameter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each rank reads by itself: so it is meant
        load(dict(tensors), storage_reader=reader, no_dist=True)
    return tensors
