"""A program and all that it starts, measured: wall and CPU seconds, and memory.

It says too what the rest of the machine did meanwhile.

CPU seconds are the kernel's, of the program and of all that it started, also of what outlives it a little (a JVM);
without /proc, of those that it waited for. Memory is read from /proc every 50 ms, summed over the tree;
where there is no /proc it is None.
"""

import ctypes
import os
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROC = Path("/proc")
SAMPLE_EVERY_S = 0.05
TREE_EVERY = 4  # samples: new processes are looked for less often, for it means reading all of /proc
OUTPUT_SHOWN = 2_000  # characters of a failed program's output
ORPHANS_END_WITHIN_S = 10.0
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

Figures = dict[str, Any]


class ProgramError(Exception):
    """A program that was to be measured failed."""


def _environment() -> dict[str, str]:
    """That of this process; but bytecode is kept, as where a package is installed, and not compiled at each start."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def measure(argv: Sequence[str], folder: Path) -> tuple[Figures, str]:
    """Run a program to its end in a folder: its figures, and what it printed.

    wall_s, cpu_s, cores_busy (the one by the other); written_bytes (to files on disks, also to those that are deleted
    before the disk has them; none in memory); peak_bytes (resident), peak_unmapped_bytes (the same without pages
    of mapped files); load (of the machine, a minute's mean, before), others_cores
    (cores that everything else kept busy, the hypervisor included).

    Raises:
        ProgramError: it is not there, or ended with another code than 0.
    """
    if shutil.which(argv[0]) is None:
        raise ProgramError(f"{argv[0]}: no such program; `make bench` makes the environments that it starts")
    if PROC.is_dir():
        # what a program leaves running becomes our child, whose CPU seconds we are told
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    others = _descendants({os.getpid()})
    load, busy, begin, before = os.getloadavg()[0], _busy_seconds(), time.perf_counter(), _of_children()
    process = subprocess.Popen(argv, cwd=folder, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    try:
        with Watch(process.pid) as watch, process.stdout:
            output = process.stdout.read().decode(errors="replace")
            _, status = os.waitpid(process.pid, 0)
            _reap(_descendants({os.getpid()}) - others)
        process.returncode = os.waitstatus_to_exitcode(status)
    except BaseException:
        process.kill()
        process.wait()
        raise
    wall, after, busy_after = time.perf_counter() - begin, _of_children(), _busy_seconds()
    cpu = after[0] - before[0]
    if process.returncode:
        raise ProgramError(f"{' '.join(argv)}: ended with {process.returncode}\n{output[-OUTPUT_SHOWN:]}")
    others_cores = None if busy is None or busy_after is None else max(0.0, busy_after - busy - cpu) / wall
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "cores_busy": cpu / wall,
        "written_bytes": after[1] - before[1],
        **watch.figures(),
        "load": load,
        "others_cores": others_cores,
    }, output


class Watch:
    """Samples the tree below a process, in a thread of its own, while its context is open."""

    def __init__(self, pid: int):
        self._pids = {pid}
        self._peaks: dict[str, int] = {"peak_bytes": 0, "peak_unmapped_bytes": 0}
        self._samples, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def figures(self) -> Figures:
        """Most of each at any moment; None where nothing could be read."""
        return {name: peak or None for name, peak in self._peaks.items()}

    def _loop(self) -> None:
        while PROC.is_dir() and not self._ended.wait(SAMPLE_EVERY_S if self._samples else 0):
            if self._samples % TREE_EVERY == 0:
                self._pids |= _descendants(self._pids)
            self._samples += 1
            states = [_status(pid) for pid in self._pids]
            # A process' own high-water mark sees what falls between two samples.
            self._keep(
                "peak_bytes",
                sum(state.get("VmRSS", 0) for state in states),
                *(state.get("VmHWM", 0) for state in states),
            )
            self._keep(
                "peak_unmapped_bytes", sum(state.get("RssAnon", 0) + state.get("RssShmem", 0) for state in states)
            )

    def _keep(self, name: str, *values: int) -> None:
        self._peaks[name] = max(self._peaks[name], *values)


def _status(pid: int) -> dict[str, int]:
    """Sizes of a process in bytes; none of one that has ended."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return {}
    return {
        name: int(value.split()[0]) * 1024
        for name, _, value in (line.partition(":") for line in lines)
        if value.endswith(" kB")
    }


def _descendants(pids: set[int]) -> set[int]:
    """Children of these processes, and theirs."""
    parents: dict[int, int] = {}
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has ended
    found, new = set[int](), pids
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found


def _reap(left: set[int]) -> None:
    """Wait for a while for the children that a program left behind."""
    end = time.monotonic() + ORPHANS_END_WITHIN_S
    while (left := {pid for pid in left if _is_at_work(pid)}) and time.monotonic() < end:
        time.sleep(SAMPLE_EVERY_S)


def _is_at_work(pid: int) -> bool:
    """Whether a child of ours has not ended yet."""
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:  # ended and waited for before
        return False


def _of_children() -> tuple[float, int]:
    """CPU seconds of all processes that we have waited for, and the bytes that they gave to disks."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime, 512 * usage.ru_oublock


def _busy_seconds() -> float | None:
    """Seconds that all cores were busy since the machine started.

    They include the time that a hypervisor took from the cores.
    """
    try:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, (PROC / "stat").read_text().split()[1:9])
    except OSError:
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
