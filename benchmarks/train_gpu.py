"""Training steps on one GPU, beside open_clip's and Hugging Face AlignModel's.

The figures are samples a second, peak memory and use of the GPU's arithmetic.

    python3 -m benchmarks.train_gpu [--models b3-mini b5-base b7-base vit_b16-base] [--parts sizes graphs compiled
    peers global] [--together] [--seconds 500] [--out FILE]

Runs on any torch from 2.11 that sees a CUDA GPU, without uv or network, and writes benchmarks/results/train_gpu.json.
Images are of 289 pixels, of 224 for a ViT; captions of up to 64 word pieces, all padded alike. The GPU is set up as
`altalign train` does it. bfloat16; ours by LAMB, the peers by AdamW, as their trainers have it. A global batch of
16,384 pairs is in the GPU's memory, ours whole, open_clip's a chunk. `--device cpu`, with small sizes, tries out all of
this.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

from benchmarks.report import target, write

if TYPE_CHECKING:
    from benchmarks.gpu_steps import Figures, Plan

NEEDED = ("numpy", "pyarrow", "pydantic", "safetensors", "timm", "tokenizers", "tomli_w", "torch", "transformers")
PX, TOKENS, VOCABULARY, EMBEDDINGS = 289, 64, 100_000, 640
BATCHES = {
    "b3-mini": (128, 512, 640),  # of 1,024 pairs a layer has over 2^31 numbers, and takes longer
    "b5-base": (128, 256, 384),
    "b7-base": (64, 128, 192),
    "l2-large": (16, 32, 48),
    "vit_b16-base": (256, 512, 1024),
}
WHOLE = 16_384  # pairs of ALIGN's batch
PARTS = ("sizes", "graphs", "compiled", "peers", "compiled peers", "global")
USUAL = ("sizes", "graphs", "compiled", "peers", "global")
TIMES_AT_LEAST = {"open_clip": 1.2, "AlignModel": 1.5}
WAYS = {  # of ours, and of a peer
    "": ("", ", channels last,"),
    ", CUDA graphs,": ("", ", channels last,"),
    ", compiled,": (", channels last, compiled,",),
}
GOALS = {
    "b3-mini": 2_500,
    "b5-base": 1_100,
    "b7-base": 650,
    "l2-large": 150,
    "vit_b16-base": 2_000,
}  # pairs/s, one H200
PACKAGES = ("altalign", "numpy", "open_clip_torch", "safetensors", "timm", "tokenizers", "torch", "transformers")
HIDDEN = ("parameters", "others_cores")  # of what is printed


def main(argv: Sequence[str] | None = None) -> int:
    """Measure until the time is up: a line each, and JSON; 1 where something is missing."""
    arguments = _arguments(argv)
    missing = absent(NEEDED)
    if missing:
        sys.stderr.write(
            f"this needs {', '.join(missing)}, which this Python ({sys.executable}) does not have; install them, or "
            "give PYTHON=…\n"
        )
        return 1
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write(
            f"torch {torch.__version__} sees no GPU here; `--device cpu` with small --px and --batches tries this out\n"
        )
        return 1
    is_usual, is_together = _is_usual(arguments), arguments.together
    measure(_plan(arguments), arguments.seconds, arguments.out, is_usual=is_usual, is_together=is_together)
    return 0


def absent(packages: Iterable[str]) -> list[str]:
    """The needed packages that cannot be imported here."""
    return [name for name in packages if find_spec(name) is None]


def measure(plan: "Plan", seconds: float, out: Path | None, *, is_usual: bool, is_together: bool) -> None:
    """Measure a plan until the time is up; writes the JSON after each measurement."""
    from benchmarks.gpu_steps import rate

    flops = plan.flops()
    for model, of_a_pair in flops.items():
        print(f"{model}: {of_a_pair / 1e9:.3g} GFLOP a pair", flush=True)
    results: dict[str, list[Figures]] = {}
    not_measured: dict[str, str] = {}
    until = time.monotonic() + seconds  # the same clock in all processes
    for title, found in together(plan, until) if is_together else outcomes(plan, until):
        if isinstance(found, str):
            not_measured[title] = found
            print(f"{title}: not measured, {found}", flush=True)
            continue
        results[title] = found
        if "altalign" in title and plan.device.peak_flops:
            of_the_peak = flops[title.split()[0]] / plan.device.peak_flops
            results[title] = [{**step, "utilisation": step["samples_per_s"] * of_the_peak} for step in found]
        print(f"{title}: {rate(found):.4g} samples a second, {_shown(results[title][-1])}", flush=True)
        _write(plan, results, [], out, flops=flops, not_measured=not_measured, is_full=is_usual)
    targets = [*goals(plan, results), *times_peers(plan, results)]
    _write(plan, results, targets, out, flops=flops, not_measured=not_measured, is_full=is_usual)


def outcomes(plan: "Plan", until: float) -> "Iterator[tuple[str, list[Figures] | str]]":
    """Name and figures of each measurement, or why there are none."""
    plan.device.prepare()
    for title, one in plan.measurements():
        if time.monotonic() > until:
            yield title, "the time was up"
            continue
        try:
            yield title, one()
        except Exception as error:  # what one contestant cannot do, the others are measured all the same
            is_full = type(error).__name__ == "OutOfMemoryError"
            yield title, "out of memory" if is_full else f"{type(error).__name__}: {error}"[:300]


def together(plan: "Plan", until: float) -> "Iterator[tuple[str, list[Figures] | str]]":
    """The same, each model in a process of its own; they warm up at the same time."""
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_of_model, args=(plan, model, until, Path(folder, "turns"), queue))
            for model in plan.models
        ]
        for process in processes:
            process.start()
        while any(process.is_alive() for process in processes) or not queue.empty():
            with suppress(Empty):
                yield queue.get(timeout=1)
        for process in processes:
            process.join()


def _of_model(plan: "Plan", model: str, until: float, lock: Path, queue: Any) -> None:
    from benchmarks.gpu_steps import Turns

    for found in outcomes(replace(plan, models={model: plan.models[model]}, turns=Turns(lock)), until):
        queue.put(found)


def goals(plan: "Plan", results: "dict[str, list[Figures]]") -> list[dict[str, Any]]:
    """Pairs a second that are aimed at on one H200, and what the second pass of a large batch may cost."""
    from benchmarks.gpu_steps import rate

    found = list[dict[str, Any]]()
    for model, batches in plan.batches.items():
        of_steps = [
            rate(figures)
            for title, figures in results.items()
            if title.startswith(f"{model} altalign") and "global" not in title
        ]
        if of_steps and model in GOALS and "H200" in plan.device.model:
            found.append(target(f"{model}, pairs a second", max(of_steps), at_least=GOALS[model]))
        whole = [figures for title, figures in results.items() if title.startswith(f"{model} altalign, global batch")]
        way = plan.way_of_whole
        in_one = results.get(f"{model} altalign{f', {way},' if way else ''} {batches[1]}")
        if whole and in_one:
            times = rate(in_one) / rate(whole[0])
            found.append(target(f"{model}, seconds of a global batch in two passes, times one", times, at_most=1.35))
    return found


def times_peers(plan: "Plan", results: "dict[str, list[Figures]]") -> list[dict[str, Any]]:
    """Ours beside the faster of each peer's two ways, the same batch; and compiled beside compiled."""
    from benchmarks.gpu_steps import rate

    found = list[dict[str, Any]]()
    for model, batches in plan.batches.items():
        for peer in plan.peers:
            for kind, ways in WAYS.items():
                mine = results.get(f"{model} altalign{kind} {batches[1]}")
                titles = [f"{model} {peer}{way} {batches[1]}" for way in ways]
                theirs = [rate(results[title]) for title in titles if title in results]
                if mine and len(theirs) == len(ways):
                    what = f"{model}{kind or ','} times the samples a second of {peer}"
                    found.append(target(what, rate(mine) / max(theirs), at_least=TIMES_AT_LEAST[peer]))
    return found


