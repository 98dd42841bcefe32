"""Reads the files that a report needs: a missing file is None, a damaged one is an error of one line."""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import __version__, storage
from altalign.audit import rows as run_rows
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import AuditTable
from altalign.errors import UnreadableError


def table(run: RunFolder, file: AuditTable) -> pa.Table | None:
    """A table with its declared types; None if the run has no such file. Raises as `rows.table`."""
    path = run.path(file.path)
    return run_rows.table(path, file.schema) if storage.exists(path) else None


def rows(run: RunFolder, file: AuditTable) -> list[dict[str, Any]] | None:
    """The rows of a table, each as a dict; None if the run has no such file.

    Raises as `table`, and UnreadableError: a string is not UTF-8.
    """
    whole = table(run, file)
    try:
        return None if whole is None else whole.to_pylist()
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{run.path(file.path)}: cannot be read as Parquet (a string is not UTF-8)") from error


def numbers(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """A column of whole numbers or truths as int64[n]; a null is -1."""
    return np.asarray(table[name].cast(pa.int64()).fill_null(pa.scalar(-1)))


def facts(run: RunFolder, name: str) -> dict[str, Any]:
    """The content of a JSON file of the run; empty if there is none."""
    return storage.read_json(run.path(name))


def generator(run: RunFolder) -> str:
    """Names the version and the manifest that a report is made from: the same two give the same report."""
    digest = hashlib.sha256(storage.read_bytes(run.path("manifest.json"))).hexdigest()
    return f"altalign {__version__}, of manifest {digest}"
