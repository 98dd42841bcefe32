"""The processes of a training run: which one this is, on which device, and what all of them have to agree on."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
from torch import distributed

from altalign.errors import AltalignError, UsageError
from altalign.machine import interrupts
from altalign.train.settings.types import Device

# A rank waits this long for the others, in the worst case while rank 0 trains a tokenizer and indexes billions of
# pairs.
WAIT = timedelta(hours=12)

_TO_TELL_S, _ASK_AGAIN_S = 5.0, 0.05  # ranks that miss others tell each other within it

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
        """Whether this rank writes files and prints."""
        return self.rank == 0

    @property
    def is_first_of_machine(self) -> bool:
        """Whether this rank is the first of those that torchrun has started on this machine."""
        return os.environ.get("LOCAL_RANK", str(self.rank)) == "0"

    @property
    def of_machine(self) -> int:
        """How many ranks torchrun says are on this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def expect(self, wait: timedelta) -> None:
        """From now on the others are waited for so long."""
        if self.ranks > 1:
            for_all = getattr(distributed, "set_timeout", None) or distributed.distributed_c10d._set_pg_timeout  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue] - before torch 2.15
            for_all(wait)

    def noted(self, step: int) -> None:
        """Note where all ranks can read it that this one is at a step."""
        if self.ranks > 1:
            _note("at", self.rank, f"{_here()}, step {step:,}")

    def wait(self) -> None:
        """Wait until all ranks are here."""
        if self.ranks > 1:
            distributed.barrier()

    def any(self, value: int) -> int:
        """The largest value of all ranks."""
        if self.ranks == 1:
            return value
        largest = torch.tensor(value, device=self.device)
        distributed.all_reduce(largest, distributed.ReduceOp.MAX)
        return int(largest)

    def gathered(self, own: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all ranks; they have one shape."""
        parts = [torch.empty_like(own) for _ in range(self.ranks)]
        distributed.all_gather(parts, own.contiguous())
        return parts

    def first_then_others(self, make: Callable[[], _T]) -> _T:
        """The result of `make` on every rank: rank 0 first, then the first of each machine, then the others."""
        turn = 0 if self.is_first else 1 if self.is_first_of_machine else 2
        for _ in range(turn):
            self.wait()
        made = make()
        for _ in range(turn, 2):
            self.wait()
        return made

    def of_first(self, value: object) -> Any:
        """Rank 0's value, on every rank."""
        if self.ranks == 1:
            return value
        held = [value]
        distributed.broadcast_object_list(held, device=self.device)
        return held[0]


def device_of(device: Device) -> torch.device:
    """What this process computes on; of several on a machine each has a GPU. Raises UsageError: there is none."""
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise UsageError('[loop] device = "cuda": torch sees no GPU here; give device = "auto" or "cpu"')
    if not has_gpu or device == "cpu":
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= torch.cuda.device_count():
        why = f"has no GPU, there are {torch.cuda.device_count()}"
        raise UsageError(f"process {local} of this machine {why}; give torchrun --nproc-per-node that many")
    return torch.device("cuda", local)


@contextmanager
def joined(device: Device) -> Iterator[Ranks]:
    """Join the processes of torchrun, gloo on CPUs and NCCL on GPUs; a nested call gives the outer's."""
    chosen, ranks = device_of(device), int(os.environ.get("WORLD_SIZE", "1"))
    on_gpu = chosen.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(chosen)
    if ranks == 1:
        yield Ranks(0, 1, chosen)
        return
    if distributed.is_initialized():
        yield Ranks(distributed.get_rank(), ranks, chosen)
        return
    rank = int(os.environ.get("RANK", "0"))
    try:
        distributed.init_process_group("nccl" if on_gpu else "gloo", timeout=WAIT, device_id=chosen if on_gpu else None)
        rank = distributed.get_rank()
        _note("at", rank, _here())
        yield Ranks(rank, ranks, chosen)
        # not after an error: NCCL would wait there for the others, which wait for this one
        distributed.destroy_process_group()
    except BaseException as error:
        message = " ".join(str(error).split())
        # gloo has no type of error for it
        if not (isinstance(error, distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in message)):
            _note("ended", rank, message or type(error).__name__)
            raise
        with interrupts.deferred():  # a launcher ends all when one has ended; what is known is printed before
            lost = _lost(rank, ranks)
        why = f"has ended, or is not heard any more ({message.rpartition('] ')[2].partition('. ')[0]}){lost}"
        advice = "look at what it said; run it again, it continues"
        raise AltalignError(f"another process of this training {why}; {advice}") from None


# What ranks leave in the store that all have met at, which may be gone ------------------------------------------------


def _here() -> str:
    return f"{socket.gethostname()}, process {os.getpid()}"


def _note(what: Literal["at", "ended"], rank: int, words: str) -> None:
    with suppress(RuntimeError, ValueError):
        distributed.distributed_c10d._get_default_store().set(f"altalign {what} {rank}", words)  # pyright: ignore[reportPrivateUsage] - no other name


def _noted(what: Literal["at", "ended"], rank: int) -> str | None:
    with suppress(RuntimeError, ValueError):
        store = distributed.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage] - no other name
        if store.check([name := f"altalign {what} {rank}"]):
            return store.get(name).decode()
    return None


def _lost(rank: int, ranks: int) -> str:
    """Which ranks have said why they ended, and which have said nothing while the others missed them."""
    _note("ended", rank, "")  # for no reason of its own
    until, why = time.monotonic() + _TO_TELL_S, {rank: ""}
    while len(why) < ranks and time.monotonic() < until:
        for other in set(range(ranks)) - why.keys():
            if (words := _noted("ended", other)) is not None:
                why[other] = words
        time.sleep(_ASK_AGAIN_S)
    lost = [other for other in range(ranks) if why.get(other) != ""]
    words = [f"rank {one} ({_noted('at', one) or 'never heard'}): {why.get(one, 'it says nothing')}" for one in lost]
    return ": " + "; ".join(words) if words else ""
