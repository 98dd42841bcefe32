"""Images to scores: `altalign score` with a ViT-B/32 in ONNX, beside open_clip's own loop with the same model.

    python -m benchmarks.score_images [--rounds 3] [--images 300]

Both take the same JPEGs of the web's size, few that are linked often, and run the same towers with random weights:
ours one graph of onnxruntime in two threads, and a linear head; open_clip's zero-shot loop torch, with two processes
that decode. Start-up is left out of both: ours by the clock of its step, theirs from the first image read to the last
embedding. A longer run shows whether memory grows with the number of images, and how busy further images keep the
cores. It all runs in `.venv-readers`, which has open_clip.
"""

import argparse
import json
import os
import shutil
import sys
import tarfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from subprocess import STDOUT, Popen
from tempfile import TemporaryFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from altalign.schema import SAMPLE
from benchmarks.eval_encode import program, unpacked
from benchmarks.harness import CACHE, READERS, ROOT, Program, interleave, last_json, ratio, scratch
from benchmarks.images import generated
from benchmarks.open_clip_model import in_onnx
from benchmarks.processes import PROC, Figures, ProgramError, measure
from benchmarks.report import WITH_TORCH, target, write
from benchmarks.score_runs import run_of, samples, took

ROUNDS, PER_SHARD, SHARDS, SHARDS_OF_MANY = 3, 300, 2, 10
MODEL, BATCH, WORKERS = "ViT-B-32", 64, 2
TIMES_AT_LEAST, BUSY_AT_LEAST, BYTES_AT_MOST, GROWTH_AT_MOST = 1.1, 0.95, 3e9, 1.05
SCORES = '[[score]]\nname = "likes"\nkind = "linear"\nmodel = "onnx:clip"\nweights = "head.safetensors"\n'


def main() -> int:
    """Make a model and runs, measure, write the results; or one command, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--images", type=int, default=PER_SHARD, help="different ones, in each shard")
    parser.add_argument("--folder", type=Path, default=CACHE)
    parser.add_argument("--one", type=Path, help="score this run, in this process' working directory")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(timed(arguments.one)))
        return 0
    try:
        compete(arguments.rounds, arguments.images, arguments.folder.absolute())
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def compete(rounds: int, per_shard: int, folder: Path) -> None:
    """All rounds, and a run of more images."""
    tar = generated("web", per_shard, folder) / "web-000.tar"
    with scratch(folder) as place:
        in_onnx(MODEL, place / "clip")
        (place / "scores.toml").write_text(SCORES, encoding="utf-8")
        run_with(place / "run", tar, SHARDS)
        run_with(place / "many", tar, SHARDS_OF_MANY)
        images = repeated(unpacked(tar, folder / f"eval-{per_shard}"), place / "images", SHARDS)
        theirs = program("open_clip", images, model=MODEL, batch=BATCH, workers=WORKERS)
        done = interleave([ours(place, "run"), theirs], rounds)
        many, output = measure(ours(place, "many").argv, ROOT)
        many |= last_json(output)
    faster = ratio(done, "images_per_s", "altalign", "open_clip")
    cpu_s, wall_s = (many[name] - median(each["altalign"][name] for each in done) for name in ("cpu_s", "wall_s"))
    busy = cpu_s / wall_s / (os.cpu_count() or 1)  # by what further images take: hundreds of thousands hide the start
    targets = [
        target("images a second, times open_clip's loop", faster["median"], at_least=TIMES_AT_LEAST),
        target("share of the cores busy, start-up and report left out", busy, at_least=BUSY_AT_LEAST),
        target("peak memory, bytes", many["peak_bytes"] or 0, at_most=BYTES_AT_MOST),
        target("most memory of the last quarter, times the second's", many["growth"], at_most=GROWTH_AT_MOST),
    ]
    facts = {"model": MODEL, "batch": BATCH, "workers": WORKERS, "times_peer": faster, "many": many}
    is_full = rounds >= ROUNDS and per_shard >= PER_SHARD
    print(write("score_images", done, targets, environments=WITH_TORCH, is_full=is_full, **facts))


def ours(place: Path, run: str) -> Program:
    """The command on a run without scores."""
    argv = [str(READERS), "-m", "benchmarks.score_images", "--one", str(place / run)]
    return Program(
        "altalign", argv, prepare=partial(shutil.rmtree, place / run / "scores", ignore_errors=True), says=last_json
    )


def timed(run: Path) -> Figures:
    """Score a run: images a second by the clock, and how memory grew."""
    command, seen = [sys.executable, "-m", "altalign", "score", str(run), "--with", "scores.toml"], list[int]()
    with TemporaryFile("w+", encoding="utf-8") as said:
        with Popen(command, cwd=run.parent, stdout=said, stderr=STDOUT) as process:
            while process.poll() is None:
                seen.append(resident(process.pid))
                time.sleep(0.25)
        said.seek(0)
        output = said.read()
    if process.returncode:
        sys.exit(output)
    step_s = took(output)
    images = sum(pq.read_metadata(path).num_rows for path in (run / "scores" / "likes").glob("*.parquet"))
    quarters = [max(part, default=0) for part in np.array_split(np.array(seen), 4)]
    growth = float(quarters[3] / max(1, quarters[1]))
    return {"images": images, "work_s": step_s, "images_per_s": images / step_s, "growth": growth}


def resident(pid: int) -> int:
    """Bytes of memory of a process; 0 where it has ended, or nobody tells."""
    try:
        return int((PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def run_with(folder: Path, tar: Path, shards: int) -> None:
    """A finished run whose shards all have the images of this tar."""
    with tarfile.open(tar) as members:
        places = [(of.offset_data, of.size) for of in members if of.name.endswith(".jpg")]
    table = samples(np.random.default_rng(0), len(places), ["a red house near the sea"] * len(places))
    for name, values in zip(("tar_offset", "tar_bytes"), zip(*places, strict=True), strict=True):
        at = SAMPLE.get_field_index(name)
        table = table.set_column(at, SAMPLE.field(name), pa.array(values, SAMPLE.field(name).type))
    run_of(folder, [table], shards)
    for number in range(shards):
        os.link(tar, folder / "shards" / f"{number:05}.tar")


def repeated(images: Path, folder: Path, times: int) -> Path:
    """A folder with the images of this one so many times."""
    (folder / "class").mkdir(parents=True)
    for path in sorted(images.rglob("*.jpg")):
        for number in range(times):
            os.link(path, folder / "class" / f"{path.stem}-{number}.jpg")
    return folder


if __name__ == "__main__":
    sys.exit(main())
