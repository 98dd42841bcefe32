"""What captions hold: the most frequent texts, hosts and scripts, and the words of lists."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from altalign import storage
from altalign.audit import rows as run_rows
from altalign.audit.report import files
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import EDGE_NGRAMS, FREQUENT, HOSTS, SCRIPTS
from altalign.data.reasons import KEPT, Stage
from altalign.dedup.thresholds import Share
from altalign.errors import UsageError
from altalign.filters import concepts
from altalign.filters.concepts import Entries

MOST_FREQUENT = 50

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Frequent:
    """All tables; each is None if the run has no file for it. Hosts and scripts come from samples of one in so many."""

    texts: list[Row] | None  # `value` and `count` of each
    images: list[Row] | None  # likewise
    ngrams_in: list[Row] | None  # `value`, `count` (None: not known) and `about`, which is the count within 5 %
    ngrams_out: list[Row] | None  # likewise
    hosts: Sequence[Row] | None  # rows of `HOSTS`, those with the most images first
    hosts_one_in: int
    # name, candidates, how many `judge` kept, and rows by reason, those with the most candidates first
    scripts: list[tuple[str, int, int, dict[str, int]]] | None
    scripts_one_in: int


def frequent(run: RunFolder) -> Frequent:
    """Reads all tables of a run."""
    strings, ngrams, hosts, scripts = (files.rows(run, file) for file in (FREQUENT, EDGE_NGRAMS, HOSTS, SCRIPTS))
    for row in ngrams or ():
        level = row["rarest_log2"]
        row |= {"value": row["ngram"], "about": None if level is None else round(2 ** (level / 8))}
    by_script = dict[str, Counter[str]]()
    for row in scripts or ():
        by_script.setdefault(row["script"], Counter())[row["verdict"]] += row["rows"]
    of_scripts = []
    for name, verdicts in by_script.items():
        candidates, kept = verdicts.total(), verdicts.pop(KEPT, 0)
        dropped = dict(sorted(verdicts.items(), key=lambda entry: (-entry[1], entry[0])))
        of_scripts.append((name, candidates, kept, dropped))

    def where(rows: Sequence[Row] | None, column: str, value: object) -> list[Row] | None:
        return None if rows is None else [row for row in rows if row[column] == value]

    def one_in(rows: Sequence[Row] | None) -> int:
        return max((row["sampled_one_in"] for row in rows or ()), default=1)

    texts, images = (where(strings, "kind", kind) for kind in ("text", "image"))
    return Frequent(
        None if texts is None else texts[:MOST_FREQUENT],
        None if images is None else images[:MOST_FREQUENT],
        where(ngrams, "is_in", value=True),
        where(ngrams, "is_in", value=False),
        None if hosts is None else sorted(hosts, key=lambda row: (-row["images"], row["host"] or "")),
        one_in(hosts),
        None if scripts is None else sorted(of_scripts, key=lambda script: (-script[1], script[0])),
        one_in(scripts),
    )


# Who is filtered out: the share of captions with the words of a list that a run kept ----------------------------------

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


def slices(run: RunFolder, lists: Mapping[str, str]) -> list[Slice]:
    """All captions, then those of each list (`altalign audit --words NAME=FILE`); empty where there is no list.

    All captions are read that a rule saw: those in the shards, and those that a stage from `judge` on dropped, but for
    pairs that are there once more. Raises UsageError: a list cannot be read or has no word, or the run kept no dropped
    rows.
    """
    if not lists:
        return []
    if not run.config.audit.keep_dropped:
        raise UsageError(f"--words: {run.folder} did not keep its dropped rows ([audit] keep_dropped = false)")
    entries, by_stage = {name: _entries(path) for name, path in lists.items()}, {name: Counter[str]() for name in lists}
    all_of_them = Counter[str]()
    for stage, folder in ((KEPT, ("shards",)), *((each.value, ("dropped", each.value)) for each in _STAGES)):
        for file in storage.names(run.path(*folder), ".parquet"):
            if file.startswith("repeated-"):
                continue
            for rows in run_rows.row_groups(run.path(*folder, file), ["caption"]):
                column: Any = rows["caption"].combine_chunks()
                captions = column.fill_null("")
                all_of_them[stage] += len(captions)
                for name, words in entries.items():
                    by_stage[name][stage] += len(set(concepts.match(captions, words).rows.tolist()))
    return [_slice(name, stages) for name, stages in {"": all_of_them, **by_stage}.items()]


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
    entries = Entries.from_lines(pa.array(lines, pa.string()))
    if not len(entries.hashes):
        raise UsageError(f"--words {path}: no word is in it; give words, one a line")
    return entries
