"""The search of concepts: the nearest nouns of each image, beside NumPy's product and faiss.

    python -m benchmarks.concepts [--images 100000] [--rounds 1]

150,000 vectors of 256 numbers are searched for the 5 nearest to each of 100,000, 256 at a time, on two threads: as
`altalign concepts` does without faiss, with faiss's exact index where it is installed, and by NumPy's product with a
partial sort. CPU time of the search alone. What comes first of the others is compared with NumPy's.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.harness import Program, interleave, last_json, ratio
from benchmarks.processes import ProgramError
from benchmarks.report import OUR_PACKAGES, target, write

IMAGES, ROUNDS = 100_000, 1
NOUNS, WIDTH, TOP, AT_ONCE = 150_000, 256, 5, 256
OURS, NUMPY, FAISS = "altalign, by torch", "NumPy", "altalign, by faiss"
Vectors = npt.NDArray[np.float32]


def main() -> int:
    """Run all of them, write the results; or one search, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--one", choices=[OURS, NUMPY, FAISS], help="this search, in this process")
    parser.add_argument("--folder", type=Path, help="taken for the sake of the other parts; nothing is written")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(search(arguments.one, arguments.images)))
        return 0
    names = [OURS, NUMPY, *([FAISS] if find_spec("faiss") else [])]
    try:
        done = interleave([_program(name, arguments.images) for name in names], arguments.rounds, warm_up=False)
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    product = ratio(done, "search_cpu_s", OURS, NUMPY)
    same = min(figures["same"] for found in done for figures in found.values())
    targets = [
        target("CPU seconds of the search by torch, times those of NumPy's", product["median"], at_most=1),
        target("share of images with the nouns that NumPy finds, of the first 256", same, at_least=1),
    ]
    is_full = (arguments.images, arguments.rounds) >= (IMAGES, ROUNDS)
    facts = {"environments": {"ours": (Path(sys.executable), OUR_PACKAGES)}, "images": arguments.images}
    print(write("concepts", done, targets, is_full=is_full, nouns=NOUNS, width=WIDTH, **facts))
    return 0


def _program(name: str, images: int) -> Program:
    argv = ["env", "OMP_NUM_THREADS=2", "OPENBLAS_NUM_THREADS=2", sys.executable, "-m", "benchmarks.concepts"]
    return Program(name, [*argv, "--one", name, "--images", str(images)], says=last_json)


def search(name: str, images: int) -> dict[str, float]:
    """The nearest nouns of so many images, on as many threads as the environment says."""
    random = np.random.default_rng(0)
    nouns = _drawn(random, NOUNS)
    of, cpu_s, wall_s, same = _searched_by(name, nouns), 0.0, 0.0, 1.0
    of(_drawn(random, AT_ONCE))
    for first in range(0, images, AT_ONCE):
        some = _drawn(random, min(AT_ONCE, images - first))
        began, began_cpu = time.perf_counter(), time.process_time()
        found = of(some)
        cpu_s, wall_s = cpu_s + time.process_time() - began_cpu, wall_s + time.perf_counter() - began
        if not first:
            same = float((found == by_numpy(some, nouns)).all(1).mean())
    return {"search_cpu_s": cpu_s, "search_s": wall_s, "same": same}


def _searched_by(name: str, nouns: Vectors) -> Callable[[Vectors], npt.NDArray[np.int64]]:
    if name == NUMPY:
        return lambda some: by_numpy(some, nouns)

    from altalign.train.concepts.retrieve import Search  # torch, which NumPy does without

    index = Search(nouns, TOP, with_faiss=name == FAISS)
    return lambda some: index.of(some)[1]


def by_numpy(some: Vectors, nouns: Vectors) -> npt.NDArray[np.int64]:
    """The numbers of the nearest, the nearest first: a product, a partial sort, and a sort of what is left."""
    products = some @ nouns.T
    places = np.argpartition(products, -TOP, axis=1)[:, -TOP:]
    order = np.argsort(-np.take_along_axis(products, places, 1), axis=1)
    return np.take_along_axis(places, order, 1)


def _drawn(random: np.random.Generator, count: int) -> Vectors:
    """Vectors of length 1 (count, width)."""
    drawn = random.standard_normal((count, WIDTH), np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


if __name__ == "__main__":
    sys.exit(main())
