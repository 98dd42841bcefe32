"""The contrastive loss in blocks beside the matrix of all logits: memory and time of forward and backward, on the CPU.

    python -m benchmarks.loss_memory [--pairs 4096 8192 16384] [--rounds 1]

Embeddings of 640 components in float32, label smoothing 0.1, both directions. `loss_bytes` is the process's peak less
what it holds just before the loss: embeddings are not in it, their gradients are. The dense loss is PyTorch's: a
product, and `cross_entropy` of it and of its transpose. Linux only.
"""

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional

from altalign.train.step.loss import contrastive_loss
from benchmarks.harness import CACHE, READERS, Program, interleave, last_json, ratio
from benchmarks.processes import ProgramError
from benchmarks.report import WITH_TORCH, target, write

PAIRS, ROUNDS = (4_096, 8_192, 16_384), 1
WIDTH, BLOCK, TEMPERATURE, SMOOTHING = 640, 2_048, 1 / 64, 0.1
MEMORY_AT_MOST, TIME_AT_MOST = 0.15, 1.5  # of the dense loss, with the most pairs


def main() -> int:
    """Run all sizes, write the results; or one loss, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=list(PAIRS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--one", choices=["blocks", "dense"], help="one loss of the first of --pairs, in this process")
    parser.add_argument("--folder", type=Path, help="taken for the sake of the other parts; nothing is written")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(figures(arguments.one, arguments.pairs[0])))
        return 0
    try:
        compete(arguments.pairs, arguments.rounds)
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def compete(sizes: list[int], rounds: int) -> None:
    """All rounds of these numbers of pairs."""
    CACHE.mkdir(parents=True, exist_ok=True)
    done = interleave([program(kind, pairs) for pairs in sizes for kind in ("blocks", "dense")], rounds, warm_up=False)
    most = max(sizes)
    memory, seconds = (ratio(done, figure, f"blocks {most}", f"dense {most}") for figure in ("loss_bytes", "loss_s"))
    targets = [
        target(f"memory of the loss, of the dense one's, {most:,} pairs", memory["median"], at_most=MEMORY_AT_MOST),
        target(f"seconds of the loss, of the dense one's, {most:,} pairs", seconds["median"], at_most=TIME_AT_MOST),
    ]
    facts = {
        "pairs": sizes,
        "width": WIDTH,
        "block": BLOCK,
        "torch": torch.__version__,
        "memory_of_dense": memory,
        "seconds_of_dense": seconds,
    }
    print(
        write(
            "loss_memory",
            done,
            targets,
            environments=WITH_TORCH,
            is_full=tuple(sizes) == PAIRS and rounds >= ROUNDS,
            **facts,
        )
    )


def program(kind: str, pairs: int) -> Program:
    """One loss in a process of its own."""
    return Program(
        f"{kind} {pairs}",
        (str(READERS), "-m", "benchmarks.loss_memory", "--one", kind, "--pairs", str(pairs)),
        says=last_json,
    )


def figures(kind: str, pairs: int) -> dict[str, float]:
    """Peak memory and seconds of a forward and a backward."""
    generator = torch.Generator().manual_seed(pairs)
    images, texts = (
        functional.normalize(torch.randn(pairs, WIDTH, generator=generator), dim=1).requires_grad_() for _ in range(2)
    )
    temperature = torch.tensor(TEMPERATURE, requires_grad=True)
    before, begin = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize(), time.perf_counter()
    if kind == "blocks":
        loss = contrastive_loss(images, texts, temperature, label_smoothing=SMOOTHING, directions="sum", block=BLOCK)
    else:
        logits, own = images @ texts.T / temperature, torch.arange(pairs)
        loss = sum(functional.cross_entropy(way, own, label_smoothing=SMOOTHING) for way in (logits, logits.T))
    loss.backward()
    return {
        "loss_s": time.perf_counter() - begin,
        "loss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before,
        "loss": loss.item(),
    }


if __name__ == "__main__":
    sys.exit(main())
