"""The most frequent texts, images, hosts and scripts, and the n-grams at the edge of the vocabulary."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from altalign.audit.report import files
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import EDGE_NGRAMS, FREQUENT, HOSTS, SCRIPTS
from altalign.data.reasons import KEPT

MOST = 50

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Frequent:
    """All tables; each is None if the run has no file for it. Hosts and scripts come from samples of one in so many."""

    texts: list[Row] | None  # `value` and `count` of each
    images: list[Row] | None  # likewise
    ngrams_in: list[Row] | None  # `value`, `count` (None: not known) and `about`, which is the count within 5 %
    ngrams_out: list[Row] | None  # likewise
    hosts: Sequence[Row] | None  # rows of `HOSTS`, those with the most images first
    hosts_one_in: int  # the sample of images
    # name, candidates, how many `judge` kept, and rows by reason, those with the most candidates first
    scripts: list[tuple[str, int, int, dict[str, int]]] | None
    scripts_one_in: int  # the sample of candidates


def of_run(run: RunFolder) -> Frequent:
    """Reads all tables of a run."""
    frequent, ngrams, hosts, scripts = (files.rows(run, of) for of in (FREQUENT, EDGE_NGRAMS, HOSTS, SCRIPTS))
    texts, images = (_where(frequent, "kind", kind) for kind in ("text", "image"))
    inside, outside = (_where(ngrams, "is_in", is_in) for is_in in (True, False))
    for row in ngrams or ():
        level = row["rarest_log2"]
        row |= {"value": row["ngram"], "about": None if level is None else round(2 ** (level / 8))}
    by_images = None if hosts is None else sorted(hosts, key=lambda row: (-row["images"], row["host"] or ""))
    return Frequent(
        None if texts is None else texts[:MOST],
        None if images is None else images[:MOST],
        inside,
        outside,
        by_images,
        _one_in(hosts),
        None if scripts is None else _scripts(scripts),
        _one_in(scripts),
    )


def _where(rows: Sequence[Row] | None, column: str, value: object) -> list[Row] | None:
    return None if rows is None else [row for row in rows if row[column] == value]


def _scripts(rows: Sequence[Row]) -> list[tuple[str, int, int, dict[str, int]]]:
    found: dict[str, Counter[str]] = {}
    for row in rows:
        found.setdefault(row["script"], Counter())[row["verdict"]] += row["rows"]
    scripts = []
    for name, verdicts in found.items():
        candidates, kept = verdicts.total(), verdicts.pop(KEPT, 0)
        dropped = dict(sorted(verdicts.items(), key=lambda entry: (-entry[1], entry[0])))
        scripts.append((name, candidates, kept, dropped))
    return sorted(scripts, key=lambda script: (-script[1], script[0]))


def _one_in(rows: Sequence[Row] | None) -> int:
    return max((row["sampled_one_in"] for row in rows or ()), default=1)
