"""Search for near-duplicates of test images beside faiss's exact search and a matrix product.

One core finds all pairs above a cosine of 0.975.

    python -m benchmarks.near_duplicates [--tests 120000] [--rounds 3]

Each program searches the same vectors for the same pairs, and must find all of them. At the size of the published run
ours also searches 500,000 test images.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from benchmarks.harness import CACHE, OURS, PEERS, Program, Round, interleave, last_json, ratio, scratch
from benchmarks.processes import Figures, ProgramError
from benchmarks.report import target, write
from benchmarks.search import ABOVE, generated

TESTS, POOL, ROUNDS, MORE_TESTS = 120_000, 2_000, 3, 500_000
TIMES_FLAT_AT_LEAST = {64: 7.0, 256: 4.0, 512: 4.0}
LINEAR_AT_MOST = 1.25
WAYS = {"altalign": "", "faiss flat": "flat", "GEMM": "gemm"}
ONE_THREAD = ("env", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1")


def main() -> int:
    """Generate, run, compare the pairs, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=TESTS, help="test images")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, default=CACHE)
    arguments = parser.parse_args()
    try:
        return compete(arguments.tests, arguments.rounds, arguments.folder.absolute())
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def compete(tests: int, rounds: int, folder: Path) -> int:
    """All rounds of this many test images; 1 where ours finds other pairs than there are."""
    is_full = tests == TESTS and rounds >= ROUNDS
    with scratch(folder) as place:
        programs = [
            program(way, tests, dimensions, folder, place) for dimensions in TIMES_FLAT_AT_LEAST for way in WAYS
        ]
        if is_full:
            programs.append(program("altalign", MORE_TESTS, 64, folder, place))
        done = interleave(programs, rounds)
        differing = {dimensions: differ(place, tests, dimensions) for dimensions in TIMES_FLAT_AT_LEAST}
    faster = {
        d: {way: ratio(done, "us_per_image", name(way, tests, d), name("altalign", tests, d)) for way in list(WAYS)[1:]}
        for d in TIMES_FLAT_AT_LEAST
    }
    targets = [
        target(
            f"times the speed of faiss's flat search, {d} dimensions", faster[d]["faiss flat"]["median"], at_least=least
        )
        for d, least in TIMES_FLAT_AT_LEAST.items()
    ]
    targets += [
        target(f"pairs missed or invented, {d} dimensions, of {found['pairs']}", found["altalign"], at_most=0)
        for d, found in differing.items()
    ]
    targets += linear(done, tests) if is_full else []
    facts = {"tests": tests, "pool": POOL, "above": ABOVE, "times_peers": faster, "pairs": differing}
    print(write("near_duplicates", done, targets, is_full=is_full, **facts))
    return int(any(found["altalign"] for found in differing.values()))


def linear(done: list[Round], tests: int) -> list[Figures]:
    """Whether cost grows with the test side and no faster."""
    times = ratio(done, "us_per_image", name("altalign", MORE_TESTS, 64), name("altalign", tests, 64))
    return [
        target(
            f"time a test image at {MORE_TESTS:,}, of that at {tests:,}",
            times["median"] * tests / MORE_TESTS,
            at_most=LINEAR_AT_MOST,
        )
    ]


def name(way: str, tests: int, dimensions: int) -> str:
    """The name of a program in the tables."""
    return f"{way}, {dimensions} dimensions" + (f", {tests:,} test images" if tests != TESTS else "")


def program(way: str, tests: int, dimensions: int, folder: Path, place: Path) -> Program:
    """A program that writes its pairs to the scratch folder."""
    vectors = [str(path) for path in generated(tests, POOL, dimensions, folder)]
    pairs = str(place / f"{way}-{tests}-{dimensions}.npy")
    ours, peer = (str(OURS), "-m", "benchmarks.our_search"), (str(PEERS), "-m", "benchmarks.peer_search")
    argv = [
        *ONE_THREAD,
        *(ours if way == "altalign" else peer),
        *vectors,
        pairs,
        *(("--way", WAYS[way]) if WAYS[way] else ()),
    ]
    return Program(name(way, tests, dimensions), argv, says=last_json)


def differ(place: Path, tests: int, dimensions: int) -> dict[str, int]:
    """How many pairs there are, and how many each program misses or invents."""
    exact, *others = (
        {tuple(pair) for pair in np.load(place / f"{way}-{tests}-{dimensions}.npy").tolist()}
        for way in ("GEMM", "altalign", "faiss flat")
    )
    return {"pairs": len(exact)} | {
        way: len(exact ^ found) for way, found in zip(("altalign", "faiss flat"), others, strict=True)
    }


if __name__ == "__main__":
    sys.exit(main())
