"""Fuzzes one target with Atheris, which looks for inputs that reach new lines of Python.

`python -m tests.fuzz.with_atheris TARGET FOLDER`.

Atheris is no dependency: `pip install atheris` into the environment first. What it passes over is native (Arrow,
FastWARC, decoders, kernels); readers in Python (lines, records, tars, footers, Pillow's plug-ins) are what it is good
for. More arguments are libFuzzer's.
"""

import sys
from pathlib import Path
from random import Random

import atheris

from altalign.filters import captions, identity, urls  # noqa: F401 - their kernels, before they could be instrumented

with atheris.instrument_imports(
    include=["altalign.pipelines.read", "tarfile", "PIL"],
    exclude=["altalign.pipelines.read.pages.html_kernels"],
    enable_loader_override=False,
):
    from tests.fuzz.targets import TARGETS

_SEEDS = 40


def main() -> None:
    """Write seeds to FOLDER/seeds, and let libFuzzer work on them; what fails is left in FOLDER."""
    target, folder = TARGETS[sys.argv[1]], Path(sys.argv[2])
    seeds = folder / "seeds"
    seeds.mkdir(parents=True, exist_ok=True)
    for number in range(_SEEDS):
        (seeds / str(number)).write_bytes(target.make(Random(number))[0])
    path = folder / f"input{target.suffix}"

    def check(data: bytes) -> None:
        path.write_bytes(data)
        target.check(path, b"")

    atheris.Setup(
        [sys.argv[0], str(seeds), f"-artifact_prefix={folder}/", "-rss_limit_mb=4096", "-timeout=20", *sys.argv[3:]],
        check,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
