"""What `[data] read_together` brings: requests a pair and pairs a second from an S3 server, beside the disk.

    python -m benchmarks.reads [--rounds 3]

The server is versitygw (`make versitygw`), on this machine: it takes its share of the cores. Small images of
one source, one process that reads alone, in `.venv-readers`, which has torch.
"""

import argparse
import io
import random
import sys
from pathlib import Path

from PIL import Image

from altalign import storage
from benchmarks.harness import CACHE, READERS, Program, interleave, last_json, scratch
from benchmarks.loader import write_run
from benchmarks.our_reads import BATCH
from benchmarks.processes import Figures, ProgramError
from benchmarks.report import WITH_TORCH, target, write
from benchmarks.stores import s3

ROUNDS, PAIRS, PER_SHARD, IMAGES, SIDE_PX = 3, 2048, 1024, 64, 64
TOGETHER = (1, 16, 64)
_GET = " s3_GetObject "


def main() -> int:
    """Start the server, run, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, default=CACHE)
    arguments = parser.parse_args()
    try:
        with scratch(arguments.folder.absolute()) as folder:
            compete(arguments.rounds, folder)
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def compete(rounds: int, folder: Path) -> None:
    """All rounds."""
    disk = write_run(images(), folder / "run", pairs=PAIRS, per_shard=PER_SHARD, sources=1)
    with s3(folder, "bench") as log:
        store = "s3://bench/run"
        for path in filter(Path.is_file, disk.rglob("*")):
            storage.put_file(str(path), f"{store}/{path.relative_to(disk)}")
        done = interleave([_program(store, disk, together, log) for together in TOGETHER], rounds, warm_up=False)
    last = f"read_together {TOGETHER[-1]}"
    fewest = min(found[last]["requests_per_pair"] for found in done)
    targets = [target(f"requests a pair, `{last}`", fewest, at_most=2 / TOGETHER[-1])]
    facts: Figures = {"pairs": PAIRS, "per_shard": PER_SHARD, "batch": BATCH}
    print(write("reads", done, targets, environments=WITH_TORCH, is_full=rounds >= ROUNDS, **facts))


def images() -> list[bytes]:
    """JPEGs of noise, of some kilobytes."""
    drawn, made = random.Random(1), list[bytes]()
    for _ in range(IMAGES):
        data = io.BytesIO()
        Image.frombytes("RGB", (SIDE_PX, SIDE_PX), drawn.randbytes(3 * SIDE_PX**2)).save(data, "JPEG", quality=85)
        made.append(data.getvalue())
    return made


def _program(store: str, disk: Path, together: int, log: Path) -> Program:
    asked = [0]

    def begin() -> None:
        asked[0] = _gets(log)

    def says(output: str) -> Figures:
        return {**last_json(output), "requests_per_pair": (_gets(log) - asked[0]) / (PAIRS // BATCH * BATCH)}

    argv = [str(READERS), "-m", "benchmarks.our_reads", store, str(disk), "--together", str(together)]
    return Program(f"read_together {together}", argv, prepare=begin, says=says)


def _gets(log: Path) -> int:
    return log.read_text(encoding="utf-8").count(_GET)


if __name__ == "__main__":
    sys.exit(main())
