"""Training steps on one GPU, beside open_clip's and Hugging Face AlignModel's.

The figures are samples a second, peak memory and use of the GPU's arithmetic.

    python3 -m benchmarks.train_gpu [--models b3-mini b5-base b7-base] [--parts sizes compiled peers global] [--seconds
    500] [--out FILE]

Runs on any torch from 2.11 that sees a CUDA GPU, without uv or network, and writes benchmarks/results/train_gpu.json.
Images are of 289 pixels, captions of up to 64 word pieces, all padded alike. The GPU is set up as `altalign train` does
it. bfloat16; ours by LAMB, the peers by AdamW, as their trainers have it. A global batch of 16,384 pairs is in the
GPU's memory, ours whole, open_clip's a chunk. `--device cpu`, with small sizes, tries out all of this.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import target, write

if TYPE_CHECKING:
    from benchmarks.gpu_steps import Figures, Plan

NEEDED = ("numpy", "pyarrow", "pydantic", "safetensors", "timm", "tokenizers", "tomli_w", "torch", "transformers")
PX, TOKENS, VOCABULARY, EMBEDDINGS = 289, 64, 100_000, 640
BATCHES = {"b3-mini": (256, 512, 1024), "b5-base": (128, 256, 384), "b7-base": (64, 128, 192)}
WHOLE = 16_384  # pairs of ALIGN's batch
PARTS = ("sizes", "compiled", "peers", "compiled peers", "global")
USUAL = ("sizes", "compiled", "peers", "global")
TIMES_AT_LEAST = {"open_clip": 1.2, "AlignModel": 1.5}
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
    measure(_plan(arguments), arguments.seconds, arguments.out, is_usual=_is_usual(arguments))
    return 0


def absent(packages: Iterable[str]) -> list[str]:
    """The needed packages that cannot be imported here."""
    return [name for name in packages if find_spec(name) is None]


def measure(plan: "Plan", seconds: float, out: Path | None, *, is_usual: bool) -> None:
    """Measure a plan until the time is up; writes the JSON after each measurement."""
    from benchmarks.gpu_steps import rate

    plan.device.prepare()
    flops = plan.flops()
    for model, of_a_pair in flops.items():
        print(f"{model}: {of_a_pair / 1e9:.3g} GFLOP a pair", flush=True)
    results: dict[str, list[Figures]] = {}
    not_measured: dict[str, str] = {}
    began = time.perf_counter()
    for title, one in plan.measurements():
        if time.perf_counter() - began > seconds:
            not_measured[title] = "the time was up"
        else:
            try:
                results[title] = one()
            except Exception as error:  # what one contestant cannot do, the others are measured all the same
                not_measured[title] = (
                    "out of memory"
                    if type(error).__name__ == "OutOfMemoryError"
                    else f"{type(error).__name__}: {error}"[:300]
                )
        if title in not_measured:
            print(f"{title}: not measured, {not_measured[title]}", flush=True)
            continue
        if "altalign" in title and plan.device.peak_flops:
            results[title] = [
                {**step, "utilisation": step["samples_per_s"] * flops[title.split()[0]] / plan.device.peak_flops}
                for step in results[title]
            ]
        print(f"{title}: {rate(results[title]):.4g} samples a second, {_shown(results[title][-1])}", flush=True)
        _write(plan, results, out, flops=flops, not_measured=not_measured, is_full=is_usual and plan.device.is_gpu)


def times_peers(plan: "Plan", results: "dict[str, list[Figures]]") -> list[dict[str, Any]]:
    """Ours beside the faster of each peer's two ways, none compiled, the same batch."""
    from benchmarks.gpu_steps import rate

    found = []
    for model, batches in plan.batches.items():
        mine = f"{model} altalign {batches[1]}"
        for peer in plan.peers:
            theirs = [
                rate(results[title])
                for title in (f"{model} {peer} {batches[1]}", f"{model} {peer}, channels last, {batches[1]}")
                if title in results
            ]
            if mine in results and len(theirs) == 2:
                times = rate(results[mine]) / max(theirs)
                found.append(
                    target(f"{model}, times the samples a second of {peer}", times, at_least=TIMES_AT_LEAST[peer])
                )
    return found


def _write(plan: "Plan", results: "dict[str, list[Figures]]", out: Path | None, *, is_full: bool, **facts: Any) -> None:
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
        "px": next(iter(plan.models.values())).px,
    }
    here = {"ours": (Path(sys.executable), PACKAGES)}
    write("train_gpu", rounds, times_peers(plan, results), is_full=is_full, environments=here, to=out, **facts)


def _plan(arguments: argparse.Namespace) -> "Plan":
    from benchmarks.gpu_steps import Device, Plan
    from benchmarks.train_contestants import Sizes, Way

    without = absent(["open_clip"])
    if without:
        print("open_clip: not installed here, left out")
    sizes = {
        name: Sizes(name, arguments.px, arguments.tokens, arguments.vocabulary, EMBEDDINGS) for name in arguments.models
    }
    return Plan(
        device=Device(arguments.device),
        way=Way(arguments.device, "bfloat16", "adamw"),
        models=sizes,
        batches={name: arguments.batches or BATCHES[name] for name in arguments.models},
        whole=arguments.whole,
        parts=arguments.parts,
        peers=[name for name in TIMES_AT_LEAST if name not in without],
        **({} if arguments.steps is None else {"steps": (arguments.steps, 1)}),
    )


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.train_gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(BATCHES), help="b0, b3, b5 or b7; mini, base or large")
    parser.add_argument("--parts", nargs="+", default=list(USUAL), choices=PARTS)
    parser.add_argument("--seconds", type=float, default=500, help="start nothing after them")
    parser.add_argument("--out", type=Path, help="where the JSON goes instead")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--px", type=int, default=PX)
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
