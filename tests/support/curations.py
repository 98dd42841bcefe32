"""Small real inputs and whole runs of the command line, for the end-to-end tests."""

import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.cli import main

ROOT = Path(__file__).parents[2]
# what may differ between two runs of the same settings and input (the contract, section 4)
EXEMPT = ("run.json", "log", "work", "report.html")

CONFIG = """
[run]
folder = "run"

[[input]]
name = "pictures"
kind = "table"
paths = ["input/*.parquet"]
image_column = "image"
page_url_column = "page"

[[input]]
name = "words"
kind = "table"
paths = ["text/*.csv"]

[text]
vocabulary_size = 380
images_per_text_at_most = 3

[image]
texts_per_image_at_most = 17

[decontaminate]
test_sets = ["tests"]

[shards]
samples_per_shard = 20
"""

PATTERNED, FLAT = (1, 5), 4  # numbers of pictures in the test set

_NOUNS = ["cat", "dog", "house", "tree", "river", "boat", "hill", "road", "bird", "lamp"]
_WORDS = ["a", "the", "small", "red", "blue", "old", "near", "under", "two", "with"]


def write_input(folder: Path, *, rows: int = 600, seed: int = 7) -> Path:
    """A config, two tables of images in hand and a table of text alone, in `folder`; returns the config's path."""
    rng = random.Random(seed)
    pictures = [_picture(folder, rng, number) for number in range(40)]
    for part in range(2):
        images = [rng.randrange(len(pictures)) for _ in range(rows // 2)]
        columns = {
            "url": [None if i % 7 == 0 else f"https://img.example/{i}.png" for i in images],
            "caption": ["click here to see more" if rng.random() < 0.05 else _caption(rng) for _ in images],
            "page": [rng.choice([None, "https://a.example/", "https://b.example/"]) for _ in images],
            "image": [pictures[i] if rng.random() < 0.9 else None for i in images],
        }
        for name in ("url", "caption", "image"):  # some pairs are there twice
            columns[name][10:25] = columns[name][30:45]
        path = folder / "input" / f"part-{part}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path, row_group_size=50)
    (folder / "text").mkdir(exist_ok=True)
    lines = ["url,caption", *(f"https://img.example/{rng.randrange(60)}.png,{_caption(rng)}" for _ in range(rows // 4))]
    (folder / "text" / "some.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _write_tests(folder / "tests", pictures)
    (folder / "config.toml").write_text(CONFIG, encoding="utf-8")
    return folder / "config.toml"


def flip(path: Path, at: int) -> None:
    """Change one bit of the byte at this place, counted from the end where it is negative."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def _write_tests(folder: Path, pictures: list[bytes]) -> None:
    """A test set: a picture of the pool, a flat one, a smaller copy of another one, and what is no picture."""
    folder.mkdir(exist_ok=True)
    (folder / "same.img").write_bytes(pictures[PATTERNED[0]])
    (folder / "flat.png").write_bytes(pictures[FLAT])
    with Image.open(io.BytesIO(pictures[PATTERNED[1]])) as image:
        image.convert("RGB").resize((240, 180)).save(folder / "copy.jpg", quality=60)
    (folder / "notes.txt").write_text("no picture\n", encoding="utf-8")


def _picture(folder: Path, rng: random.Random, number: int) -> bytes:
    size = rng.choice([(220, 240), (640, 230), (201, 603), (150, 300), (400, 300)])
    image = Image.new("RGB", size, tuple(rng.randrange(256) for _ in range(3)))
    if number % 4 == 1:  # the others are of one colour
        size = (400, 300)
        image = (
            Image.frombytes("L", (8, 6), random.Random(number).randbytes(48))
            .resize(size, Image.Resampling.BICUBIC)
            .convert("RGB")
        )
    path = folder / f".picture-{number}.png"
    folder.mkdir(parents=True, exist_ok=True)
    image.save(path, rng.choice(["PNG", "JPEG", "WEBP"]))
    data = path.read_bytes()
    path.unlink()
    return data[: len(data) // 2] if number % 9 == 0 else data


def _caption(rng: random.Random) -> str:
    return " ".join(rng.choice(_WORDS + _NOUNS) for _ in range(rng.choice([0, 1, 2, 3, 3, 4, 4, 5, 8, 25])))


def altalign(
    folder: Path, *args: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder`, as a user does, and wait for it."""
    return subprocess.run(
        command(*args), cwd=folder, env=environ(environment), capture_output=True, text=True, timeout=800, check=False
    )


def command(*args: str) -> list[str]:
    """The command line of a verb."""
    return [sys.executable, "-m", "altalign.cli", *args]


def environ(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of the command: this checkout's packages."""
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT), **(more or {})}


@contextmanager
def somebodys_prism(prism: str, log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The endpoint of a job server that is not the command's; one of its own cannot start meanwhile."""
    from altalign.pipelines.engine.jobs import serving
    from altalign.pipelines.engine.options import options
    from altalign.settings.curate import EngineSettings

    monkeypatch.setenv("ALTALIGN_PRISM", prism)
    with (
        serving("prism", options(EngineSettings(runner="prism"), []), str(log)) as endpoint,
        monkeypatch.context() as patch,
    ):
        patch.setenv("ALTALIGN_PRISM", shutil.which("false") or "/bin/false")
        yield endpoint


def fails(capsys: pytest.CaptureFixture[str], code: int, *args: str) -> str:
    """The one line that a command fails with."""
    capsys.readouterr()
    assert main(["curate", "config.toml", *args]) == code
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith("altalign: ")]
    assert "Traceback" not in error
    assert len(lines) == 1, error
    return lines[0].removeprefix("altalign: ")


def refused(capsys: pytest.CaptureFixture[str], *command: str, code: int = 2) -> str:
    """The one line that a command fails with."""
    capsys.readouterr()
    assert main([*command]) == code
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("altalign: "))
    return line.removeprefix("altalign: ")


def killed(folder: Path, args: list[str], when: Callable[[], bool]) -> None:
    """Runs a command and kills it as soon as something holds."""
    process = subprocess.Popen(
        command(*args),
        cwd=folder,
        env=environ(),
        start_new_session=True,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    while process.poll() is None and not when():
        pass
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tree(run: Path) -> dict[str, str]:
    """SHA-256 of every file of a run but those that are exempt."""
    files = (path for path in sorted(run.rglob("*")) if path.is_file() and path.relative_to(run).parts[0] not in EXEMPT)
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def listed(run: Path) -> list[str]:
    """All that there is in a run, but what engines say in its log/."""
    return sorted(name for path in run.rglob("*") if not (name := str(path.relative_to(run))).startswith("log/"))


class Finished(NamedTuple):
    """A folder with an input and a finished run, and what is in the run: digests (`tree`) and names (`listed`)."""

    folder: Path
    tree: dict[str, str]
    listed: list[str]

    def input_in(self, folder: Path) -> Path:
        """The same files of the same times under another folder's name."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if path.name not in ("run", "runs"):
                (folder / path.name).symlink_to(path)
        return folder


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """The rows of every Parquet file below a folder, in the order of their paths."""
    return [row for path in sorted(folder.rglob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def summary(run: Path) -> dict:
    """summary.json of a run."""
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def counted(run: Path) -> Counter[tuple[str, str, str]]:
    """Rows by stage, source and reason."""
    rows = pq.read_table(run / "counts.parquet").to_pylist()
    return Counter({(row["stage"], row["source"], row["reason"]): row["rows"] for row in rows})
