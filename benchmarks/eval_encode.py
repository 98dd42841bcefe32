"""Images to embeddings for an evaluation: ours beside open_clip's own zero-shot loop, the same model on the same CPU.

    python -m benchmarks.eval_encode [--rounds 3]

Both read the same folder of JPEGs of the web's size and run the same model, whose weights are random. Time counts from
the first image read to the last embedding. Both run in `.venv-readers`, which has open_clip.
"""

import argparse
import sys
import tarfile
from pathlib import Path

from benchmarks.harness import CACHE, READERS, Program, interleave, last_json, ratio
from benchmarks.images import generated
from benchmarks.processes import ProgramError
from benchmarks.report import WITH_TORCH, target, write

ROUNDS, IMAGES, BATCH, WORKERS = 3, 300, 64, 2
MODEL = "ViT-S-32-alt"
TIMES_AT_LEAST = 1.0


def main() -> int:
    """Write images, run, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, default=CACHE)
    arguments = parser.parse_args()
    try:
        compete(arguments.rounds, arguments.folder.absolute())
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def compete(rounds: int, folder: Path) -> None:
    """All rounds."""
    images = unpacked(generated("web", IMAGES, folder) / "web-000.tar", folder / f"eval-{IMAGES}")
    of = {"model": MODEL, "batch": BATCH, "workers": WORKERS}
    done = interleave([program(way, images, **of) for way in ("altalign", "open_clip")], rounds, warm_up=True)
    faster = ratio(done, "images_per_s", "altalign", "open_clip")
    targets = [target("images a second, times open_clip's loop", faster["median"], at_least=TIMES_AT_LEAST)]
    facts = {"batch": BATCH, "workers": WORKERS, "model": MODEL, "times_peer": faster}
    print(write("eval_encode", done, targets, environments=WITH_TORCH, is_full=rounds >= ROUNDS, **facts))


def program(way: str, images: Path, *, model: str, batch: int, workers: int) -> Program:
    """Ours, or open_clip's loop, over a folder of images."""
    module = "benchmarks.our_eval_encode" if way == "altalign" else "benchmarks.peer_eval_encode"
    options = ["--model", model, "--batch", str(batch), "--workers", str(workers)]
    return Program(way, [str(READERS), "-m", module, str(images), *options], says=last_json)


def of_contestant(about: str | None) -> argparse.Namespace:
    """The arguments of both programs."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", required=True)
    for name in ("batch", "workers"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def unpacked(tar: Path, folder: Path) -> Path:
    """A folder with one class, made unless it is there."""
    if folder.is_dir():
        return folder
    partial = folder.with_suffix(".partial") / "class"
    partial.mkdir(parents=True, exist_ok=True)
    with tarfile.open(tar) as members:
        for member in members:
            if member.name.endswith(".jpg"):
                file = members.extractfile(member)
                (partial / Path(member.name).name).write_bytes(file.read() if file else b"")
    partial.parent.rename(folder)
    return folder


if __name__ == "__main__":
    sys.exit(main())
