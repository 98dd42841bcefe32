"""What captions hold: the most frequent texts, images, hosts and scripts, and the words of lists."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from altalign import storage
from altalign.audit import rows as run_rows
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import EDGE_NGRAMS, FREQUENT, HOSTS, SCRIPTS
from altalign.data.reasons import KEPT, Stage
from altalign.dedup.thresholds import Share
from altalign.errors import UsageError, first_line
from altalign.filters import concepts


def frequent(run: RunFolder) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table, the most frequent first: texts, images, n-grams on both sides of the vocabulary, hosts.

    Of each script: its candidates, how many `judge` kept, and the others by reason. Empty where the run has no file.
    """
    strings, ngrams, hosts, scripts = (
        run_rows.listed(run, file) or [] for file in (FREQUENT, EDGE_NGRAMS, HOSTS, SCRIPTS)
    )
    verdicts = dict[str, Counter[str]]()
    for row in scripts:
        verdicts.setdefault(row["script"], Counter())[row["verdict"]] += row["rows"]
    of_scripts = [
        {"script": name, "rows": rows.total(), "kept": rows.pop(KEPT, 0), "dropped": dict(rows.most_common())}
        | {"sampled_one_in": scripts[0]["sampled_one_in"]}
        for name, rows in sorted(verdicts.items(), key=lambda each: (-each[1].total(), each[0]))
    ]
    return {
        "texts": [row for row in strings if row["kind"] == "text"],
        "images": [row for row in strings if row["kind"] == "image"],
        "ngrams_in": [row | {"value": row["ngram"]} for row in ngrams if row["is_in"]],
        "ngrams_out": [row | {"value": row["ngram"]} for row in ngrams if not row["is_in"]],
        "hosts": sorted(hosts, key=lambda row: (-row["images"], row["host"] or "")),
        "scripts": of_scripts,
    }


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
    entries = dict[str, concepts.Entries]()
    for name, path in lists.items():
        try:
            lines = storage.read_bytes(path).decode("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"--words {path}: cannot be read ({first_line(error)}); give NAME=FILE, in UTF-8"
            ) from None
        entries[name] = concepts.Entries.from_lines(pa.array(lines, pa.string()))
        if not len(entries[name].hashes):
            raise UsageError(f"--words {path}: no word is in it; give words, one a line")
    by_stage = {name: Counter[str]() for name in ("", *lists)}
    for stage, folder in ((KEPT, ("shards",)), *((stage, ("dropped", stage)) for stage in _STAGES)):
        files = [name for name in storage.names(run.path(*folder), ".parquet") if not name.startswith("repeated-")]
        for rows in (rows for file in files for rows in run_rows.row_groups(run.path(*folder, file), ["caption"])):
            column: Any = rows["caption"].combine_chunks()
            captions = column.fill_null("")
            by_stage[""][stage] += len(captions)
            for name, words in entries.items():
                by_stage[name][stage] += len(set(concepts.match(captions, words).rows.tolist()))
    found = []
    for name, stages in by_stage.items():
        number, kept = stages.total(), stages[KEPT]
        dropped = {stage: stages[stage] for stage in _STAGES if stages[stage]}
        found.append(Slice(name, number, kept, *Share(kept, number).interval(), dropped))
    return found
