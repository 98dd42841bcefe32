"""A table: a kind of file in a run folder, with its path, its format and its columns."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data.audit_tables import AuditTable
from altalign.pipelines.run.units import Run
from altalign.storage import arrays, parquet


class Format(StrEnum):
    """How the rows of a table lie in its file."""

    PARQUET = "Parquet"
    ARROW = "messages of Arrow's IPC, without the schema"
    NUMPY = "a NumPy array"
    ROWS = "rows of a fixed size"
    JSON = "JSON"
    BYTES = "bytes"
    TAR = "tar"


@dataclass(frozen=True, eq=False)
class Table:
    """A kind of file in a run folder.

    Attributes:
        where: its path in the run folder; `*` stands for the name of a unit, of which each has its own file.
        format: how its rows lie there.
        columns: a schema, or the type of an array's elements; None where it has none.
        holds: what it is, in words.
    """

    where: str
    format: Format
    columns: "pa.Schema | np.dtype[Any] | None" = None
    holds: str = ""

    @classmethod
    def of_audit(cls, table: AuditTable) -> "Table":
        """A table that the report shows."""
        return cls(table.path, Format.PARQUET, table.schema, "for the report")

    @property
    def schema(self) -> pa.Schema:
        """The schema of a table in Parquet or Arrow."""
        assert isinstance(self.columns, pa.Schema)
        return self.columns

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The type of the elements of an array or of rows."""
        assert isinstance(self.columns, np.dtype)
        return self.columns

    def path(self, run: Run, name: str = "") -> str:
        """The file of a unit; without a name, of a table that has one file."""
        folder, *parts = self.where.replace("*", name).split("/")
        return run.work(*parts) if folder == "work" else run.path(folder, *parts)

    def read(self, run: Run, name: str = "") -> pa.Table:
        """The rows of a table in Parquet."""
        return parquet.read_table(self.path(run, name)).select(self.schema.names)

    def write(self, run: Run, rows: pa.Table, name: str = "") -> None:
        """Write a table in Parquet; other columns of the rows are left out."""
        parquet.write(self.path(run, name), rows.select(self.schema.names), self.schema)

    def array(self, run: Run, name: str = "", *, mapped: bool = False) -> npt.NDArray[Any]:
        """The array that a file holds; `mapped`: into memory, for a NumPy array."""
        path = self.path(run, name)
        if self.format is Format.NUMPY:
            return arrays.mapped(path) if mapped else arrays.read(path)
        return np.frombuffer(storage.read_bytes(path), self.dtype)

    def save(self, run: Run, array: npt.NDArray[Any], name: str = "") -> None:
        """Write an array."""
        path = self.path(run, name)
        if self.format is Format.NUMPY:
            arrays.save(path, array)
        else:
            storage.write_bytes(path, array.tobytes())
