"""Rounds of programs that are compared; medians and ranges.

Rounds are interleaved, so that a busy quarter of an hour hits all programs.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import Figures, ProgramError, measure

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache" / "bench"  # made once, read by later runs
OURS = ROOT / ".venv" / "bin" / "python"  # with altalign
READERS = ROOT / ".venv-readers" / "bin" / "python"  # with torch: altalign's trainer, and its peers
PEERS = ROOT / ".venv-bench" / "bin" / "python"
ALTALIGN = (str(OURS.with_name("altalign")),)
DISTURBED_ABOVE = 0.25  # of the cores: a run beside which others took more is named

Round = dict[str, Figures]


def command(document: str | None, compete: Callable[..., int | None], **options: Any) -> int:
    """The command line of a benchmark: calls `compete` with `--folder` and these options; the exit code.

    Args:
        document: what `--help` shows.
        compete: generates, runs, writes the results; 1 where they are wrong.
        options: names and defaults of further options; a list takes several values.
    """
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, default=CACHE, help="of what is made once; what runs leave goes below it and is deleted"
    )
    for name, default in options.items():
        several: dict[str, Any] = {"nargs": "+"} if isinstance(default, list) else {"type": type(default)}
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, **several)
    arguments = parser.parse_args()
    try:
        return compete(**{**vars(arguments), "folder": arguments.folder.absolute()}) or 0
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _silent(_: str) -> Figures:
    return {}


@dataclass(frozen=True)
class Program:
    """One contestant: how it is run, and how its own figures are read."""

    name: str
    argv: Sequence[str]
    folder: Path = ROOT
    prepare: Callable[[], object] | None = None  # before each run, not measured
    says: Callable[[str], Figures] = _silent  # further figures, from what it printed or left


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A new folder below this one for what runs leave; deleted at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="scratch-") as name:
        yield Path(name).absolute()


def last_json(output: str) -> Figures:
    """The last line of a program's output that is a JSON object."""
    return json.loads(next(line for line in reversed(output.splitlines()) if line.startswith("{")))


def interleave(programs: Sequence[Program], rounds: int, *, warm_up: bool = True) -> list[Round]:
    """All programs once a round, in order; a round to warm caches and compile kernels comes first and is left out.

    Raises:
        ProgramError: one of them failed.
    """
    done: list[Round] = []
    for number in range(0 if warm_up else 1, rounds + 1):
        figures: Round = {}
        for program in programs:
            if program.prepare:
                program.prepare()
            os.sync()  # what was written before is not this program's cost
            measured, output = measure(program.argv, program.folder)
            figures[program.name] = {"work_cpu_s": measured["cpu_s"]} | measured | program.says(output)
            print(
                f"{f'round {number}' if number else 'warm-up':<8} {program.name:<28} {_brief(figures[program.name])}",
                flush=True,
            )
        if number:
            done.append(figures)
    return done


def _brief(figures: Figures) -> str:
    memory = figures["peak_bytes"]
    return (
        f"{figures['wall_s']:8.1f} s {figures['cpu_s']:8.1f} CPU s {(memory or 0) / 1e9:6.2f} GB   load "
        f"{figures['load']:.1f}"
    )


def summary(rounds: Sequence[Round]) -> dict[str, dict[str, dict[str, float]]]:
    """Median, least and most of every figure of every program that is a number whenever it ran."""
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for program in dict.fromkeys(name for done in rounds for name in done):
        ran = [done[program] for done in rounds if program in done]
        columns = {name: [run.get(name) for run in ran] for name in ran[0]}
        figures[program] = {
            name: _spread(values)
            for name, values in columns.items()
            if all(isinstance(value, int | float) for value in values)
        }
    return figures


def _spread(values: Sequence[Any]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def ratio(rounds: Sequence[Round], figure: str, over: str, under: str) -> dict[str, float]:
    """One program's figure by another's, of the same round: the median, least and most of all rounds."""
    return _spread([r[over][figure] / r[under][figure] for r in rounds])


def disturbed(rounds: Sequence[Round]) -> list[str]:
    """The runs that other processes disturbed; they stay in the figures."""
    cores, found = os.cpu_count() or 1, []
    for number, done in enumerate(rounds, 1):
        for name, figures in done.items():
            others = figures["others_cores"] or 0.0
            if others > DISTURBED_ABOVE * cores:
                found.append(f"round {number}, {name}: others kept {others:.1f} of {cores} cores busy")
    return found
