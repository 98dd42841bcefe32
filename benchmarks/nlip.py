"""What NLIP's decoders cost a training: steps beside the same towers by plain contrast.

    python -m benchmarks.nlip [--rounds 3]

Steps are of a ViT-Ti/16 and of BART's encoder with 4 layers of 256, 32 pairs of 96 pixels and 24 word pieces in memory,
by AdamW in float32, on one thread: so CPU seconds are those of a machine that does nothing else. `step_bytes` is what
the steps hold above what the process held before the model was there. Linux only.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.harness import Program, interleave, last_json, ratio
from benchmarks.processes import ProgramError
from benchmarks.report import OUR_PACKAGES, target, write

ROUNDS = 3
PLAIN, MASKED, RECONSTRUCTED, WHOLE = (
    "step by plain contrast",
    "half of the patches masked",
    "and reconstruction",
    "and captions: all of NLIP",
)
STEPS = (PLAIN, MASKED, RECONSTRUCTED, WHOLE)


def main() -> int:
    """Run all rounds, write the results; 1 where a program fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, help="taken for the sake of the other parts; nothing is written")
    arguments = parser.parse_args()
    try:
        done = interleave([_program(name) for name in STEPS], arguments.rounds, warm_up=False)
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    costs = {name: ratio(done, "step_cpu_s", name, PLAIN) for name in STEPS[1:]}
    memory = {name: ratio(done, "step_bytes", name, PLAIN) for name in STEPS[1:]}
    targets = [
        target(f"{figure} of a step with all of NLIP, times one by plain contrast", found[WHOLE]["median"], at_most=3)
        for figure, found in (("CPU seconds", costs), ("memory", memory))
    ]
    is_full = arguments.rounds >= ROUNDS
    environments = {"ours": (Path(sys.executable), OUR_PACKAGES)}
    facts = {"step_costs": costs, "step_memory": memory}
    print(write("nlip", done, targets, environments=environments, is_full=is_full, **facts))
    return 0


def _program(name: str) -> Program:
    argv = ["env", "OMP_NUM_THREADS=1", sys.executable, "-m", "benchmarks.nlip_parts", name]
    return Program(name, argv, says=last_json)


if __name__ == "__main__":
    sys.exit(main())
