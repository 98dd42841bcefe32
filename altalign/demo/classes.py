"""Test sets of the demo: pictures of one shape each, in a folder of each class, for what is trained on the demo web.

shapes/train/circle/000.webp …    shapes/test/…
colours/train/red/000.webp …      colours/test/…

python -m altalign.demo.classes FOLDER
"""

import shutil
import sys
from pathlib import Path
from random import Random

from altalign.demo.draw import draw, encode
from altalign.demo.scenes import COLOURS, SHAPES, random_scene

SIDE_PX = 96
IMAGES = {"train": 40, "test": 20}  # of each class


def write(folder: Path, *, seed: int = 7) -> None:
    """Write both sets; the same seed gives the same bytes."""
    rng, partial = Random(seed), folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # what was broken off
    for kind, classes in (("shapes", SHAPES), ("colours", list(COLOURS))):
        for split, number in IMAGES.items():
            for name in classes:
                (partial / kind / split / name).mkdir(parents=True)
                for place in range(number):
                    (partial / kind / split / name / f"{place:03}.webp").write_bytes(_picture(kind, name, rng))
    partial.rename(folder)


def _picture(kind: str, name: str, rng: Random) -> bytes:
    """One shape of this class; scenes are drawn by lot until one is of it."""
    while True:
        scene = random_scene(rng)
        (first, *others) = scene.groups
        if not others and first.count == 1 and name == (first.shape if kind == "shapes" else first.colour):
            return encode(draw(scene, SIDE_PX, SIDE_PX, rng), "webp")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
