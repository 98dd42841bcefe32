"""The contrastive loss in blocks beside the matrix of all logits: memory and time of forward and backward, on the CPU.

    python -m benchmarks.loss_memory [--pairs 4096 8192 16384 32768 65536] [--rounds 1]

Embeddings of 640 components in float32, label smoothing 0.1, both directions. `loss_bytes` is the process's peak less
what it holds just before the loss: embeddings are not in it, their gradients are. The dense loss is PyTorch's: a
product, and `cross_entropy` of it and of its transpose; it takes 28 bytes a logit, and so ends at 16,384 pairs. With
the most pairs, the loss in blocks is measured on 8 processes too, each with an eighth of them. Linux only.
"""

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from torch import distributed
from torch.nn import functional

from altalign.train.step.loss import contrastive_loss
from benchmarks.harness import CACHE, READERS, Program, interleave, last_json, ratio
from benchmarks.processes import ProgramError
from benchmarks.report import WITH_TORCH, target, write

PAIRS, ROUNDS = (4_096, 8_192, 16_384, 32_768, 65_536), 1
DENSE_AT_MOST = 16_384  # pairs: 7.5 GB, and four times as much for twice as many
RANKS = 8
WIDTH, BLOCK, TEMPERATURE, SMOOTHING = 640, 2_048, 1 / 64, 0.1
MEMORY_AT_MOST, TIME_AT_MOST = 0.15, 1.5  # of the dense loss, with the most pairs that it has


def main() -> int:
    """Run all sizes, write the results; or one loss, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=list(PAIRS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--one", choices=["blocks", "dense"], help="one loss of the first of --pairs, in this process")
    parser.add_argument("--ranks", type=int, default=1, help="of --one blocks: processes that share the pairs")
    parser.add_argument("--folder", type=Path, help="taken for the sake of the other parts; nothing is written")
    arguments = parser.parse_args()
    if arguments.one:
        print(
            json.dumps(
                spread(arguments.pairs[0], arguments.ranks)
                if arguments.ranks > 1
                else figures(arguments.one, arguments.pairs[0])
            )
        )
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
    dense = [pairs for pairs in sizes if pairs <= DENSE_AT_MOST]
    programs = [
        program(kind, pairs) for pairs in sizes for kind in ("blocks", "dense") if kind == "blocks" or pairs in dense
    ]
    done = interleave([*programs, program("blocks", max(sizes), ranks=RANKS)], rounds, warm_up=False)
    most = max(dense)
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


def program(kind: str, pairs: int, *, ranks: int = 1) -> Program:
    """One loss in a process of its own, or in so many."""
    options = ("--one", kind, "--pairs", str(pairs), "--ranks", str(ranks))
    return Program(
        f"{kind} {pairs}" + (f", {ranks} processes" if ranks > 1 else ""),
        (str(READERS), "-m", "benchmarks.loss_memory", *options),
        says=last_json,
    )


def spread(pairs: int, ranks: int) -> dict[str, float]:
    """The figures of that of these processes which takes most memory; together they have so many pairs."""
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(ranks) as pool:
        of_rank = partial(_of_rank, pairs=pairs // ranks, ranks=ranks, meeting=f"file://{folder}/meeting")
        return max(pool.map(of_rank, range(ranks), chunksize=1), key=lambda found: found["loss_bytes"])


def _of_rank(rank: int, *, pairs: int, ranks: int, meeting: str) -> dict[str, float]:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    try:
        return figures("blocks", pairs, seed=rank)
    finally:
        distributed.destroy_process_group()


def figures(kind: str, pairs: int, *, seed: int = 0) -> dict[str, float]:
    """Peak memory and seconds of a forward and a backward, of this process's pairs."""
    generator = torch.Generator().manual_seed(pairs + seed)
    images, texts = (
        functional.normalize(torch.randn(pairs, WIDTH, generator=generator), dim=1).requires_grad_() for _ in range(2)
    )
    temperature = torch.tensor(TEMPERATURE, requires_grad=True)
    before, begin = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize(), time.perf_counter()
    if kind == "blocks":
        loss = contrastive_loss(images, texts, temperature, label_smoothing=SMOOTHING, directions="sum", block=BLOCK)
    else:
        logits, own = images @ texts.T / temperature, torch.arange(pairs)
        to_text, to_image = (
            functional.cross_entropy(way, own, label_smoothing=SMOOTHING) for way in (logits, logits.T)
        )
        loss = to_text + to_image
    loss.backward()
    return {
        "loss_s": time.perf_counter() - begin,
        "loss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before,
        "loss": loss.item(),
    }


if __name__ == "__main__":
    sys.exit(main())
