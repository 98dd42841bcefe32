"""Shards to batches, with webdataset and torchvision as their documents have it.

All pairs of a run come over and over. Prints one line of JSON.

python -m benchmarks.peer_loader RUN --batch 64 --workers 2 --epochs 2
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import webdataset as wds
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from torchvision import transforms

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    for name in ("batch", "workers", "epochs"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    tars = [str(path) for path in sorted((arguments.run / "shards").glob("*.tar"))]
    dataset = (
        wds.WebDataset(tars * arguments.epochs, shardshuffle=False)
        .decode("pil")
        .to_tuple("jpg", "txt")
        .map_tuple(_transform(), _Tokens())
    )
    running = iter(DataLoader(dataset.batched(arguments.batch), batch_size=None, num_workers=arguments.workers))
    next(running)
    began = time.perf_counter()
    images = sum(len(batch[0]) for batch in running)
    took = time.perf_counter() - began
    print(json.dumps({"images": images, "work_s": took, "images_per_s": images / took}))
    return 0


def _transform() -> Any:
    """PILToTensor, not ToTensor: it leaves uint8, and is the faster."""
    resize = transforms.Resize((346, 346), transforms.InterpolationMode.BILINEAR, antialias=True)
    return transforms.Compose(
        [resize, transforms.RandomCrop(289), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    )


class _Tokens:
    """Word pieces of a caption, padded to 64."""

    def __init__(self) -> None:
        pieces = ["[PAD]", "[UNK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
        self._tokenizer = Tokenizer(
            models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
        )
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._tokenizer.enable_padding(length=64)
        self._tokenizer.enable_truncation(64)

    def __call__(self, caption: str) -> torch.Tensor:
        return torch.tensor(self._tokenizer.encode(caption).ids)


if __name__ == "__main__":
    sys.exit(main())
