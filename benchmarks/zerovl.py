"""What ZeroVL's parts cost a training: of a step, and of the batches that are made for it.

    python -m benchmarks.zerovl [--rounds 3]

Steps are of a ViT-Ti/16 and BERT-Mini, 32 pairs of 96 pixels and 24 word pieces in memory, by AdamW. Batches are made
by the process itself, of the shards of `benchmarks.loader`, at 224 pixels. One thread each; figures are by CPU second:
on one thread these are the seconds of a machine that does nothing else.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import CACHE, Program, interleave, last_json, ratio
from benchmarks.loader import run_of_images
from benchmarks.processes import ProgramError
from benchmarks.report import OUR_PACKAGES, target, write

ROUNDS = 3
STEP, ALL_PARTS, WITHOUT_DROP = "step without parts", "step with all parts", "step with all parts but TokenDrop"
RANDOM, ONE_SOURCE, AUGMENTED = "random batches", "batches of one source", "batches of one source, AutoAugment"
ALIGN = "ALIGN's batches"
FIGURE = "pairs_per_cpu_s"


def main() -> int:
    """Write shards, run all rounds, write the results; 1 where a program fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, default=CACHE)
    arguments = parser.parse_args()
    try:
        run = run_of_images(arguments.folder.absolute())
        steps = [_program(name, []) for name in (STEP, ALL_PARTS, WITHOUT_DROP)]
        batches = [_program(name, ["--run", str(run)]) for name in (ALIGN, RANDOM, ONE_SOURCE, AUGMENTED)]
        done = interleave([*steps, *batches], arguments.rounds, warm_up=False)
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    costs = {name: ratio(done, FIGURE, STEP, name) for name in (ALL_PARTS, WITHOUT_DROP)}
    speed = ratio(done, FIGURE, ONE_SOURCE, RANDOM)
    targets = [
        target("CPU seconds of a step with all parts, times one without", costs[ALL_PARTS]["median"], at_most=1.1),
        target("the same but for TokenDrop", costs[WITHOUT_DROP]["median"], at_most=1.1),
        target("pairs a CPU second of batches of one source, times random ones", speed["median"], at_least=0.97),
    ]
    is_full = arguments.rounds >= ROUNDS
    environments = {"ours": (Path(sys.executable), OUR_PACKAGES)}
    print(
        write("zerovl", done, targets, environments=environments, is_full=is_full, step_costs=costs, one_source=speed)
    )
    return 0


def _program(name: str, options: Sequence[str]) -> Program:
    argv = ["env", "OMP_NUM_THREADS=1", sys.executable, "-m", "benchmarks.zerovl_parts", name, *options]
    return Program(name, argv, says=last_json)


if __name__ == "__main__":
    sys.exit(main())
