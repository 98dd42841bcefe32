"""How much memory a command has, what a curation needs, and how its work is made to fit. No result depends on it.

Measured with 64-bit Linux, Python 3.11 and 3.12: 500,000 captions took 0.48 GB with one thread and 0.57 GB with two to
four, the demo web 0.35, 0.42 and 0.53 GB with one, two and four; 0.4 GB more of address space, with the settings of
`startup.prepare`.
"""

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from altalign.errors import UsageError
from altalign.machine.cores import control_groups

MB = 1_000_000
PROCESS_BYTES = 300 * MB  # of a process beside the command's own, with one decoded image
_BASE_BYTES = 400 * MB
_BYTES_PER_THREAD = 150 * MB
_ADDRESS_SPACE_BYTES = 400 * MB  # beside what is used: libraries, stacks, what allocators reserve
SMALL_BYTES = 32 * MB  # what a thread may take without asking: it is in _BYTES_PER_THREAD
_AMPLE_BYTES = 8_000 * MB  # more than two of the largest images of the default settings: nobody has to ask
_NOTHING = "nothing"  # is known to limit memory


class Free(NamedTuple):
    """Free bytes, what limits them, and whether the limit counts addresses instead of use."""

    bytes: int
    limit: str
    is_address_space: bool = False


def free(root: Path = Path("/")) -> Free:
    """The scarcest of what limits memory: the machine, control groups, `ulimit -v` and `-d`."""
    limits = [Free(1 << 62, _NOTHING)]
    for place in control_groups(root):
        with suppress(OSError, ValueError):  # a group without a limit has "max"
            most, used = (int((place / f"memory.{name}").read_text(encoding="utf-8")) for name in ("max", "current"))
            facts = _numbers(place / "memory.stat")
            files = facts.get("inactive_file", 0) + facts.get("active_file", 0)  # given back when it is needed
            limits.append(Free(most - used + files, f"control group {place}"))
    facts = _numbers(root / "proc/meminfo")
    if "MemAvailable" in facts:
        limits.append(Free(facts["MemAvailable"] + facts.get("SwapFree", 0), "the machine"))
    facts = _numbers(root / "proc/self/status")
    for limit, used, name in (
        (resource.RLIMIT_AS, "VmSize", "ulimit -v"),
        (resource.RLIMIT_DATA, "VmData", "ulimit -d"),
    ):
        if (most := resource.getrlimit(limit)[0]) != resource.RLIM_INFINITY:
            limits.append(Free(max(0, most - facts.get(used, 0)), name, limit == resource.RLIMIT_AS))
    return min(limits, key=lambda each: each.bytes - each.is_address_space * _ADDRESS_SPACE_BYTES)


def _numbers(file: Path) -> dict[str, int]:
    """NAME NUMBER or NAME: NUMBER kB of every line; empty where there is no such file."""
    lines = list[list[str]]()
    with suppress(OSError):
        lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    numbers = [line for line in lines if len(line) > 1 and line[1].isdecimal()]
    return {name.rstrip(":"): int(number) * (1024 if unit == ["kB"] else 1) for name, number, *unit in numbers}


def workers_at_most(workers: int, available: Free) -> int:
    """How many of so many workers of a curation there is memory for; UsageError where it is too little for one."""
    base = _BASE_BYTES + available.is_address_space * _ADDRESS_SPACE_BYTES
    if available.bytes < base + _BYTES_PER_THREAD:
        raise UsageError(
            f"not enough memory: a curation takes {(base + _BYTES_PER_THREAD) // MB:,} MB, "
            f"and {available.bytes // MB:,} MB are free ({available.limit}); give it more"
        )
    return min(workers, (available.bytes - base) // _BYTES_PER_THREAD)


def processes_beside() -> int:
    """How many processes there is memory for, beside what is ample; none where it is not known, or a `ulimit -v`."""
    room = free()
    if room.is_address_space or room.limit == _NOTHING:
        return 0
    return max(0, room.bytes - _BASE_BYTES - _BYTES_PER_THREAD - _AMPLE_BYTES * 4 // 3) // PROCESS_BYTES


# Large images ---------------------------------------------------------------------------------------------------------


class _Spare:
    """Memory that threads share for large images."""

    def __init__(self, most: int):
        self.bytes = self.left = most
        self.changed = threading.Condition()


_ONE = threading.Lock()
_spare = cache(lambda: _Spare(free().bytes * 3 // 4))


def spare() -> _Spare:
    """Three quarters of what is free when the first image is decoded; of the process."""
    with _ONE:
        return _spare()


def is_ample() -> bool:
    """Whether there is so much memory that no thread has to reserve it."""
    return spare().bytes >= _AMPLE_BYTES


@contextmanager
def reserved(size: int) -> Iterator[None]:
    """Reserves bytes for this block; waits while other threads hold them. MemoryError: there never are so many."""
    if size <= SMALL_BYTES:
        yield
        return
    of_process = spare()
    if size > of_process.bytes:
        raise MemoryError(f"{size // MB:,} MB needed, {of_process.bytes // MB:,} MB free")
    with of_process.changed:
        of_process.changed.wait_for(lambda: of_process.left >= size)
        of_process.left -= size
    try:
        yield
    finally:
        with of_process.changed:
            of_process.left += size
            of_process.changed.notify_all()
