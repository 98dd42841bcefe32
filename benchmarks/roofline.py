"""What bounds a training step, and what ranks send each other: arithmetic, of five models. Nothing is timed.

    python -m benchmarks.roofline

Torch works out the shapes of forward and backward without a tensor (`train/footprint.py`). Operations are counted as
`train/flops.py` does. Bytes are counted twice: every operation and every kernel reads its inputs and writes its
results, as it runs; and products and convolutions alone do, as where all else is fused into them. It writes
`results/roofline.json`, and the tables of `docs/concepts/training-speed.md`.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from altalign.train import flops
from altalign.train.footprint import inputs_of, unit_of, without_memory
from altalign.train.model import gpu_kernels
from altalign.train.settings import TrainConfig
from altalign.train.step import arithmetic

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "roofline.json"
DOCUMENT = ROOT / "docs" / "concepts" / "training-speed.md"
PART = re.compile(r"(<!-- roofline: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

# NVIDIA's data sheet of the H200: dense bfloat16 operations, bytes of memory, and of NVLink in one direction, a second;
# and an InfiniBand port of 400 Gb/s a GPU
PEAK, MEMORY, NVLINK, INFINIBAND = flops.PEAKS["H200"], 4.8e12, 450e9, 50e9
BATCH, CHUNK = 16_384, 512
# the config, what differs from it, and the pairs a second of one H200 that are aimed at
MODELS: dict[str, tuple[str, tuple[str, ...], int]] = {
    "B3, BERT-Mini": ("align-cc3m-b3-mini", (), 2_500),
    "B5, BERT-Base": ("align-b7-base", ("image_tower.architecture=b5",), 1_100),
    "B7, BERT-Base": ("align-b7-base", (), 650),
    "L2, BERT-Large": ("align-l2-large", (), 150),
    "ViT-B/16, BERT-Base": ("zerovl-14m-b16", ("tokenizer.vocabulary_size=30522",), 2_000),
}
_OF_CONFIGS = ("tokenizer.file=", "text_tower.weights=", "image_tower.weights=", "image_tower.token_drop=0")
_MOVES_NOTHING = ("prim.", "empty")  # `prim.device` asks a tensor where it is
_PRODUCTS = ("convolution", "mm", "addmm", "bmm", "baddbmm", "attention")


class _Traffic(TorchDispatchMode):
    """Adds up the bytes that operations read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.all = self.of_products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not func.is_view and not any(name in str(func) for name in _MOVES_NOTHING):
            size = sum(map(_bytes, _tensors((args, kwargs or {}, made))))
            self.all += size
            self.of_products += size if any(name in str(func) for name in _PRODUCTS) else 0
        return made

    def launched(self, _kernel: object, _grid: object, *given: Any, **_constants: object) -> None:
        """In the place of `gpu_kernels.launched`."""
        self.all += sum(map(_bytes, _tensors(given)))


def main() -> int:
    """Count, write the results, and the tables of the document."""
    rows = [row(name) for name in MODELS]
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    DOCUMENT.write_text(filled(DOCUMENT.read_text(encoding="utf-8"), rows), encoding="utf-8")
    return 0


def row(name: str) -> dict[str, Any]:
    """The counts of one model: of a pair's forward and backward, and of its parameters."""
    file, overrides, goal = MODELS[name]
    config = TrainConfig.load(ROOT / "configs" / f"{file}.toml", [*_OF_CONFIGS, *overrides])
    vocabulary = config.tokenizer.vocabulary_size
    (few, few_of_products), (more, more_of_products), numbers, width = _traffic(config, vocabulary)
    between = unit_of(config)
    return {
        "model": name,
        "parameters": numbers,
        "width": width,
        "flops": flops.of_a_pair(config, vocabulary=vocabulary),
        "bytes": (more - few) / between,
        "bytes_of_products": (more_of_products - few_of_products) / between,
        "goal": goal,
    }


