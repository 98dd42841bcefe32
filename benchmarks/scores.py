"""Selecting among 10 M samples by three scores, scoring captions by language and by their text, and balancing them.

    python -m benchmarks.scores [--rows 10000000] [--captions 2000000] [--rounds 3]

Shards to select from are made of a few that are linked often: their side-cars and scores are read, and no image. So a
round reads as many rows as a run of that size has. Captions are those of the text stage's benchmark; the classifier has
the shape of fastText's lid.176 and weights drawn at random; 500,000 concepts are words that stand in captions, and up
to three side by side. CPU seconds are of the whole command, start-up included.
"""

import argparse
import shutil
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness import ALTALIGN, CACHE, OURS, ROOT, Program, interleave, scratch
from benchmarks.processes import Figures, ProgramError, measure
from benchmarks.report import OUR_PACKAGES, target, write
from benchmarks.rows import MissingError, rows
from benchmarks.score_runs import took

ROWS, CAPTIONS, ROUNDS = 10_000_000, 2_000_000, 3
CPU_S_AT_MOST, BYTES_AT_MOST, CAPTIONS_PER_S, BALANCED_PER_CPU_MINUTE = 20, 500e6, 150_000, 1e6
BALANCE = "select --balance"
WHERE = "similarity >= 0.28 AND watermark < 0.5 AND language = 'en'"
SELECTIONS = {
    "select --where": ("--where", WHERE),
    "select --top": ("--top", "similarity=0.3"),
    "select both": ("--where", "watermark < 0.5 AND language = 'en'", "--top", "similarity=0.3"),
}
SCORES = (
    '[[score]]\nname = "text"\nkind = "text"\n\n[[score]]\nname = "language"\nkind = "language"\nmodel = "lid.bin"\n'
)


def main() -> int:
    """Make runs, measure, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--captions", type=int, default=CAPTIONS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, default=CACHE)
    arguments = parser.parse_args()
    try:
        return measured(arguments.rows, arguments.captions, arguments.rounds, arguments.folder.absolute())
    except (MissingError, ProgramError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


def measured(count: int, captions: int, rounds: int, folder: Path) -> int:
    """All rounds."""
    data = rows(5_000_000, folder)
    with scratch(folder) as place:
        measure([str(OURS), "-m", "benchmarks.score_runs", str(place), str(count), str(captions), str(data)], ROOT)
        of_select = [select(place, name, words) for name, words in SELECTIONS.items()]
        done = interleave([*of_select, balance(place), score(place, captions)], rounds)
    targets = []
    for name in SELECTIONS:
        cpu_s = median(done, name, "cpu_s")
        targets.append(target(f"CPU seconds of `{name}`, {count:,} rows", cpu_s, at_most=CPU_S_AT_MOST))
        if all(peak := [each[name]["peak_bytes"] for each in done]):
            targets.append(target(f"peak memory of `{name}`, bytes", max(peak), at_most=BYTES_AT_MOST))
    per_s = median(done, "score language, text", "captions_per_s")
    targets.append(target("captions a second of `language` and `text`", per_s, at_least=CAPTIONS_PER_S))
    per_minute = 60 * captions / median(done, BALANCE, "cpu_s")
    targets.append(target(f"captions a minute and core of `{BALANCE}`", per_minute, at_least=BALANCED_PER_CPU_MINUTE))
    is_full = (count, captions) == (ROWS, CAPTIONS)
    ours = {"ours": (OURS, OUR_PACKAGES)}
    write("scores", done, targets, is_full=is_full, environments=ours, rows=count, captions=captions)
    return 0


def median(done: Sequence[dict[str, Figures]], name: str, figure: str) -> float:
    """The median of a program's figure."""
    return statistics.median(each[name][figure] for each in done)


def select(place: Path, name: str, words: Sequence[str]) -> Program:
    """One selection of keys."""
    out = place / "out"
    argv = [*ALTALIGN, "select", "selected", str(out), *words, "--keys-only"]
    return Program(name, argv, folder=place, prepare=lambda: shutil.rmtree(out, ignore_errors=True))


def balance(place: Path) -> Program:
    """Concepts counted in all captions, and lots."""
    out = place / "out"
    words = ("--balance", "entries.txt", "--balance-limit", "1000", "--keys-only")
    argv = [*ALTALIGN, "select", "scored", str(out), *words]
    return Program(BALANCE, argv, folder=place, prepare=lambda: shutil.rmtree(out, ignore_errors=True))


def score(place: Path, captions: int) -> Program:
    """Both scores of captions."""

    def prepare() -> None:
        shutil.rmtree(place / "scored" / "scores", ignore_errors=True)
        (place / "scores.toml").write_text(SCORES, encoding="utf-8")

    argv = [*ALTALIGN, "score", "scored", "--with", "scores.toml"]
    return Program("score language, text", argv, folder=place, prepare=prepare, says=partial(rate, captions))


def rate(captions: int, output: str) -> Figures:
    """Captions a second by the clock of the step."""
    return {"captions_per_s": captions / took(output)}


if __name__ == "__main__":
    sys.exit(main())
