"""The synthetic (url, text) rows that the text stages are timed on.

Their generator is in the shared bench folder beside the checkout.
"""

from pathlib import Path

from benchmarks.harness import CACHE, PEERS, ROOT
from benchmarks.processes import ProgramError, measure

SHARED_BENCH = ROOT.parent / "shared" / "bench"
ROWS_PER_FILE = 250_000


class MissingError(ProgramError):
    """Something that the benchmark needs is not there."""


def generated(count: int, folder: Path = CACHE) -> Path:
    """A folder of Parquet files with this many rows, made unless it is there.

    It is read once, so that all who follow find it in memory.

    Raises:
        MissingError: there is no generator.
        ProgramError: it failed.
    """
    made = folder / f"rows-{count}"
    if not made.is_dir():
        partial = made.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        files = max(1, count // ROWS_PER_FILE)
        measure([str(PEERS), str(script("gen.py")), str(partial), str(count), str(files), "--plain"], ROOT)
        partial.rename(made)
    for file in sorted(made.glob("*.parquet")):
        with file.open("rb") as opened:
            while opened.read(1 << 24):
                pass
    return made


def script(name: str) -> Path:
    """The path of a peer's script in the shared folder.

    Raises:
        MissingError: it is not there.
    """
    path = SHARED_BENCH / name
    if not path.is_file():
        raise MissingError(
            f"{path}: not there; this benchmark needs the generator and the peers of the shared bench folder beside "
            "the checkout"
        )
    return path
