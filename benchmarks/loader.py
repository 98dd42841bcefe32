"""Shards to batches: our loader beside pipelines of `webdataset`, SPDL and Megatron Energon, two workers each.

All read the same shards with the same transforms.

    python -m benchmarks.loader [--rounds 2]

Images are of the web's size. All give uint8 batches at 289 px of 346 and token numbers; time counts from the first
batch on, so that none pays for its start. All run in `.venv-readers`, which has torch, webdataset and torchvision; SPDL
and Energon are in a folder beside it (`tools/loaders.txt`).
"""

import hashlib
import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

from altalign.data.key import image_id, sample_key
from altalign.data.schema import SCHEMA_VERSION
from altalign.data.shards import ShardWriter, write_sidecar
from benchmarks.harness import READERS, ROOT, Program, command, interleave, last_json, ratio
from benchmarks.images import generated
from benchmarks.report import target, write

ROUNDS, IMAGES, PAIRS, PER_SHARD, SOURCES = 2, 300, 1200, 200, 4
BATCH, WORKERS, EPOCHS = 64, 2, 2
TIMES_AT_LEAST = 1.2
PEERS = {"webdataset": "webdataset", "spdl": "SPDL", "energon": "Energon"}
LOADERS = ROOT / ".cache" / "loaders"  # of those that the readers' environment has not
PACKAGES = ("torch", "torchvision", "tokenizers", "simplejpeg", "webdataset", "spdl", "megatron-energon")


def compete(rounds: int, folder: Path) -> None:
    """All rounds."""
    run = run_of_images(folder)
    os.environ["PYTHONPATH"] = str(LOADERS)
    done = interleave([_program(way, run) for way in ("altalign", *PEERS)], rounds, warm_up=False)
    faster = {peer: ratio(done, "images_per_s", "altalign", peer) for peer in PEERS}
    targets = [
        target(f"images a second with two workers, times {name}'s", faster[peer]["median"], at_least=TIMES_AT_LEAST)
        for peer, name in PEERS.items()
    ]
    facts: dict[str, Any] = {"pairs": PAIRS, "epochs": EPOCHS, "batch": BATCH, "workers": WORKERS}
    facts |= {"environments": [READERS], "packages": PACKAGES, "times_peer": faster}
    print(write("loader", done, targets, is_full=rounds >= ROUNDS, **facts))


def run_of_images(folder: Path) -> Path:
    """A run of pairs of some sources, made where it is not there yet."""
    made = folder / f"loader-{PAIRS}-of-{SOURCES}"
    return made if made.is_dir() else write_run(_images(generated("web", IMAGES, folder) / "web-000.tar"), made)


def _program(way: str, run: Path) -> Program:
    module = ["benchmarks.our_loader"] if way == "altalign" else ["benchmarks.peer_loader", way]
    options = f"--batch {BATCH} --workers {WORKERS} --epochs {EPOCHS}".split()
    return Program(way, [str(READERS), "-m", *module, str(run), *options], says=last_json)


def _images(tar: Path) -> list[bytes]:
    with tarfile.open(tar) as members:
        return [members.extractfile(member).read() for member in members if member.name.endswith(".jpg")]  # pyright: ignore[reportOptionalMemberAccess]


def write_run(
    images: list[bytes], folder: Path, *, pairs: int = PAIRS, per_shard: int = PER_SHARD, sources: int = SOURCES
) -> Path:
    """A finished run of pairs: each image several times, as pairs of their own."""
    partial = folder.with_suffix(".partial")
    (partial / "shards").mkdir(parents=True, exist_ok=True)
    shards = [
        _shard(partial / "shards" / f"{first // per_shard:05}", images, range(first, first + per_shard), sources)
        for first in range(0, pairs, per_shard)
    ]
    manifest = {"shards": shards, "pairs": pairs, "schema_version": SCHEMA_VERSION}
    (partial / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    partial.rename(folder)
    return folder


def _shard(stem: Path, images: list[bytes], numbers: range, sources: int) -> dict[str, Any]:
    with stem.with_suffix(".tar").open("wb") as file:
        writer = ShardWriter(file)
        rows = [
            writer.write(image, _row(number, image, sources))
            for number, image in ((number, images[number % len(images)]) for number in numbers)
        ]
        writer.end()
    with stem.with_suffix(".parquet").open("wb") as file:
        write_sidecar(rows, file, f"{stem.name}.tar")
    sidecar = hashlib.sha256(stem.with_suffix(".parquet").read_bytes()).hexdigest()
    return {
        "name": f"{stem.name}.tar",
        "rows": len(rows),
        "bytes": writer.bytes,
        "sha256": writer.sha256,
        "parquet_sha256": sidecar,
    }


def _row(number: int, image: bytes, sources: int) -> dict[str, Any]:
    url, caption = f"https://images.example/{number}.jpg", f"a picture with the number {number} in its name"
    digest = hashlib.sha256(image).hexdigest()
    texts = {
        "key": sample_key(url, caption),
        "image_id": image_id(url),
        "image_url": url,
        "caption": caption,
        "page_url": None,
        "source_key": None,
        "extra": None,
        "preferences": None,
        "source": f"source-{number % sources}",
    }
    sizes = {"width": 0, "height": 0, "format": "jpeg", "bytes": len(image), "words": 9}
    sizes |= {"tar_offset": 0, "tar_bytes": 0}
    return {**texts, **sizes, "sha256": digest, "found_sha256": digest}


if __name__ == "__main__":
    sys.exit(command(__doc__, compete, rounds=ROUNDS))
