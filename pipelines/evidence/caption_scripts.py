"""In which scripts captions are, kept and dropped: `audit/scripts.parquet`, of a sample of candidates that their keys have chosen."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from altalign.audit_tables import SCRIPTS
from altalign.filters.scripts import main_scripts
from altalign.pipelines.run import outputs
from altalign.pipelines.run.units import Run
from altalign.reasons import KEPT, Verdict

CANDIDATES_AT_MOST = 65_536  # about, in the sample
CHARACTERS_AT_MOST = 1_000  # of a caption that are looked at: each takes some 20 bytes of memory


def count(captions: pa.StringArray, verdicts: Verdict, keys: np.ndarray, *, one_in: int) -> Counter[tuple[str, str]]:
    """Candidates of the sample by script and verdict (null: kept); keys: uint8[n, 16]."""
    first = keys[:, :8].copy().view(">u8")[:, 0]
    rows = np.flatnonzero(first <= np.uint64((1 << 64) // one_in - 1))
    of_rows: list[Any] = verdicts.take(rows).dictionary_decode().fill_null(KEPT).to_pylist()
    begun: Any = pc.utf8_slice_codeunits(captions.take(rows), 0, CHARACTERS_AT_MOST)
    names: list[Any] = main_scripts(begun).to_pylist()
    return Counter(zip(names, of_rows, strict=True))


def write(run: Run, total: Counter[tuple[str, str]], *, one_in: int) -> None:
    """`audit/scripts.parquet`, sorted by script and verdict."""
    rows = [
        {"script": script, "verdict": verdict, "rows": n, "sampled_one_in": one_in}
        for (script, verdict), n in sorted(total.items())
    ]
    outputs.write_audit(run, SCRIPTS, pa.Table.from_pylist(rows, schema=SCRIPTS.schema))


def to_json(counts: Counter[tuple[str, str]]) -> list[list[str | int]]:
    """For a unit's file: script, verdict, rows."""
    return [[*name, rows] for name, rows in sorted(counts.items())]


def from_json(entries: Iterable[Sequence[Any]]) -> Counter[tuple[str, str]]:
    """The inverse of `to_json`."""
    return Counter({(script, verdict): rows for script, verdict, rows in entries})
