"""Reads the files that a report needs: a missing file is None, a damaged one is an error of one line."""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import __version__, storage
from altalign.audit import run_parquet
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import AuditTable
from altalign.errors import UnreadableError


def table(run: RunFolder, of: AuditTable, *columns: str) -> pa.Table | None:
    """These columns of a table (none named: all) with their declared types; None if the run has no such file.

    Raises UnreadableError: it is no Parquet file, lacks one of these columns, or has other types.
    """
    path = run.path(of.path)
    schema = pa.schema([of.schema.field(name) for name in columns or of.schema.names])
    return run_parquet.table(path, schema) if storage.exists(path) else None


def rows(run: RunFolder, of: AuditTable) -> list[dict[str, Any]] | None:
    """The rows of a table, each as a dict; None if the run has no such file.

    Raises UnreadableError: as `table`, or a string is not UTF-8.
    """
    found = table(run, of)
    try:
        return None if found is None else found.to_pylist()
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{run.path(of.path)}: cannot be read as Parquet (a string is not UTF-8)") from error


def numbers(found: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """A column of whole numbers or truths as int64[n]; a null is -1."""
    return np.asarray(found[name].cast(pa.int64()).fill_null(pa.scalar(-1)))


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
