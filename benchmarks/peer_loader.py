"""Shards to batches by other loaders, as their documents have it: webdataset, Megatron Energon and SPDL.

All pairs of a run come over and over. All decode by Pillow and resize by torchvision: webdataset and Energon in
processes, SPDL in threads. Prints one line of JSON.

python -m benchmarks.peer_loader webdataset RUN --batch 64 --workers 2 --epochs 2
"""

import argparse
import io
import json
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from torchvision import transforms

RESIZE, CROP = 346, 289
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=_WAYS)
    parser.add_argument("run", type=Path)
    for name in ("batch", "workers", "epochs"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    tars = sorted((arguments.run / "shards").glob("*.tar"))
    running = _WAYS[arguments.way](tars, arguments.batch, arguments.workers, arguments.epochs)
    next(running)
    began = time.perf_counter()
    images = sum(running)
    took = time.perf_counter() - began
    print(json.dumps({"images": images, "work_s": took, "images_per_s": images / took}))
    return 0


def _webdataset(tars: list[Path], batch: int, workers: int, epochs: int) -> Iterator[int]:
    """Yields the sizes of batches, as all of these do."""
    wds: Any = import_module("webdataset")

    dataset = (
        wds.WebDataset([str(tar) for tar in tars] * epochs, shardshuffle=False)
        .decode("pil")
        .to_tuple("jpg", "txt")
        .map_tuple(_transform(), _Tokens())
    )
    for images, _ in DataLoader(dataset.batched(batch), batch_size=None, num_workers=workers):
        yield len(images)


def _energon(tars: list[Path], batch: int, workers: int, epochs: int) -> Iterator[int]:
    """In its own order, shards and parts of them shuffled; it makes its index first, which is not measured."""
    energon: Any = import_module("megatron.energon")
    prepare: Any = import_module("megatron.energon.flavors.webdataset.prepare")

    class Encoder(energon.DefaultTaskEncoder):
        decoder = energon.SampleDecoder(image_decode="pilrgb")

        def __init__(self) -> None:
            super().__init__()
            self.pixels, self.tokens = _transform(), _Tokens()

        @energon.stateless
        def encode_sample(self, sample: Any) -> Any:
            sample.image, sample.caption = self.pixels(sample.image), self.tokens(sample.caption)
            return sample

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for tar in tars:
            shutil.copyfile(tar, folder / tar.name)
        prepare.WebdatasetPreparator.prepare_dataset(
            folder, [tar.name for tar in tars], split_parts_ratio=[("train", 1.0)], workers=workers
        )
        (folder / ".nv-meta" / "dataset.yaml").write_text(
            "__module__: megatron.energon\n__class__: CaptioningWebdataset\nfield_map: {image: jpg, caption: txt}\n",
            encoding="utf-8",
        )
        config = energon.WorkerConfig(rank=0, world_size=1, num_workers=workers)
        of = {"batch_size": batch, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
        dataset = energon.get_train_dataset(folder, worker_config=config, task_encoder=Encoder(), repeat=True, **of)
        running, batches = iter(energon.get_loader(dataset)), len(tars) * epochs * _per_tar(tars) // batch
        for _ in range(batches):
            yield len(next(running).image)


def _per_tar(tars: list[Path]) -> int:
    with tarfile.open(tars[0]) as members:
        return sum(name.endswith(".txt") for name in members.getnames())


def _spdl(tars: list[Path], batch: int, workers: int, epochs: int) -> Iterator[int]:
    """In `workers` threads of one process. Its own decoder wants libraries of FFmpeg that no wheel brings."""
    tars_of: Any = import_module("spdl.io")
    pipelines: Any = import_module("spdl.pipeline")
    pixels, tokens = _transform(), _Tokens()

    def pairs(tar: Path) -> Iterator[tuple[bytes, str]]:
        found: dict[str, bytes] = {}
        for name, data in tars_of.iter_tarfile(tar.read_bytes()):
            found[name.rpartition(".")[2]] = bytes(data)
            if name.endswith(".json"):  # the last of a pair
                yield found["jpg"], found["txt"].decode()

    def made(pair: tuple[bytes, str]) -> tuple[torch.Tensor, torch.Tensor]:
        return pixels(Image.open(io.BytesIO(pair[0])).convert("RGB")), tokens(pair[1])

    def together(some: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
        images, captions = zip(*some, strict=True)
        return torch.stack(images), torch.stack(captions)

    builder = pipelines.PipelineBuilder().add_source(tars * epochs).pipe(pairs).pipe(made, concurrency=workers)
    builder = builder.aggregate(batch, drop_last=True).pipe(together).add_sink(2)
    pipeline = builder.build(num_threads=workers, max_failures=0)
    with pipeline.auto_stop():
        for images, _ in pipeline.get_iterator():
            yield len(images)


def _transform() -> Any:
    """PILToTensor, not ToTensor: it leaves uint8, and is the faster."""
    resize = transforms.Resize((RESIZE, RESIZE), transforms.InterpolationMode.BILINEAR, antialias=True)
    return transforms.Compose(
        [resize, transforms.RandomCrop(CROP), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
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


_WAYS = {"webdataset": _webdataset, "energon": _energon, "spdl": _spdl}

if __name__ == "__main__":
    sys.exit(main())
