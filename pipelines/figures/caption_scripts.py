"""The scripts of kept and dropped captions: `audit/scripts.parquet`, from a sample of candidates chosen by key."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.data.audit_tables import SCRIPTS
from altalign.data.reasons import KEPT, Verdict
from altalign.filters.languages import main_scripts
from altalign.pipelines.run import outputs
from altalign.pipelines.run.units import Run

CANDIDATES_AT_MOST = 65_536  # about, in the sample
CHARACTERS_AT_MOST = 1_000  # so many of a caption are looked at: each takes some 20 bytes of memory

Counted = Counter[tuple[str, str]]  # candidates by script and verdict


def count(captions: pa.StringArray, verdicts: Verdict, keys: npt.NDArray[np.uint8], *, one_in: int) -> Counted:
    """Count the candidates of the sample by script and verdict; keys: uint8[n, 16]."""
    first = keys[:, :8].copy().view(">u8")[:, 0]
    rows = np.flatnonzero(first <= np.uint64((1 << 64) // one_in - 1))
    of_rows: list[Any] = verdicts.take(rows).dictionary_decode().fill_null(KEPT).to_pylist()
    begun: Any = pc.utf8_slice_codeunits(captions.take(rows), 0, CHARACTERS_AT_MOST)
    scripts: Any = main_scripts(begun)
    return Counter(zip(scripts.to_pylist(), of_rows, strict=True))


def write(run: Run, total: Counted, *, one_in: int) -> None:
    """Write `audit/scripts.parquet`, sorted by script and verdict."""
    rows = [
        {"script": script, "verdict": verdict, "rows": n, "sampled_one_in": one_in}
        for (script, verdict), n in sorted(total.items())
    ]
    outputs.write_audit(run, SCRIPTS, rows)


def to_json(counts: Counted) -> list[tuple[str, str, int]]:
    """Script, verdict and rows, for a unit's file, where they are lists."""
    return [(*name, rows) for name, rows in sorted(counts.items())]


def from_json(entries: Iterable[tuple[str, str, int]]) -> Counted:
    """The inverse of `to_json`."""
    return Counter({(script, verdict): rows for script, verdict, rows in entries})
