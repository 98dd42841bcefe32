"""Who is filtered out: the share of captions with the words of a list that a run kept, with intervals.

Lists are the user's (`altalign audit --words NAME=FILE`). All captions are read that a rule saw: those in the shards,
and those that a stage from `judge` on dropped, but for pairs that are there once more.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from altalign import storage
from altalign.audit import run_parquet
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import KEPT, Stage
from altalign.dedup.thresholds import Share
from altalign.errors import UsageError
from altalign.filters import concepts
from altalign.filters.concepts import Entries

_STAGES = (Stage.JUDGE, Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE, Stage.SELECT)


@dataclass(frozen=True)
class Slice:
    """Captions that have a word of a list."""

    name: str  # of the list; "" of all captions
    captions: int  # how many there are
    kept: int  # how many of them the run kept
    low: float  # the lower end of the 95 % interval of the share kept (Wilson's)
    high: float  # its upper end
    dropped: dict[str, int]  # by stage


def of_run(run: RunFolder, lists: Mapping[str, str]) -> list[Slice]:
    """All captions, then those of each list; empty where there is no list.

    Raises UsageError: a list cannot be read or has no word, or the run kept no dropped rows.
    """
    if not lists:
        return []
    if not run.config.audit.keep_dropped:
        raise UsageError(f"--words: {run.folder} did not keep its dropped rows ([audit] keep_dropped = false)")
    entries = {name: _entries(path) for name, path in lists.items()}
    found = {name: Counter[str]() for name in ("", *lists)}
    for stage, captions in _captions(run):
        found[""][stage] += len(captions)
        for name, of_list in entries.items():
            found[name][stage] += len(set(concepts.match(captions, of_list).rows.tolist()))
    return [_slice(name, by_stage) for name, by_stage in found.items()]


def _slice(name: str, by_stage: "Counter[str]") -> Slice:
    captions, kept = by_stage.total(), by_stage[KEPT]
    dropped = {stage.value: by_stage[stage.value] for stage in _STAGES if by_stage[stage.value]}
    return Slice(name, captions, kept, *Share(kept, captions).interval(), dropped)


def _entries(path: str) -> Entries:
    try:
        lines = storage.read_bytes(path).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise UsageError(f"--words {path}: cannot be read ({error.strerror or error}); give NAME=FILE") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--words {path}: not UTF-8 (byte {error.start}); save it as UTF-8") from None
    found = Entries.of(pa.array(lines, pa.string()))
    if not len(found.hashes):
        raise UsageError(f"--words {path}: no word is in it; give words, one a line")
    return found


def _captions(run: RunFolder) -> Iterator[tuple[str, pa.StringArray]]:
    """Captions, and what became of them: `kept`, or the stage that dropped them."""
    for stage, folder in ((KEPT, ("shards",)), *((each.value, ("dropped", each.value)) for each in _STAGES)):
        for name in storage.names(run.path(*folder), ".parquet"):
            if not name.startswith("repeated-"):
                for rows in run_parquet.row_groups(run.path(*folder, name), ["caption"]):
                    captions: Any = rows["caption"].combine_chunks()
                    yield stage, captions.fill_null("")
