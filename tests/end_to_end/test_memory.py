"""A run where memory is scarce: it fits its work to it, or says what it needs; what it writes is the same."""

import io
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.cli import main
from altalign.machine.memory import MB
from tests.support.curations import command, environ, tree

pytestmark = pytest.mark.faults


def limited(folder: Path, limit: str, kilobytes: int, *args: str) -> subprocess.CompletedProcess[str]:
    """The command under a limit of the shell's `ulimit`."""
    wanted = ["sh", "-c", f'ulimit {limit} {kilobytes}; exec "$@"', "sh", *command("curate", "config.toml", *args)]
    return subprocess.run(wanted, cwd=folder, env=environ(), capture_output=True, text=True, check=False)


def address_space_for(folder: Path, free: int) -> int:
    """Kilobytes for `ulimit -v` that leave so many bytes free once the command has started; what that takes differs, as
    with the size of the locale archive.
    """
    limit = 900_000
    said = limited(folder, "-v", limit).stderr  # refuses, and says what is free
    left = int(said.split(" MB are free")[0].split()[-1].replace(",", "")) * MB
    return limit + (free - left) // 1024


def test_with_little_memory_there_are_fewer_workers_and_the_same_bytes(folder: Path) -> None:
    assert main(["curate", "config.toml", "--set", "run.folder=whole"]) == 0
    one, two = 950 * MB, 1_100 * MB  # of addresses, that one thread and two take
    done = limited(folder, "-v", address_space_for(folder, (one + two) // 2), "--set", "engine.workers=4")
    assert done.returncode == 0, done.stderr
    assert "MB of memory are free (ulimit -v), so workers = 1\n" in done.stderr
    assert tree(folder / "run") == tree(folder / "whole")


def test_two_gigabytes_are_enough_for_two_workers(folder: Path) -> None:
    done = limited(folder, "-v", 2_000_000, "--set", "engine.workers=2")
    assert done.returncode == 0, done.stderr
    assert "of memory" not in done.stderr


def test_with_too_little_memory_it_says_what_it_needs_before_it_begins(folder: Path) -> None:
    done = limited(folder, "-v", 600_000)
    assert done.returncode == 2
    assert done.stderr.startswith("altalign: not enough memory: a curation takes 950 MB, and ")
    assert done.stderr.endswith(" MB are free (ulimit -v); give it more\n")
    assert not (folder / "run").exists()


def put_large_image(folder: Path, mode: str) -> None:
    large = io.BytesIO()
    Image.new(mode, (8_000, 8_000), 99).save(large, "PNG")  # 64 megapixels
    rows = {
        "url": ["https://img.example/large.png"],
        "caption": ["the large old house"],
        "page": [None],
        "image": [large.getvalue()],
    }
    path = folder / "input" / "part-1.parquet"
    pq.write_table(pa.table(rows, schema=pq.read_schema(path)), path)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_large_image_that_fits_is_decoded(folder: Path, mode: str) -> None:
    put_large_image(folder, mode)
    # 512 MB for the image; of 1,000,000 kB three quarters of what is free when the first image is decoded are 430 to
    # 590 MB, by what the text stages still hold
    done = limited(folder, "-d", 1_250_000, "--set", "engine.workers=1")
    assert done.returncode == 0, done.stderr


def test_an_image_that_there_is_no_memory_for_stops_the_run_which_continues_with_more(folder: Path) -> None:
    put_large_image(folder, "RGBA")
    done = limited(folder, "-d", 1_000_000)
    lines = [line for line in done.stderr.splitlines() if line.startswith("altalign: ")]
    assert done.returncode == 1, done.stderr
    assert len(lines) == 1
    assert lines[0].startswith(
        "altalign: https://img.example/large.png: no memory to decode an image of 8,000 x 8,000 pixels ("
    )
    assert "768 MB needed" in lines[0]
    assert lines[0].endswith("give it more, or set [engine] workers or [image] pixels_at_most lower")
    assert main(["curate", "config.toml"]) == 0
    assert main(["curate", "config.toml", "--set", "run.folder=whole"]) == 0
    assert tree(folder / "run") == tree(folder / "whole")
