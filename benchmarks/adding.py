"""What adding 1 % of input to a run costs, beside making the run: CPU seconds, and bytes of shards that are written.

    python -m benchmarks.adding [--images 20000]

Images are generated, in mixed formats. Both commands start anew and write their report, which is much of the CPU time
of few images. A third of the images is dropped, and decoded again.
"""

import argparse
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path

from benchmarks.harness import ALTALIGN, CACHE, OURS, Program, interleave, ratio, scratch
from benchmarks.images import generated
from benchmarks.processes import Figures, ProgramError
from benchmarks.report import OUR_PACKAGES, target, write

IMAGES, ROUNDS, ONE_IN = 20_000, 3, 100
CPU_AT_MOST, BYTES_AT_MOST = 0.1, 0.02
CONFIG = """
[run]
folder = "run"

[[input]]
kind = "webdataset"
paths = ["old/*.tar"]

[shards]
samples_per_shard = 1000
"""


def main() -> int:
    """Generate, run, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, default=CACHE)
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    try:
        with scratch(folder) as place:
            parted(generated("mixed", arguments.images, folder), place)
            compete(arguments.images, arguments.rounds, place)
    except ProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def parted(images: Path, place: Path) -> None:
    """Two tars of the samples of a folder of tars: every hundredth is in the second."""
    for name in ("old", "new"):
        (place / name).mkdir()
    (place / "config.toml").write_text(CONFIG, encoding="utf-8")
    before, number = "", -1
    with tarfile.open(place / "old" / "a.tar", "w") as old, tarfile.open(place / "new" / "b.tar", "w") as new:
        for path in sorted(images.glob("*.tar")):
            with tarfile.open(path) as tar:
                for member in tar:
                    key = member.name.partition(".")[0]
                    number, before = number + (key != before), key
                    (old if number % ONE_IN else new).addfile(member, tar.extractfile(member))


def compete(images: int, rounds: int, place: Path) -> None:
    """Make the run and add to it, in turns."""
    run = place / "run"
    curate = Program(
        "curate",
        [*ALTALIGN, "curate", "config.toml"],
        place,
        prepare=lambda: shutil.rmtree(run, ignore_errors=True),
        says=lambda _: {"bytes": sum(written(run, 0).values())},
    )
    add = Program("add", [*ALTALIGN, "add", "run", "--input", "new/b.tar"], place, says=lambda _: said(run))
    done = interleave([curate, add], rounds)
    targets = [
        target(
            "CPU seconds of adding, of making", ratio(done, "cpu_s", "add", "curate")["median"], at_most=CPU_AT_MOST
        ),
        target(
            "bytes written by adding, of all", ratio(done, "bytes", "add", "curate")["median"], at_most=BYTES_AT_MOST
        ),
    ]
    ours = {"ours": (OURS, OUR_PACKAGES)}
    is_full = images == IMAGES and rounds == ROUNDS
    print(write("adding", done, targets, is_full=is_full, environments=ours, images=images))


def said(run: Path) -> Figures:
    """The bytes of the tars that an addition has written, and how long its stages took."""
    ran = json.loads((run / "run.json").read_text(encoding="utf-8"))["stages"]
    seconds = {f"{stage}_s": facts["seconds"] for stage, facts in ran.items()}
    began_ns = (run / "config.toml").stat().st_mtime_ns  # what is older was there before
    return {"bytes": sum(written(run, began_ns).values()), **seconds}


def written(run: Path, since_ns: int) -> dict[str, int]:
    """Size of each tar that is not older than this."""
    entries = [entry for entry in os.scandir(run / "shards") if entry.name.endswith(".tar")]
    return {entry.name: size.st_size for entry in entries if (size := entry.stat()).st_mtime_ns >= since_ns}


if __name__ == "__main__":
    sys.exit(main())