def _traffic(config: TrainConfig, vocabulary: int) -> tuple[tuple[int, int], tuple[int, int], int, int]:
    """Bytes of two sizes of a chunk, one unit apart, all and of products; and the model's parameters and width."""
    found, unit = list[tuple[int, int]](), unit_of(config)
    with without_memory(config, vocabulary=vocabulary) as model:
        for pairs in (2 * unit, 3 * unit):
            given, drawn = inputs_of(config, model, pairs)
            model.zero_grad(set_to_none=True)
            counted = _Traffic()
            with mock.patch.object(gpu_kernels, "launched", counted.launched), counted:
                with arithmetic.autocast("bfloat16", torch.device("cpu"))():
                    trained = [part for part in model(*given, **drawn) if part.requires_grad]
                torch.autograd.backward(trained, [torch.ones_like(part) for part in trained])
            found.append((counted.all, counted.of_products))
        numbers = sum(parameter.numel() for parameter in model.parameters())
        return found[0], found[1], numbers, model.width


def bounds(of: dict[str, Any]) -> tuple[float, float, float]:
    """The most pairs a second on an H200: by operations, by the bytes of products alone, and by all bytes."""
    return PEAK / of["flops"], MEMORY / of["bytes_of_products"], MEMORY / of["bytes"]


def sent(of: dict[str, Any], gpus: int) -> tuple[float, float]:
    """Bytes that a GPU sends in a step of the global batch: with whole copies, and sharded.

    An all-reduce sends everything twice, a gather once, and so does a sum that is spread. Whole copies sum gradients
    once, whatever the chunks. Sharded, each chunk gathers weights for its forward and its backward, and spreads
    gradients; where there are several, the first pass gathers too.
    """
    part, chunks = (gpus - 1) / gpus, -(-BATCH // (gpus * CHUNK))
    weights, texts = 4 * of["parameters"] * part, 2 * 4 * BATCH * of["width"] * part
    return 2 * weights + texts, (3 + (chunks > 1)) * chunks * weights + texts


def filled(document: str, rows: list[dict[str, Any]]) -> str:
    """The document with both tables."""
    tables = {"bounds": _bounds_table(rows), "sent": _sent_table(rows)}
    return PART.sub(lambda part: f"{part[1]}{tables[part[2]]}{part[3]}", document)


def _bounds_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| | GFLOP a pair | MB a pair, products alone | MB a pair, as it runs | Pairs/s at most, by FLOPs "
        "| by bytes of products | by all bytes | Bound | Goal, pairs/s | of the bound |",
        "|---|---:|---:|---:|---:|---:|---:|---|---:|---:|",
    ]
    for of in rows:
        by_flops, by_products, by_all = bounds(of)
        least = min(by_flops, by_products)
        lines.append(
            f"| {of['model']} | {of['flops'] / 1e9:,.0f} | {of['bytes_of_products'] / 1e6:,.0f} "
            f"| {of['bytes'] / 1e6:,.0f} | {by_flops:,.0f} | {by_products:,.0f} | {by_all:,.0f} "
            f"| {'FLOPs' if by_flops < by_products else 'bytes'} | {of['goal']:,} | {of['goal'] / least:.0%} |"
        )
    return "\n".join(lines) + "\n"


def _sent_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| | M parameters | 8 GPUs: s a step | GB sent, ms | sharded | 64 GPUs: s a step | GB sent, ms | sharded |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for of in rows:
        cells = list[str]()
        for gpus, link in ((8, NVLINK), (64, INFINIBAND)):
            cells.append(f"{BATCH / gpus / of['goal']:.2f}")
            cells += [f"{size / 1e9:,.1f}, {1e3 * size / link:,.0f}" for size in sent(of, gpus)]
        lines.append(f"| {of['model']} | {of['parameters'] / 1e6:,.0f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def _bytes(tensor: Tensor) -> int:
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


if __name__ == "__main__":
    sys.exit(main())
