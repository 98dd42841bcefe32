"""Search for near-duplicates of test images beside faiss's exact search and a matrix product.

One core finds all pairs above a cosine of 0.975.

    python -m benchmarks.near_duplicates [--tests 120000] [--rounds 3]

Each program searches the same vectors for the same pairs, and must find all of them.
"""

import sys
from pathlib import Path

import numpy as np

from benchmarks.harness import OURS, PEERS, Program, command, interleave, last_json, ratio, scratch
from benchmarks.report import target, write
from benchmarks.search_one import ABOVE, generated

TESTS, POOL, ROUNDS = 120_000, 2_000, 3
TIMES_FLAT_AT_LEAST = {64: 7.0, 256: 4.0, 512: 4.0}
WAYS = {"altalign": (OURS, "ours"), "faiss flat": (PEERS, "flat"), "GEMM": (PEERS, "gemm")}
ONE_THREAD = ("env", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1")
PACKAGES = ("numba", "numpy", "faiss-cpu")


def compete(tests: int, rounds: int, folder: Path) -> int:
    """All rounds of this many test images; 1 where ours finds other pairs than there are."""
    with scratch(folder) as place:
        programs = [
            program(way, tests, dimensions, folder, place) for dimensions in TIMES_FLAT_AT_LEAST for way in WAYS
        ]
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
    facts = {"tests": tests, "pool": POOL, "above": ABOVE, "times_peers": faster, "pairs": differing}
    print(
        write("near_duplicates", done, targets, packages=PACKAGES, is_full=tests == TESTS and rounds >= ROUNDS, **facts)
    )
    return int(any(found["altalign"] for found in differing.values()))


def name(way: str, tests: int, dimensions: int) -> str:
    """The name of a program in the tables."""
    return f"{way}, {dimensions} dimensions" + (f", {tests:,} test images" if tests != TESTS else "")


def program(way: str, tests: int, dimensions: int, folder: Path, place: Path) -> Program:
    """A program that writes its pairs to the scratch folder."""
    vectors = [str(path) for path in generated(tests, POOL, dimensions, folder)]
    pairs = str(place / f"{way}-{tests}-{dimensions}.npy")
    python, choice = WAYS[way]
    argv = [*ONE_THREAD, str(python), "-m", "benchmarks.search_one", choice, *vectors, pairs]
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
    sys.exit(command(__doc__, compete, tests=TESTS, rounds=ROUNDS))