def _write(
    plan: "Plan",
    results: "dict[str, list[Figures]]",
    targets: Sequence[dict[str, Any]],
    out: Path | None,
    *,
    is_full: bool,
    **facts: Any,
) -> None:
    if not (plan.device.is_gpu or out):
        return
    rounds = [
        {title: figures for title, figures in zip(results, steps, strict=True) if figures is not None}
        for steps in zip_longest(*results.values())
    ]
    facts |= {
        "device": plan.device.model,
        "batches": plan.batches,
        "global_batch": plan.whole,
        "px": {model: sizes.px for model, sizes in plan.models.items()},
    }
    here = {"ours": (Path(sys.executable), PACKAGES)}
    full = is_full and plan.device.is_gpu
    write("train_gpu", rounds, targets, is_full=full, environments=here, to=out, **facts)


def _plan(arguments: argparse.Namespace) -> "Plan":
    from benchmarks.gpu_steps import Device, Plan
    from benchmarks.train_contestants import Sizes, Way

    without = absent(["open_clip"])
    if without:
        print("open_clip: not installed here, left out")
    sizes = {
        name: Sizes(
            name, arguments.px or (224 if "vit_" in name else PX), arguments.tokens, arguments.vocabulary, EMBEDDINGS
        )
        for name in arguments.models
    }
    return Plan(
        device=Device(arguments.device),
        way=Way(arguments.device, "bfloat16", "adamw"),
        models=sizes,
        batches={name: arguments.batches or BATCHES[name] for name in arguments.models},
        whole=arguments.whole,
        parts=arguments.parts,
        peers=[name for name in TIMES_AT_LEAST if name not in without],
        profiled=arguments.profile,
        **({} if arguments.steps is None else {"steps": (arguments.steps, 1)}),
    )


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.train_gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", default=list(BATCHES), help="b0, b3, b5, b7, l2 or vit_b16; mini, base or large"
    )
    parser.add_argument("--parts", nargs="+", default=list(USUAL), choices=PARTS)
    parser.add_argument("--seconds", type=float, default=500, help="start nothing after them")
    parser.add_argument(
        "--together",
        action="store_true",
        help="a process for each model: all warm up at once, if the GPU's memory holds them, and are timed in turn",
    )
    parser.add_argument("--profile", type=int, default=0, metavar="LINES", help="print what a step's time went to")
    parser.add_argument("--out", type=Path, help="where the JSON goes instead")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--px", type=int, help="of all models")
    parser.add_argument(
        "--batches", type=int, nargs=3, metavar="PAIRS", help="of all models; the middle one is the peers'"
    )
    parser.add_argument("--global", type=int, default=WHOLE, metavar="PAIRS", dest="whole")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="to which captions are padded")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--steps", type=int, help="that are timed")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.models if name not in BATCHES] if not arguments.batches else []
    if unknown:
        parser.error(f"{', '.join(unknown)}: give --batches too")
    return arguments


def _is_usual(arguments: argparse.Namespace) -> bool:
    usual = _arguments(["--parts", *arguments.parts, "--seconds", str(arguments.seconds)])
    return set(USUAL) <= set(arguments.parts) and {**vars(arguments), "out": None} == vars(usual)


def _shown(figures: "Figures") -> dict[str, Any]:
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in figures.items()
        if name not in HIDDEN
    }


if __name__ == "__main__":
    sys.exit(main())
