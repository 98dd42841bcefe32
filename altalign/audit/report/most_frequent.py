"""The most frequent texts, images, hosts and scripts, and the n-grams at the edge of the vocabulary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from altalign.audit.report import files
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import EDGE_NGRAMS, FREQUENT, HOSTS, SCRIPTS
from altalign.data.reasons import KEPT

MOST = 50


@dataclass(frozen=True)
class Counted:
    """A string and its count; None if only `about` is known, which is the count within 5 %."""

    value: str
    count: int | None
    about: int | None = None


@dataclass(frozen=True)
class Host:
    """How many images of a host were asked for, were fetched, and passed the image rules."""

    name: str
    images: int
    fetched: int
    kept: int


@dataclass(frozen=True)
class Script:
    """Candidates with captions mostly in one script, and how many `judge` dropped by reason, largest first."""

    name: str
    rows: int
    kept: int
    dropped: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Frequent:
    """All tables; each is None if the run has no file for it. Hosts and scripts come from samples of one in so many."""

    texts: list[Counted] | None
    images: list[Counted] | None
    ngrams_in: list[Counted] | None
    ngrams_out: list[Counted] | None
    hosts: list[Host] | None
    hosts_one_in: int
    scripts: list[Script] | None
    scripts_one_in: int


def of_run(run: RunFolder) -> Frequent:
    """Reads all tables of a run."""
    texts, images = (_values(run, kind) for kind in ("text", "image"))
    hosts, hosts_one_in = _hosts(run)
    scripts, scripts_one_in = _scripts(run)
    inside, outside = (_ngrams(run, is_in=is_in) for is_in in (True, False))
    return Frequent(texts, images, inside, outside, hosts, hosts_one_in, scripts, scripts_one_in)


def _values(run: RunFolder, kind: str) -> list[Counted] | None:
    rows = files.rows(run, FREQUENT)
    return None if rows is None else [Counted(row["value"], row["count"]) for row in rows if row["kind"] == kind][:MOST]


def _ngrams(run: RunFolder, *, is_in: bool) -> list[Counted] | None:
    rows = files.rows(run, EDGE_NGRAMS)
    if rows is None:
        return None
    return [Counted(row["ngram"], row["count"], _about(row["rarest_log2"])) for row in rows if row["is_in"] == is_in]


def _about(level: int | None) -> int | None:
    return None if level is None else round(2 ** (level / 8))


def _hosts(run: RunFolder) -> tuple[list[Host] | None, int]:
    rows = files.rows(run, HOSTS)
    if rows is None:
        return None, 1
    found = [Host(row["host"] or "", row["images"], row["fetched"], row["kept"]) for row in rows]
    return sorted(found, key=lambda host: (-host.images, host.name)), _one_in(rows)


def _scripts(run: RunFolder) -> tuple[list[Script] | None, int]:
    rows = files.rows(run, SCRIPTS)
    if rows is None:
        return None, 1
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        verdicts = found.setdefault(row["script"], {})
        verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + row["rows"]
    told = []
    for name, verdicts in found.items():
        rows_in_all, kept = sum(verdicts.values()), verdicts.pop(KEPT, 0)
        dropped = sorted(verdicts.items(), key=lambda entry: (-entry[1], entry[0]))
        told.append(Script(name, rows_in_all, kept, dict(dropped)))
    return sorted(told, key=lambda script: (-script.rows, script.name)), _one_in(rows)


def _one_in(rows: Sequence[Mapping[str, int]]) -> int:
    return max((row["sampled_one_in"] for row in rows), default=1)
