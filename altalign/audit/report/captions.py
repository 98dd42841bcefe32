"""What captions hold: the most frequent texts, hosts and scripts, and the words of lists."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from altalign import storage
from altalign.audit import rows as run_rows
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import EDGE_NGRAMS, FREQUENT, HOSTS, SCRIPTS
from altalign.data.reasons import KEPT, Stage
from altalign.dedup.thresholds import Share
from altalign.errors import UsageError
from altalign.filters import concepts
from altalign.filters.concepts import Entries

MOST_FREQUENT = 50

Row = dict[str, Any]


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
    strings, ngrams, hosts, scripts = (run_rows.listed(run, file) for file in (FREQUENT, EDGE_NGRAMS, HOSTS, SCRIPTS))
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
    texts, images = (
        None if strings is None else [row for row in strings if row["kind"] == kind][:MOST_FREQUENT]
        for kind in ("text", "image")
    )
    return Frequent(
        texts,
        images,
        None if ngrams is None else [row for row in ngrams if row["is_in"]],
        None if ngrams is None else [row for row in ngrams if not row["is_in"]],
        None if hosts is None else sorted(hosts, key=lambda row: (-row["images"], row["host"] or "")),
        max((row["sampled_one_in"] for row in hosts or ()), default=1),
        None if scripts is None else sorted(of_scripts, key=lambda script: (-script[1], script[0])),
        max((row["sampled_one_in"] for row in scripts or ()), default=1),
    )


# Who is filtered out: the share of captions with the words of a list that a run kept ----------------------------------

_STAGES = [stage.value for stage in (Stage.JUDGE, Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE, Stage.SELECT)]


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
    entries = {name: _entries(path) for name, path in lists.items()}
    by_stage = {name: Counter[str]() for name in ("", *lists)}
    for stage, folder in ((KEPT, ("shards",)), *((stage, ("dropped", stage)) for stage in _STAGES)):
        files = [name for name in storage.names(run.path(*folder), ".parquet") if not name.startswith("repeated-")]
        for rows in (rows for file in files for rows in run_rows.row_groups(run.path(*folder, file), ["caption"])):
            column: Any = rows["caption"].combine_chunks()
            captions = column.fill_null("")
            by_stage[""][stage] += len(captions)
            for name, words in entries.items():
                by_stage[name][stage] += len(set(concepts.match(captions, words).rows.tolist()))
    slices = []
    for name, stages in by_stage.items():
        number, kept = stages.total(), stages[KEPT]
        dropped = {stage: stages[stage] for stage in _STAGES if stages[stage]}
        slices.append(Slice(name, number, kept, *Share(kept, number).interval(), dropped))
    return slices


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
