"""The stage `decontaminate`: the cost of describing and of searching an image.

Describing stands beside decoding, and searching is timed as the pool grows.

    python -m benchmarks.decontaminate [--rounds 3]

The pool is searched for near-duplicates of 120,000 test images: 100,000 images of it, and a million. Vectors are those
of `benchmarks.near_duplicates`; images are JPEGs of the web's size.
"""

import argparse
import shutil
import sys
from pathlib import Path

from benchmarks.harness import CACHE, OURS, Program, interleave, last_json, ratio, scratch
from benchmarks.images import IMAGES
from benchmarks.images import generated as images_of
from benchmarks.processes import ProgramError
from benchmarks.report import target, write
from benchmarks.search import generated

ROUNDS, TESTS, POOLS = 3, 120_000, (100_000, 1_000_000)
OF_DECODING_AT_MOST, FLAT_AT_MOST, GB_AT_MOST = 0.10, 1.25, 2.0
DESCRIBED = "decode and describe"


def main() -> int:
    """Generate, run, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tests", type=int, default=TESTS)
    parser.add_argument("--pools", type=int, nargs=2, default=POOLS)
    parser.add_argument("--folder", type=Path, default=CACHE)
    arguments = parser.parse_args()
    try:
        compete(arguments, arguments.folder.absolute())
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def compete(arguments: argparse.Namespace, folder: Path) -> None:
    """All rounds."""
    web = images_of("web", IMAGES, folder) / "web-000.tar"
    small, large = (f"{count:,} images" for count in arguments.pools)
    with scratch(folder) as place:
        programs = [
            Program(
                DESCRIBED, (str(OURS), "-m", "benchmarks.our_decontamination", "describe", str(web)), says=last_json
            )
        ]
        for count in arguments.pools:
            vectors = [str(path) for path in generated(arguments.tests, count, 64, folder)]
            argv = (str(OURS), "-m", "benchmarks.our_decontamination", "search", str(place), *vectors)
            programs.append(
                Program(
                    f"{count:,} images",
                    argv,
                    prepare=lambda: shutil.rmtree(place / "run", ignore_errors=True),
                    says=last_json,
                )
            )
        done = interleave(programs, arguments.rounds, warm_up=False)
    growth = ratio(done, "us_per_image", large, small)
    of_decoding = [(r[DESCRIBED]["describe_us"] + r[large]["us_per_image"]) / r[DESCRIBED]["decode_us"] for r in done]
    targets = [
        target(
            "describing and searching an image, of decoding it",
            sorted(of_decoding)[len(of_decoding) // 2],
            at_most=OF_DECODING_AT_MOST,
        ),
        target(f"cost of an image of {large}, of that of {small}", growth["median"], at_most=FLAT_AT_MOST),
        target("peak memory in GB", max(r[large]["peak_bytes"] or 0 for r in done) / 1e9, at_most=GB_AT_MOST),
    ]
    is_full = (arguments.tests, tuple(arguments.pools)) == (TESTS, POOLS) and arguments.rounds >= ROUNDS
    print(write("decontaminate", done, targets, is_full=is_full, tests=arguments.tests, pools=list(arguments.pools)))


if __name__ == "__main__":
    sys.exit(main())
