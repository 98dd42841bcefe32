"""Runs inputs of targets in this process, which may die of one: `python -m tests.fuzz.worker`. Started by `campaign`.

The input at work lies in a file, so that it is there when the process is not. Limits that end the process: CPU seconds
and wall seconds for one input, and address space.
"""

import argparse
import faulthandler
import json
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from random import Random

from tests.fuzz.target import MB, Target
from tests.fuzz.targets import PLANTED, TARGETS
from tests.peak import peak_bytes

CPU_S = 20.0  # for one input; what is linear takes milliseconds
_EVERY = {**TARGETS, **PLANTED}
_ADDRESS_SPACE = 6 << 30  # LLVM, Arrow and thread stacks reserve gigabytes that they never use


def paths_of(folder: Path, target: Target) -> tuple[Path, Path]:
    """The input at work, and the file that it was made of."""
    return folder / f"input{target.suffix}", folder / f"original{target.suffix}"


def run(name: str, seed: str, numbers: range, folder: Path, cpu_s: float) -> dict[str, object]:
    """Make and check inputs; keep those that something is wrong with."""
    target, outcomes, slowest, largest = _EVERY[name], Counter[str](), (0.0, -1), (0, -1)
    findings = []
    for number in numbers:
        make(name, seed, number, folder)
        try:
            outcome, seconds, bytes_more = check(target, folder, cpu_s)
        except Exception:  # whatever it is, it is a finding
            signal.setitimer(signal.ITIMER_PROF, 0)
            findings.append(keep(folder, folder / "findings" / f"{name}-{seed}-{number}", traceback.format_exc()))
            continue
        outcomes[outcome] += 1
        slowest, largest = max(slowest, (seconds, number)), max(largest, (bytes_more, number))
    measured = {"slowest_s": slowest, "largest_mb": (largest[0] >> 20, largest[1])}
    return {"target": name, "inputs": len(numbers), "outcomes": outcomes, **measured, "findings": findings}


def make(name: str, seed: str, number: int, folder: Path) -> None:
    """Write the input of this number, and what it was made of."""
    original, mutated = _EVERY[name].make(Random(f"{name} {seed} {number}"))
    for path, data in zip(paths_of(folder, _EVERY[name]), (mutated, original), strict=True):
        path.write_bytes(data)
    (folder / "at").write_text(f"{name} {seed} {number}")


def keep(folder: Path, to: Path, what: str) -> list[str]:
    """Copy the input at work to a folder of its own, and say how to run it again: [command, what is wrong]."""
    to.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.*"):
        shutil.copy(path, to)
    (to / "what.txt").write_text(what)
    return [f"{sys.executable} -m tests.fuzz.worker {to.name.split('-')[0]} --again {to}", what]


def check(target: Target, folder: Path, cpu_s: float) -> tuple[str, float, int]:
    """Check the input that lies in a folder, under all limits: outcome, CPU seconds, bytes of memory that it took."""
    path, original = paths_of(folder, target)
    signal.setitimer(signal.ITIMER_PROF, 0 if target.watches else cpu_s)
    faulthandler.dump_traceback_later(target.wall_s, exit=True)
    before, started = _reset_peak(), time.process_time()
    outcome = target.check(path, original.read_bytes())
    seconds, bytes_more = time.process_time() - started, peak_bytes() - before
    faulthandler.cancel_dump_traceback_later()
    signal.setitimer(signal.ITIMER_PROF, 0)
    assert bytes_more <= target.memory, f"it took {bytes_more // MB} MB of memory"
    return outcome, seconds, bytes_more


def _reset_peak() -> int:
    """Forget the peak of resident memory; what is resident now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0 if sys.platform == "linux" else sys.maxsize
    return peak_bytes()


def _limit() -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, all_threads=True, chain=True)  # then the default: the process ends
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("error")


def _warm_up(name: str, folder: Path) -> None:
    """Load and compile what is loaded and compiled once: that is not the input's time and memory."""
    target = _EVERY[name]
    original, _ = target.make(Random(0))
    if not original:
        return
    for path in paths_of(folder, target):
        path.write_bytes(original)
    target.check(paths_of(folder, target)[0], original)


def main() -> int:
    """`TARGET:COUNT … --seed S --first N --folder F`, or one input again: `TARGET --again FOLDER`."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.worker")
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--cpu-seconds", type=float, default=CPU_S)
    parser.add_argument("--again", type=Path)
    given = parser.parse_args()
    _limit()
    if given.again:
        sys.stdout.write(f"{check(_EVERY[given.targets[0]], given.again, given.cpu_seconds)}\n")
        return 0
    for each in given.targets:
        name, _, count = each.partition(":")
        _warm_up(name, given.folder)
        result = run(name, given.seed, range(given.first, given.first + int(count)), given.folder, given.cpu_seconds)
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
