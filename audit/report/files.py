"""Reads the files that a report needs: a missing file is None, a damaged one is an error of one line."""

import hashlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from altalign import __version__, storage
from altalign.audit import run_parquet
from altalign.audit.run_folder import RunFolder
from altalign.errors import UnreadableError


def table(run: RunFolder, name: str, columns: Sequence[str]) -> pa.Table | None:
    """These columns of a Parquet file, by its path inside the run; None if the run has no such file.

    Raises:
        UnreadableError: it is no Parquet file, or lacks one of these columns.
    """
    path = run.path(name)
    return run_parquet.table(path, columns) if storage.exists(path) else None


def rows(run: RunFolder, name: str, columns: Sequence[str]) -> list[dict[str, Any]] | None:
    """The rows of a Parquet file of the run, as `table` reads it, each as a dict.

    Raises:
        UnreadableError: as `table`, or a string is not UTF-8.
    """
    found = table(run, name, columns)
    try:
        return None if found is None else found.to_pylist()
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{run.path(name)}: cannot be read as Parquet (a string is not UTF-8)") from error


def facts(run: RunFolder, name: str) -> dict[str, Any]:
    """The content of a JSON file of the run; empty if there is none."""
    return storage.read_json(run.path(name))


def generator(run: RunFolder) -> str:
    """Names the version and the manifest that a report is made from: the same two give the same report."""
    digest = hashlib.sha256(storage.read_bytes(run.path("manifest.json"))).hexdigest()
    return f"altalign {__version__}, of manifest {digest}"


def damaged(run: RunFolder, name: str, error: Exception) -> UnreadableError:
    """The error for a JSON file whose content is not what it should be."""
    return UnreadableError(f"{run.path(name)}: not as it was written ({type(error).__name__}: {error!s:.60})")
