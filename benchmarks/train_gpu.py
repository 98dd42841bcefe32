"""Training steps on one GPU, beside open_clip's and Hugging Face AlignModel's.

The figures are samples a second, peak memory and use of the GPU's arithmetic.

    python3 -m benchmarks.train_gpu [--models b5-base b7-base l2-large vit_b16-base b3-mini] [--parts sizes graphs
    compiled peers global] [--seconds 500] [--out FILE]

Runs on any torch from 2.11 that sees a CUDA GPU, without uv or network, and writes benchmarks/results/train_gpu.json.
The fastest way of each model and its peers come first: what the time does not suffice for is the rest. Images are of
289 pixels, of 224 for a ViT; captions of up to 64 word pieces, all padded alike. The GPU is set up as `altalign train`
does it. bfloat16; ours by LAMB, the peers by AdamW, as their trainers have it. A global batch of 16,384 pairs is in the
GPU's memory, ours whole, open_clip's a chunk. `--device cpu`, with small sizes, tries out all of this.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

NEEDED = ("numpy", "pyarrow", "pydantic", "safetensors", "timm", "tokenizers", "tomli_w", "torch", "transformers")
BATCHES = {
    "b5-base": (128, 256, 384),
    "b7-base": (64, 128, 192),
    "l2-large": (16, 32, 48),
    "vit_b16-base": (256, 512, 1024),
    "b3-mini": (128, 512, 640),  # of 1,024 pairs a layer has over 2^31 numbers, and takes longer
}
PARTS = ("sizes", "graphs", "compiled", "peers", "global")


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
    from benchmarks import gpu_steps

    if absent(["open_clip"]):
        print("open_clip: not installed here, left out")
    usual = _arguments(["--seconds", str(arguments.seconds)])
    gpu_steps.measure_all(arguments, is_full={**vars(arguments), "out": None} == vars(usual))
    return 0


def absent(packages: Iterable[str]) -> list[str]:
    """The needed packages that cannot be imported here."""
    return [name for name in packages if find_spec(name) is None]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.train_gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", default=list(BATCHES), help="b0, b3, b5, b7, l2 or vit_b16; mini, base or large"
    )
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--seconds", type=float, default=500, help="start nothing after them")
    parser.add_argument("--out", type=Path, help="where the JSON goes instead")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--px", type=int, help="of all models; 289, of a ViT 224")
    parser.add_argument(
        "--batches", type=int, nargs=3, metavar="PAIRS", help="of all models; the middle one is the peers'"
    )
    parser.add_argument("--global", type=int, default=16_384, metavar="PAIRS", dest="whole", help="ALIGN's batch")
    parser.add_argument("--tokens", type=int, default=64, help="to which captions are padded")
    parser.add_argument("--vocabulary", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=8, help="that are timed")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.models if name not in BATCHES] if not arguments.batches else []
    if unknown:
        parser.error(f"{', '.join(unknown)}: give --batches too")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
