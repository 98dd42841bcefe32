"""Archive to verdict beside img2dataset's resizer: images a CPU second in one thread, and damage noticed.

    python -m benchmarks.images [--rounds 3]

Each program reads the same tar of JPEGs of the web's size. `no` is img2dataset's default without resizing, which
encodes every image anew; `skip_reencode` keeps the bytes, as ours does. `libjpeg alone` decodes at an eighth of the
size and does nothing else: what is left to gain.
"""

import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import OURS, PEERS, ROOT, Program, command, interleave, last_json, ratio
from benchmarks.processes import measure
from benchmarks.report import target, write

ROUNDS, PASSES, IMAGES = 3, 3, 300
TIMES_AT_LEAST = {"no": 3.0, "skip_reencode": 2.0}
ALONE = "libjpeg alone"
PACKAGES = ("pillow", "simplejpeg", "img2dataset", "opencv-python-headless")


def compete(rounds: int, folder: Path) -> None:
    """All rounds, and once the damaged images."""
    web, damaged = (generated(kind, IMAGES, folder) / f"{kind}-000.tar" for kind in ("web", "damaged"))
    done = interleave([program(way, web, passes=PASSES) for way in ("altalign", *TIMES_AT_LEAST, ALONE)], rounds)
    refused: dict[str, dict[str, int]] = {}
    for way in ("altalign", *TIMES_AT_LEAST):
        refused[way] = {"sound": 0, **last_json(measure(program(way, damaged, passes=1).argv, ROOT)[1])["refused"]}
        print(f"{way:<14} refuses, of 16 each: {refused[way]}")
    noticed = {way: sum(counts.values()) - counts["sound"] for way, counts in refused.items()}
    faster = {way: ratio(done, "images_per_cpu_s", "altalign", way) for way in TIMES_AT_LEAST}
    targets = [
        target(f"images a CPU second, times img2dataset's ({way})", faster[way]["median"], at_least=least)
        for way, least in TIMES_AT_LEAST.items()
    ]
    targets.append(
        target(
            "damaged images noticed, of 80",
            noticed["altalign"],
            at_least=1 + max(noticed[way] for way in TIMES_AT_LEAST),
        )
    )
    targets.append(target("sound images refused, of 16", refused["altalign"]["sound"], at_most=0))
    facts: dict[str, Any] = {"images": IMAGES, "passes": PASSES, "times_peers": faster, "refused": refused}
    print(write("images", done, targets, packages=PACKAGES, is_full=rounds >= ROUNDS, **facts))


def generated(kind: str, images: int, folder: Path) -> Path:
    """A folder of tars of generated images, made unless it is there."""
    made = folder / f"images-{kind}-{images}"
    if not made.is_dir():
        partial = made.with_suffix(".partial")
        measure(
            [str(OURS), "-m", "benchmarks.generate_images", str(partial), "--kind", kind, "--images", str(images)], ROOT
        )
        partial.rename(made)
    return made


def program(way: str, tar: Path, *, passes: int) -> Program:
    """Ours, a way of img2dataset's resizer, or the decoder alone."""
    ours = {"altalign": "images", ALONE: "libjpeg"}
    peer = (str(PEERS), "-m", "benchmarks.peer_images", way)
    argv = (str(OURS), "-m", "benchmarks.ours", ours[way]) if way in ours else peer
    return Program(way, [*argv, str(tar), "--repeat", str(passes)], says=last_json)


if __name__ == "__main__":
    sys.exit(command(__doc__, compete, rounds=ROUNDS))
