"""Training steps beside open_clip's and Hugging Face AlignModel's, one thread each, interleaved.

Sizes, inputs and the optimiser's method are the same.

    python -m benchmarks.train_step [--rounds 2] [--batch 32] [--px 96] [--tokens 64]

All run in `.venv-readers`, on one torch. Each peer runs as its own trainer has it, channels first, and channels last,
as ours is always. Samples are by CPU
seconds: on one thread these are the seconds of a machine that does nothing else.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from benchmarks.harness import READERS, Program, interleave, last_json, ratio
from benchmarks.processes import ProgramError
from benchmarks.report import WITH_TORCH, target, versions, write

ROUNDS, BATCH, PX, TOKENS, STEPS = 2, 32, 96, 64, 3
OUR_STEP, OVER_THE_BATCH = "altalign", "altalign, batch norm over the batch"
PEERS = {"open_clip": "open_clip_torch", "AlignModel": "transformers"}  # and the package
CHANNELS_LAST = "{}, channels last"
TIMES_PEERS_AT_LEAST = 1.0
FIGURE = "samples_per_cpu_s"
ENVIRONMENT = ("env", "HF_HUB_OFFLINE=1", "OMP_NUM_THREADS=1")


def main() -> int:
    """Run all rounds; 1 where a program fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--px", type=int, default=PX)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--folder", type=Path, help="taken for the sake of the other parts; nothing is written")
    arguments = parser.parse_args()
    sizes = {"batch": arguments.batch, "px": arguments.px, "tokens": arguments.tokens, "steps": STEPS}
    try:
        return compete(sizes, arguments.rounds)
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def compete(sizes: dict[str, int], rounds: int) -> int:
    """All rounds of steps of these sizes."""
    installed = versions(READERS, PEERS.values())
    peers = [name for name, package in PEERS.items() if package in installed]
    for name in PEERS.keys() - peers:
        print(f"{name}: not installed here, left out")
    ways = {name: [name, CHANNELS_LAST.format(name)] for name in peers}
    done = interleave(
        [program(name, sizes) for name in (OUR_STEP, OVER_THE_BATCH, *chain(*ways.values()))], rounds, warm_up=False
    )
    times = {name: ratio(done, FIGURE, OUR_STEP, name) for name in (OVER_THE_BATCH, *chain(*ways.values()))}
    targets = [
        target(f"times the pairs a CPU second of {way}", times[way]["median"], at_least=TIMES_PEERS_AT_LEAST)
        for way in chain(*ways.values())
    ]
    is_full = (
        sizes == {"batch": BATCH, "px": PX, "tokens": TOKENS, "steps": STEPS}
        and rounds >= ROUNDS
        and len(peers) == len(PEERS)
    )
    print(write("train_step", done, targets, environments=WITH_TORCH, is_full=is_full, **sizes, times_peers=times))
    return 0


def program(name: str, sizes: dict[str, int]) -> Program:
    """A contestant's steps, in a process of its own."""
    options: Sequence[str] = [part for option, value in sizes.items() for part in (f"--{option}", str(value))]
    return Program(name, [*ENVIRONMENT, str(READERS), "-m", "benchmarks.train_steps", name, *options], says=last_json)


if __name__ == "__main__":
    sys.exit(main())
