"""Fuzzes for a while with random seeds: `make fuzz SECONDS=… SEED=…`.

Workers do it, who may die; what killed them is kept, and how to run it again.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.targets import PLANTED, TARGETS
from tests.fuzz.worker import CPU_S, keep

ROOT = Path(__file__).parents[2]
_FIRST_INPUTS, _INPUTS_AT_MOST, _WORKER_S = 20, 5_000, 15.0  # of a worker: as many inputs as take about so long
_DIED = "the process ended"
_TAIL = 6_000  # characters of what a dead worker said


@dataclass
class Tally:
    """What is known of one target."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: tuple[float, str] = (0.0, "")
    largest_mb: tuple[int, str] = (0, "")
    findings: list[list[str]] = field(default_factory=list)


def work(targets: dict[str, int], seed: str, folder: Path, *, cpu_s: float = CPU_S) -> dict[str, Tally]:
    """Give a worker process so many inputs of each target; what it found, its own death included."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.fuzz.worker", *(f"{name}:{inputs}" for name, inputs in targets.items())]
    command += ["--seed", seed, "--folder", str(folder), "--cpu-seconds", str(cpu_s)]
    worker = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=sum({**TARGETS, **PLANTED}[name].wall_s * (10 + inputs) for name, inputs in targets.items()),
        check=False,
    )
    tallies = {}
    for line in worker.stdout.splitlines():
        found = json.loads(line)
        name = found["target"]
        (slowest, at), (largest, where) = found["slowest_s"], found["largest_mb"]
        tallies[name] = Tally(
            found["inputs"],
            Counter(found["outcomes"]),
            (slowest, f"{seed} {at}"),
            (largest, f"{seed} {where}"),
            found["findings"],
        )
    if worker.returncode:
        name, number = (
            next(name for name in targets if name not in tallies),
            (folder / "at").read_text().split()[-1] if (folder / "at").exists() else "first",
        )
        what = f"{_DIED} with {worker.returncode} (below zero: by that signal)\n{worker.stderr[-_TAIL:]}"
        tallies[name] = Tally(findings=[keep(folder, folder / "findings" / f"{name}-{seed}-{number}", what)])
    return tallies


def add(total: Tally, more: Tally) -> None:
    """Count another worker in."""
    total.inputs += more.inputs
    total.outcomes += more.outcomes
    total.slowest_s, total.largest_mb = max(total.slowest_s, more.slowest_s), max(total.largest_mb, more.largest_mb)
    total.findings += more.findings


def campaign(names: list[str], seconds: float, seed: str, folder: Path) -> dict[str, Tally]:
    """Take the targets in turn until the time is up."""
    end, totals, turn = time.monotonic() + seconds, {name: Tally() for name in names}, 0
    inputs = dict.fromkeys(names, _FIRST_INPUTS)
    while time.monotonic() < end:
        for name in names:
            if time.monotonic() >= end:
                break
            with TemporaryDirectory() as here:
                started = time.monotonic()
                for found in work({name: inputs[name]}, f"{seed}.{turn}", Path(here)).values():
                    for finding in found.findings:
                        finding[0] = finding[0].replace(here, str(folder))
                        report(finding)
                    add(totals[name], found)
                findings = Path(here, "findings")
                if findings.exists():
                    folder.mkdir(parents=True, exist_ok=True)
                    subprocess.run(["cp", "-r", str(findings), str(folder)], check=True)
            inputs[name] = min(_INPUTS_AT_MOST, max(2, int(inputs[name] * _WORKER_S / (time.monotonic() - started))))
        turn += 1
    return totals


def report(finding: list[str]) -> None:
    """Say what is wrong, and how to see it again."""
    again, what = finding
    lines = what.strip().splitlines()
    said = " ".join(lines[:4]) if what.startswith(_DIED) else lines[-1]
    sys.stdout.write(f"FOUND {said[:300]}\n  {again}\n")
    sys.stdout.flush()


def main() -> int:
    """Exit code 1 where anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.campaign")
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; all where none is named")
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--seed", default="")
    parser.add_argument("--folder", type=Path, default=Path("runs/fuzz"))
    given = parser.parse_args()
    seed = given.seed or os.urandom(4).hex()
    sys.stdout.write(f"seed {seed}; findings go to {given.folder}/findings\n")
    totals = campaign(given.targets or list(TARGETS), given.seconds, seed, given.folder.absolute())
    sys.stdout.write(f"{'target':<16}{'inputs':>8}  {'slowest':>8}  {'memory':>7}  {'found':>5}  outcomes\n")
    for name, tally in totals.items():
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in tally.outcomes.most_common())
        sys.stdout.write(
            f"{name:<16}{tally.inputs:>8}  {tally.slowest_s[0]:>6.2f} s  {tally.largest_mb[0]:>4} MB  "
            f"{len(tally.findings):>5}  {outcomes}\n"
        )
    return 1 if any(tally.findings for tally in totals.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
