"""Embeddings of a folder of images by open_clip's own zero-shot evaluation. Prints one line of JSON.

python -m benchmarks.peer_eval_encode FOLDER --model ViT-S-32-alt --batch 64 --workers 2
"""

import argparse
import json
import sys
import time

import open_clip  # pyright: ignore[reportMissingImports] (in its own environment)
import torch
from open_clip_train import zero_shot  # pyright: ignore[reportMissingImports] (likewise)
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from benchmarks.eval_encode import of_contestant


def main() -> int:
    """Measure and print."""
    arguments = of_contestant(__doc__)
    torch.manual_seed(0)
    model, _, transform = open_clip.create_model_and_transforms(arguments.model)
    classes = torch.randn(model.text_projection.shape[1], 10)
    began = time.perf_counter()
    images = ImageFolder(arguments.folder, transform)
    loader = DataLoader(images, batch_size=arguments.batch, num_workers=arguments.workers)
    options = argparse.Namespace(device="cpu", precision="fp32", batch_size=arguments.batch)
    zero_shot.accuracy = accuracy
    zero_shot.run(model.eval(), classes, loader, options)
    took = time.perf_counter() - began
    print(json.dumps({"images": len(images), "work_s": took, "images_per_s": len(images) / took}))
    return 0


def accuracy(logits: torch.Tensor, labels: torch.Tensor, topk: tuple[int, ...]) -> list[float]:
    """In place of theirs, which makes a number of an array of one element: NumPy 2.4 refuses that."""
    right = logits.topk(max(topk), 1)[1] == labels[:, None]
    return [float(right[:, :k].sum()) for k in topk]


if __name__ == "__main__":
    sys.exit(main())
