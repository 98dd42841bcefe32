"""The processes of a training run: which one this is, on which device, and what all of them have to agree on."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
from torch import distributed

from altalign.errors import AltalignError, UsageError

# A rank waits this long for the others, in the worst case while rank 0 trains a tokenizer and indexes billions of
# pairs.
WAIT = timedelta(hours=12)

_T = TypeVar("_T")


def share(size: int, rank: int, ranks: int) -> range:
    """The places of a global batch of so many pairs that a rank has."""
    return range(rank * size // ranks, (rank + 1) * size // ranks)


@dataclass(frozen=True)
class Ranks:
    """This process among those that torchrun has started; alone where it has not."""

    rank: int
    ranks: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes files and speaks."""
        return self.rank == 0

    @property
    def of_machine(self) -> int:
        """How many of them are on this machine, as torchrun says."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.ranks > 1:
            distributed.barrier()

    def any(self, value: int) -> int:
        """The largest of all ranks' values: what one has met, all have met."""
        if self.ranks == 1:
            return value
        largest = torch.tensor(value, device=self.device)
        distributed.all_reduce(largest, distributed.ReduceOp.MAX)
        return int(largest)

    def gathered(self, own: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor, all of one shape."""
        parts = [torch.empty_like(own) for _ in range(self.ranks)]
        distributed.all_gather(parts, own.contiguous())
        return parts

    def first_then_others(self, make: Callable[[], _T]) -> _T:
        """What every rank makes, the others of what rank 0 has left behind."""
        if self.is_first:
            made = make()
            self.wait()
            return made
        self.wait()
        return make()

    def told(self, value: Any) -> Any:
        """What rank 0 has, on every rank."""
        if self.ranks == 1:
            return value
        held = [value]
        distributed.broadcast_object_list(held, device=self.device)
        return held[0]


@contextmanager
def joined(device: Literal["auto", "cpu", "cuda"]) -> Iterator[Ranks]:
    """Join the processes of torchrun, gloo on CPUs and NCCL on GPUs; nothing to join where this one was started alone.

    Raises:
        UsageError: a GPU is asked for and there is none.
        AltalignError: another process has ended while this one waited for it.
    """
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise UsageError('[loop] device = "cuda": torch sees no GPU here; give device = "auto" or "cpu"')
    on_gpu = has_gpu and device != "cpu"
    ranks, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    if on_gpu and local >= torch.cuda.device_count():
        raise UsageError(
            f"process {local} of this machine has no GPU, there are {torch.cuda.device_count()}; give torchrun "
            "--nproc-per-node that many"
        )
    chosen = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(chosen)
    if ranks == 1:
        yield Ranks(0, 1, chosen)
        return
    try:
        distributed.init_process_group("nccl" if on_gpu else "gloo", timeout=WAIT, device_id=chosen if on_gpu else None)
        yield Ranks(distributed.get_rank(), ranks, chosen)
        # not after an error: NCCL would wait there for the others, which wait for this one
        distributed.destroy_process_group()
    except RuntimeError as error:
        said = " ".join(str(error).split())
        if not isinstance(error, distributed.DistError) and "gloo" not in said:  # which has no type of error for it
            raise
        words = said.rpartition("] ")[2].partition(". ")[0]
        raise AltalignError(
            f"another process of this training has ended, or is not heard any more ({words}); look at what it said; "
            "run it again, it continues"
        ) from None
