"""Files of a run's audit as the report reads them: what is not there is None, what is damaged is one line."""

import hashlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from altalign import __version__, storage
from altalign.audit import run_parquet
from altalign.audit.run_folder import RunFolder
from altalign.errors import UnreadableError


def table(run: RunFolder, name: str, columns: Sequence[str]) -> pa.Table | None:
    """These columns of a Parquet file of the run, by its path inside it; None where the run has no such file.

    Raises:
        UnreadableError: it is no Parquet file, or has not these columns.
    """
    path = run.path(name)
    return run_parquet.table(path, columns) if storage.exists(path) else None


def rows(run: RunFolder, name: str, columns: Sequence[str]) -> list[dict[str, Any]] | None:
    """The same, as a dict a row.

    Raises:
        UnreadableError: as above, or a string is not UTF-8.
    """
    found = table(run, name, columns)
    try:
        return None if found is None else found.to_pylist()
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{run.path(name)}: cannot be read as Parquet (a string is not UTF-8)") from error


def facts(run: RunFolder, name: str) -> dict[str, Any]:
    """A JSON file of the run; empty where there is none."""
    return storage.read_json(run.path(name))


def generator(run: RunFolder) -> str:
    """What a report is of, and by: with the same it would be the same."""
    return f"altalign {__version__}, of manifest {hashlib.sha256(storage.read_bytes(run.path('manifest.json'))).hexdigest()}"


def damaged(run: RunFolder, name: str, error: Exception) -> UnreadableError:
    """The error about a JSON file that has not what it should."""
    return UnreadableError(f"{run.path(name)}: not as it was written ({type(error).__name__}: {error!s:.60})")
