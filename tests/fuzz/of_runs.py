"""Whole runs over inputs that are small and unpack huge: the command ends, with 0 or with one line, and its processes
together stay below 2 GB.

It is the command as a user calls it, in processes of its own, with two workers; from the input to shards where the
input holds images.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

from benchmarks.processes import Watch
from tests.fuzz import amplify
from tests.fuzz.mutate import BYTES_AT_MOST, mutate
from tests.fuzz.target import Target
from tests.hostile.files import picture
from tests.pipelines.read.pages.archives import response

MEMORY = 2_000_000_000  # of all processes, of a run with two workers
CPU_S = 400  # of a process; a hang takes more, whatever else the machine does
_LOOK_EVERY_S = 0.2
_LAST = 4_000  # characters of what a command said

_IMAGES = 'image_column = "image"\n', 'keep_columns = ["more"]\n', 'page_url_column = "page"\n'
_TEXT = "", 'page_url_column = "page"\n', 'keep_columns = ["more"]\n'

_GOOD = "good.warc"


def _good() -> bytes:
    """An archive with a pair that is kept, so that no run ends for want of one, and an image of other inputs' pages."""
    page = b'<!doctype html><p><img src="good.png" alt="a good picture beside all of this">'
    return b"".join(
        (
            response("http://good.example/", page),
            response("http://good.example/good.png", picture(77), "image/png"),
            response("http://a.example/i.png", picture(99), "image/png"),
        )
    )


def _config(kind: str, name: str, data: bytes) -> str:
    """Settings that the bytes of the input decide, so that an input is its file alone."""
    rng = Random(zlib.crc32(data))
    columns = ""
    if kind == "table":
        columns = rng.choice(_TEXT if not name.endswith((".parquet", ".arrow")) or rng.random() < 0.5 else _IMAGES)
    lines = [
        f'[run]\nfolder = "run"\n[[input]]\nkind = "{kind}"\npaths = ["{name}"]\n{columns}',
        f"skip_unreadable = {rng.choice(('true', 'false'))}\n",
        f"[text]\nimages_per_text_at_most = {rng.choice((10, 10_000_000))}\n",
        f"[image]\ntexts_per_image_at_most = {rng.choice((1_000, 10_000_000))}\n",
        f'[[input]]\nname = "good"\npaths = ["{_GOOD}"]\n[engine]\nworkers = 2\n',
    ]
    return "".join(lines)


def _check(kind: str, path: Path, _original: bytes) -> str:
    """Run the command; it may be refused, and may say that a file cannot be read, in one line."""
    folder = path.parent / "curated"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    data = path.read_bytes()
    (folder / path.name).write_bytes(data)
    (folder / _GOOD).write_bytes(_good())
    (folder / "config.toml").write_text(_config(kind, path.name, data))
    try:
        code, said, peak = _ran(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lines = [line for line in said.splitlines() if line.startswith("altalign: ")]
    wrong = [
        *([f"its processes took {peak // 10**6:,} MB"] if peak >= MEMORY else []),
        *([f"it ended with {code} (below zero: by that signal)"] if code not in (0, 1, 2) else []),
        *(["a traceback"] if "Traceback" in said else []),
        *([f"code {code}, and these lines: {lines}"] if len(lines) != (code != 0) else []),
    ]
    assert not wrong, f"{said[-_LAST:]}\n{'; '.join(wrong)}"
    return ("finished", "stopped", "refused")[code]


def _ran(folder: Path) -> tuple[int, str, int]:
    """Exit code, what was said, and bytes that all processes had resident at most."""
    command = [sys.executable, "-m", "altalign.cli", "curate", "config.toml"]
    with (folder / "said").open("wb") as said:
        child = subprocess.Popen(
            command, cwd=folder, stdout=said, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_unlimited
        )
    with Watch(child.pid) as watch:
        while child.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                child.wait(_LOOK_EVERY_S)
            if (watch.figures()["peak_bytes"] or 0) > 2 * MEMORY:  # the machine is not ours alone
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
    said_text = (folder / "said").read_text(encoding="utf-8", errors="replace")
    return child.returncode, said_text, watch.figures()["peak_bytes"] or 0


def _unlimited() -> None:
    """The command allocates as it does in the hands of a user: addresses are not counted."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))


def _of_parts(parts: Callable[[Random], Sequence[tuple[bytes, int]]], suffix: str, rng: Random) -> tuple[bytes, bytes]:
    data = amplify.packed(parts(rng), suffix)
    if suffix and rng.random() < 0.05:
        data = amplify.packed([(data, 1)], suffix)
    return b"", _damaged(data, rng)


def _whole(make: Callable[[Random], bytes], rng: Random) -> tuple[bytes, bytes]:
    return b"", _damaged(make(rng), rng)


def _damaged(data: bytes, rng: Random) -> bytes:
    """Some inputs also lie, or are cut off."""
    return mutate(data, rng) if len(data) < BYTES_AT_MOST and rng.random() < 0.3 else data


def _target(kind: str, suffix: str, make: Callable[[Random], tuple[bytes, bytes]]) -> Target:
    return Target(suffix, make, partial(_check, kind), wall_s=7_200, watches=True)


TARGETS = {
    "run.parquet": _target("table", ".parquet", partial(_whole, amplify.parquet)),
    "run.arrow": _target("table", ".arrow", partial(_whole, amplify.arrow)),
    **{
        f"run.{form}{suffix}": _target(
            "table", f".{form}{suffix}", partial(_of_parts, partial(amplify.lines, form), suffix)
        )
        for form, suffix in (("csv", ".gz"), ("csv", ""), ("tsv", ".zst"), ("jsonl", ".gz"), ("jsonl", ".zst"))
    },
    **{
        f"run.warc{suffix}": _target("warc", f".warc{suffix}", partial(_of_parts, amplify.records, suffix))
        for suffix in ("", ".gz", ".zst")
    },
    "run.wat.gz": _target("wat", ".wat.gz", partial(_of_parts, amplify.metadata, ".gz")),
    **{
        f"run.tar{suffix}": _target("webdataset", f".tar{suffix}", partial(_of_parts, amplify.members, suffix))
        for suffix in ("", ".gz", ".zst")
    },
}
