"""A pool with copies of test images, a run of it that is made once a process, and its copies as they were after a
stage; for the tests of decontamination.
"""

import random
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageEnhance

from altalign.cli import main
from altalign.data.stages import STAGES
from altalign.demo import draw
from altalign.demo.scenes import random_scene
from altalign.pipelines.near import index
from tests.support.curations import rows_in
from tests.support.pictures import encoded

CONFIG = """
[run]
folder = "run"

[[input]]
kind = "table"
paths = ["pool.parquet"]
image_column = "image"

[decontaminate]
test_sets = [{name = "mine", path = "tests"}]

[shards]
samples_per_shard = 25
"""

# What becomes of a test image on its way into the pool.
COPIES: dict[str, Callable[[Image.Image], bytes]] = {
    "same": lambda image: encoded(image, "PNG"),
    "jpeg 50": lambda image: encoded(image, "JPEG", quality=50),
    "smaller": lambda image: encoded(image.resize((image.width * 3 // 4, image.height * 3 // 4)), "JPEG"),
    "recoloured": lambda image: encoded(ImageEnhance.Color(image).enhance(0.3), "PNG"),
    "mirrored": lambda image: encoded(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), "PNG"),
}


def scene(seed: int) -> Image.Image:
    """A drawn scene like no other."""
    rng = random.Random(seed)
    return draw.draw(random_scene(rng, distinctive=True), rng.randint(280, 340), rng.randint(280, 340), rng)


TESTS = [scene(number) for number in range(6)]
OTHERS = 60
FLAT = Image.new("RGB", (240, 240), (200, 30, 30))
AUGMENTED = 40  # enough to learn a map, and quick


def planted(*kinds: str) -> set[str]:
    """Names of the copies of these kinds."""
    return {f"{kind}-{number}" for kind in kinds for number in range(len(TESTS))}


FOUND = planted("same", "jpeg 50", "smaller", "recoloured") | {"flat-same"}


def write_pool(folder: Path, images: Sequence[tuple[str, bytes]]) -> None:
    """A table of images by name; two captions each."""
    rows = [
        (f"https://img.example/{name}", f"a picture of {name} in words {number}", data)
        for name, data in images
        for number in range(2)
    ]
    columns = dict(zip(("url", "caption", "image"), map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), folder / "pool.parquet")


def _write(folder: Path) -> None:
    """A pool with copies of all test images among others, a flat image twice, and the test set as a folder."""
    others = [(f"other-{number}", encoded(scene(1_000 + number), "PNG")) for number in range(OTHERS)]
    copies = [(f"{kind}-{number}", copy(image)) for number, image in enumerate(TESTS) for kind, copy in COPIES.items()]
    flat = [("flat-same", encoded(FLAT, "PNG")), ("flat-other", encoded(FLAT, "BMP"))]
    (folder / "tests" / "more").mkdir(parents=True)
    write_pool(folder, [*others, *copies, *flat])
    for number, image in enumerate(TESTS):
        (folder / "tests" / ("more" if number % 2 else ".") / f"{number}.png").write_bytes(encoded(image, "PNG"))
    (folder / "tests" / "flat.png").write_bytes(encoded(FLAT, "PNG"))
    (folder / "tests" / "labels.csv").write_text("file,label\n0.png,thing\n", encoding="utf-8")
    (folder / "config.toml").write_text(CONFIG, encoding="utf-8")


@cache
def _curated(folder: Path) -> Path:
    _write(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "TRAINING_IMAGES", AUGMENTED)
        patch.chdir(folder)
        curate("--set", "engine.workers=1")
    return folder


@pytest.fixture(scope="session")
def curated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pool and the test set, and in `run` a run of them from nothing, with one worker; not to be changed."""
    return _curated(tmp_path_factory.getbasetemp() / "curated")  # once, whatever module asks for it


@pytest.fixture
def folder(curated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: pool, test set and config, and no run."""
    monkeypatch.setattr(index, "TRAINING_IMAGES", AUGMENTED)
    for path in curated.iterdir():
        if path.name != "run":
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def judged(curated: Path, folder: Path) -> Path:
    """`folder` with a run whose images are not fetched yet."""
    return _copied(curated, folder, until="judge")


@pytest.fixture
def fetched(curated: Path, folder: Path) -> Path:
    """`folder` with a run that is not decontaminated yet; what its images teach is learned."""
    return _copied(curated, folder, until="fetch")


def _copied(curated: Path, folder: Path, *, until: str) -> Path:
    shutil.copytree(curated / "run", folder / "run")  # with the times of files
    curate("--rerun", STAGES[STAGES.index(until) + 1], "--until", until)
    assert not (folder / "run" / "dropped" / "decontaminate").exists()
    return folder


def curate(*args: str) -> None:
    """Run, or continue, the run of the working directory."""
    assert main(["curate", "config.toml", *args]) == 0


def failure(capsys: pytest.CaptureFixture[str], code: int, *args: str) -> str:
    """The one line that a command fails with."""
    capsys.readouterr()
    assert main(list(args)) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("altalign: ")]
    assert len(lines) == 1
    return lines[0]


def dropped(run: Path) -> list[dict[str, Any]]:
    """Rows that decontamination dropped."""
    return rows_in(run / "dropped" / "decontaminate")


def names(rows: Sequence[dict[str, Any]]) -> set[str]:
    """Names of the images of rows."""
    return {row["image_url"].rpartition("/")[2] for row in rows}
