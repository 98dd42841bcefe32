"""Other people's readers open runs with odd images, as found and portable; `make test-readers` has all of them."""

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.made_once import made_once
from tests.support.curations import ROOT, altalign
from tests.support.other_readers import READERS
from tests.support.pictures import encoded

EXPECTED = tomllib.loads((ROOT / "tests" / "cases" / "readers.toml").read_text(encoding="utf-8"))["reader"]
BESIDE = ROOT / ".cache" / "loaders"  # readers that the environment has not (tools/loaders.txt)

RED, GREEN, BLUE, GRAY = (200, 30, 30), (30, 200, 30), (30, 30, 200), (0x40FF, 0xC000)
ODD = {  # captions by what is odd of the image
    "turned": "a picture that its header turns",
    "deep": "a gray picture of sixteen bits",
    "animated": "an animation of three frames",
    "avif": "a picture of another format",
}
CAPTIONS = [
    "one caption of a picture",
    "another caption of the same picture",
    "12",
    "1e5",
    "007",
    "null",
    *ODD.values(),
]
PORTABLE = {"turned": "upright", "deep": "8 bits", "animated": "first frame", "avif": "read"}

CONFIG = """
[run]
folder = "{name}"

[[input]]
kind = "table"
paths = ["pairs.parquet"]
image_column = "image"

[text]
words_at_least = 1

[shards]
portable = {portable}
samples_per_shard = 8
"""


def pairs() -> list[dict[str, Any]]:
    """The rows of the table that is curated."""
    halves = np.full((240, 320, 3), RED, np.uint8)
    halves[:, 160:] = BLUE
    deep = np.full((240, 320), GRAY[0], np.uint16)
    deep[:, 160:] = GRAY[1]
    exif = Image.Exif()
    exif[0x0112] = 6  # the left half is above
    green, *others = (Image.new("RGB", (320, 240), colour) for colour in (GREEN, RED, BLUE))
    images = {
        "turned": encoded(Image.fromarray(halves), "JPEG", exif=exif),
        "deep": encoded(Image.fromarray(deep), "PNG"),
        "animated": encoded(green, "WEBP", save_all=True, append_images=others, duration=100, lossless=True),
        "avif": encoded(Image.fromarray(halves), "AVIF", quality=95),
    }
    plain = [encoded(Image.new("RGB", (320 + number, 240), GREEN), "JPEG") for number in range(5)]
    of_captions = [
        *((images[odd], [caption]) for odd, caption in ODD.items()),
        (plain[0], CAPTIONS[:2]),
        *((image, [text]) for image, text in zip(plain[1:], CAPTIONS[2:6], strict=True)),
    ]
    # Samples are in an order by URL: these bring a JPEG first, and PNG and AVIF after the five that readers infer from.
    return [
        {"url": f"http://a.example/{number}", "image": image, "caption": captions}
        for number, (image, captions) in enumerate(of_captions)
    ]


@pytest.fixture(scope="session")
def odd_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs of the same pairs: `portable`, and `found`."""

    def make(folder: Path) -> None:
        pq.write_table(pa.Table.from_pylist(pairs()), folder / "pairs.parquet")
        for name, portable in (("portable", "true"), ("found", "false")):
            (folder / f"{name}.toml").write_text(CONFIG.format(name=name, portable=portable), encoding="utf-8")
            done = altalign(folder, "curate", f"{name}.toml")
            assert done.returncode == 0, done.stderr

    return made_once("odd_runs", tmp_path_factory, make)


def told(odd: str, said: dict[str, Any]) -> str:
    """What a reader gave of an odd image, in the words of the table."""
    if said["error"]:
        return "refused"
    seen = dict(said["samples"]).get(ODD[odd], "skipped")
    if isinstance(seen, str):
        return {"skipped": "skipped", "bytes": "bytes", "NoneType": "none"}.get(seen, "refused")
    width, height, first, last = seen

    def near(*colours: tuple[int, ...], away: int = 4) -> bool:
        return np.shape(colours) == (2, len(first)) and np.abs(np.array([first, last]) - colours).max() <= away

    if odd == "turned":
        assert near(RED, BLUE)
        return {(320, 240): "on its side", (240, 320): "upright"}[width, height]
    if odd == "deep":
        upper = tuple((value >> 8,) * 3 for value in GRAY)
        words = {"8 bits": near(*upper), "16 bits": near(*zip(GRAY), away=0), "white": near((255,) * 3, (255,) * 3)}
        return next(word for word, is_so in words.items() if is_so)
    if odd == "animated":
        return "first frame" if near(GREEN, GREEN) else "another frame"
    return "read" if near(RED, BLUE) else "read wrong"


@pytest.mark.runs
@pytest.mark.parametrize("expected", EXPECTED, ids=lambda expected: expected["name"])
def test_a_reader_gives_what_the_table_says(expected: dict[str, str], odd_runs: Path, tmp_path: Path) -> None:
    package, _ = READERS[expected["name"]]
    if not [*Distribution.discover(name=package, path=[*sys.path, str(BESIDE)])]:
        pytest.skip(f"{package} is not installed; `make test-readers` has it")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{BESIDE}", "HF_HOME": str(tmp_path / "hf")}
    program = [sys.executable, "-W", "ignore", "-m", "tests.support.other_readers", expected["name"], str(tmp_path)]
    runs = [str(odd_runs / name) for name in ("portable", "found")]
    done = subprocess.run([*program, *runs], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    version, portable, found = json.loads(done.stdout.splitlines()[-1])
    assert expected["name"] == "altalign" or version == expected["version"]
    has_pictures = "avif" in expected
    assert {odd: told(odd, portable) for odd in ODD} == (PORTABLE if has_pictures else dict.fromkeys(ODD, "none"))
    assert {odd: told(odd, found) for odd in ODD} == {odd: expected.get(odd, "none") for odd in ODD}
    missing = [ODD[odd] for odd in ODD if expected.get(odd) == "skipped"]
    assert sorted(caption for caption, _ in portable["samples"]) == sorted(CAPTIONS)
    if not found["error"]:
        assert sorted([*missing, *(caption for caption, _ in found["samples"])]) == sorted(CAPTIONS)


def test_the_table_has_every_reader() -> None:
    assert [expected["name"] for expected in EXPECTED] == [*READERS]
