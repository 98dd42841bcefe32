"""Text stages at 25 M rows beside polars, and at 100 M rows with two sizes of vocabulary.

The question is whether the cost of a row stays the same.

    python -m benchmarks.scale [--rounds 3] [--large-rounds 1] [--duckdb]

By hand: a quarter of an hour on two cores, and 100 M rows need 30 GB of disk. The larger runs come last: what they
write and read fills the memory that files are kept in, and whoever ran next would pay for emptying it. A run's counters
(bytes spilled, partitions, tables) are kept with its figures: the arithmetic of docs/concepts/scale.md is checked
against them.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import text
from benchmarks.harness import CACHE, OURS, ROOT, Program, Round, interleave, last_json, ratio, scratch, summary
from benchmarks.processes import Figures, ProgramError, measure
from benchmarks.report import target, write
from benchmarks.rows import MissingError, rows, script

SMALL, LARGE, ROUNDS = 25_000_000, 100_000_000, 3
LARGE_VOCABULARY = 20_000_000
UNMAPPED_BYTES_AT_MOST = 1e9
OPEN_FILES_AT_MOST = 256  # a quarter of the 1,024 that a process may commonly open


def main() -> int:
    """Generate, run, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of the smaller size, beside peers")
    parser.add_argument("--large-rounds", type=int, default=1, help="of the larger one, which has none")
    parser.add_argument("--small", type=int, default=SMALL, help="rows with polars")
    parser.add_argument("--large", type=int, default=LARGE, help="rows without")
    parser.add_argument("--large-vocabulary", type=int, default=LARGE_VOCABULARY)
    parser.add_argument(
        "--duckdb", action="store_true", help="duckdb too, at the smaller size (12 GB of memory, minutes a round)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=CACHE,
        help="where rows are, or are put; what runs leave goes to a folder below it and is deleted",
    )
    arguments = parser.parse_args()
    if arguments.small >= arguments.large or arguments.large_vocabulary == text.VOCABULARY_SIZE:
        parser.error("the two sizes, and the two vocabularies, must differ")
    try:
        compete(arguments, arguments.folder.absolute())
    except (MissingError, ProgramError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def compete(arguments: argparse.Namespace, folder: Path) -> None:
    """The smaller size with its peers, then the larger one with both vocabularies."""
    large, small = rows(arguments.large, folder), rows(arguments.small, folder)
    size, k = _millions(arguments.large), _millions(arguments.large_vocabulary)
    names = {
        "small": f"altalign {_millions(arguments.small)}",
        "large": f"altalign {size}",
        "wide": f"altalign {size}, K = {k}",
    }
    with scratch(folder) as place:
        peers = {name: script(f"peer_{name}.py") for name in ("polars", "duckdb")[: 1 + arguments.duckdb]}
        beside_peers = [
            counted(names["small"], small, place, text.VOCABULARY_SIZE),
            *(text.peer(name, path, small, place) for name, path in peers.items()),
        ]
        alone = [
            counted(names["large"], large, place, text.VOCABULARY_SIZE),
            counted(names["wide"], large, place, arguments.large_vocabulary),
        ]
        done_small = interleave(beside_peers, arguments.rounds)
        done_large = interleave(alone, arguments.large_rounds, warm_up=False)
    done = [*done_small, *done_large]
    # equal in all rounds
    counters = {name: [r[name].pop("counters") for r in done if name in r][-1] for name in names.values()}
    of_peers = {name: ratio(done_small, "work_cpu_s", names["small"], name) for name in peers}
    cpu_s = {run: figures["work_cpu_s"]["median"] for run, figures in summary(done).items()}
    times = arguments.large / arguments.small
    row_cost = {name: cpu_s[names[name]] / cpu_s[names["small"]] / times for name in ("large", "wide")}
    targets = _targets(arguments, names, done_small, done_large, of_peers["polars"]["median"], row_cost)
    is_full = (arguments.small, arguments.large, arguments.large_vocabulary) == (SMALL, LARGE, LARGE_VOCABULARY)
    facts = {
        "small": arguments.small,
        "large": arguments.large,
        "cpu_of_peers": of_peers,
        "cpu_a_row_of_small": row_cost,
        "counters": counters,
    }
    print(write("scale", done, targets, is_full=is_full, **facts))


def _targets(
    arguments: argparse.Namespace,
    names: Mapping[str, str],
    done_small: Sequence[Round],
    done_large: Sequence[Round],
    cpu_of_polars: float,
    row_cost: Mapping[str, float],
) -> list[Figures]:
    small, size = f"{arguments.small:,} rows", f"{_millions(arguments.large)} rows"
    peaks = {
        figure: max((r[names[run]][figure] or 0) for r in done_large for run in ("large", "wide"))
        for figure in ("peak_unmapped_bytes", "open_files")
    }
    peak = max(r[names["small"]]["peak_bytes"] or 0 for r in done_small)
    return [
        target(
            f"CPU seconds, of those of polars, {small}",
            cpu_of_polars,
            at_most=text.CPU_OF_POLARS_AT_MOST[SMALL],
        ),
        target(f"peak memory in GB, {small}", peak / 1e9, at_most=text.BYTES_AT_MOST / 1e9),
        target(
            f"CPU seconds a row, of those at {small}, {names['large']}",
            row_cost["large"],
            at_most=1.25,
        ),
        target(f"CPU seconds a row, of those at {small}, {names['wide']}", row_cost["wide"], at_most=1.5),
        target(
            f"peak memory beside mapped files in GB, {size}",
            peaks["peak_unmapped_bytes"] / 1e9,
            at_most=UNMAPPED_BYTES_AT_MOST / 1e9,
        ),
        target(f"open files, {size}", peaks["open_files"], at_most=OPEN_FILES_AT_MOST),
    ]


def counted(name: str, data: Path, place: Path, vocabulary_size: int) -> Program:
    """The text stages, with the counters of their run folder."""
    program = text.ours(name, data, place, vocabulary_size)
    command = [str(OURS), "-m", "benchmarks.counters", str(place / "run")]
    return replace(
        program, says=lambda output: program.says(output) | {"counters": last_json(measure(command, ROOT)[1])}
    )


def _millions(count: int) -> str:
    return f"{count / 1e6:g} M"


if __name__ == "__main__":
    sys.exit(main())
