"""Embeddings of a folder of images, ours, without anything kept. Prints one line of JSON.

python -m benchmarks.our_eval_encode FOLDER --model ViT-S-32-alt --batch 64 --workers 2
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from altalign.eval.encoded import Features
from altalign.eval.labelled_sets import labelled_set
from altalign.train.exchange import models
from benchmarks.eval_encode import of_contestant
from benchmarks.open_clip_model import saved


def main() -> int:
    """Measure and print."""
    arguments = of_contestant(__doc__)
    with tempfile.TemporaryDirectory() as place:
        weights = saved(arguments.model, Path(place))
        encoder = models.opened(f"open_clip:{arguments.model}:{weights}")
    began = time.perf_counter()
    images = labelled_set(str(arguments.folder)).images
    encoded = Features(encoder, batch=arguments.batch, threads=arguments.workers).of_images(images)
    took = time.perf_counter() - began
    print(json.dumps({"images": len(encoded.rows), "work_s": took, "images_per_s": len(encoded.rows) / took}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
