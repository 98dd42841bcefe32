"""What is frequent: shared texts, captioned images, n-grams at the vocabulary's edge, hosts, scripts."""

from dataclasses import dataclass, field

from altalign.audit.report import files
from altalign.audit.run_folder import RunFolder
from altalign.reasons import KEPT

MOST = 50


@dataclass(frozen=True)
class Counted:
    """A string and its count; None where only `about` is known, to which it is within a twentieth."""

    value: str
    count: int | None
    about: int | None = None


@dataclass(frozen=True)
class Host:
    """Images that were asked of a host, that came, and that passed the image rules."""

    name: str
    images: int
    fetched: int
    kept: int


@dataclass(frozen=True)
class Script:
    """Candidates whose captions are mostly of a script, and what became of them in `judge`, by reason; the most frequent first."""

    name: str
    rows: int
    kept: int
    dropped: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Frequent:
    """Each is None where the run has no file of it. Hosts and scripts are of a sample, one in so many."""

    texts: list[Counted] | None
    images: list[Counted] | None
    ngrams_in: list[Counted] | None
    ngrams_out: list[Counted] | None
    hosts: list[Host] | None
    hosts_one_in: int
    scripts: list[Script] | None
    scripts_one_in: int


def of_run(run: RunFolder) -> Frequent:
    """All of them."""
    texts, images = (_values(run, kind) for kind in ("text", "image"))
    hosts, hosts_one_in = _hosts(run)
    scripts, scripts_one_in = _scripts(run)
    return Frequent(
        texts, images, _ngrams(run, is_in=True), _ngrams(run, is_in=False), hosts, hosts_one_in, scripts, scripts_one_in
    )


def _values(run: RunFolder, kind: str) -> list[Counted] | None:
    rows = files.rows(run, "audit/frequent.parquet", ("kind", "value", "count"))
    return None if rows is None else [Counted(row["value"], row["count"]) for row in rows if row["kind"] == kind][:MOST]


def _ngrams(run: RunFolder, *, is_in: bool) -> list[Counted] | None:
    rows = files.rows(run, "audit/edge_ngrams.parquet", ("ngram", "count", "rarest_log2", "is_in"))
    if rows is None:
        return None
    return [Counted(row["ngram"], row["count"], _about(row["rarest_log2"])) for row in rows if row["is_in"] == is_in]


def _about(level: int | None) -> int | None:
    return None if level is None else round(2 ** (level / 8))


def _hosts(run: RunFolder) -> tuple[list[Host] | None, int]:
    rows = files.rows(run, "audit/hosts.parquet", ("host", "images", "fetched", "kept", "sampled_one_in"))
    if rows is None:
        return None, 1
    found = [Host(row["host"] or "", row["images"], row["fetched"], row["kept"]) for row in rows]
    return sorted(found, key=lambda host: (-host.images, host.name)), max(
        (row["sampled_one_in"] for row in rows), default=1
    )


def _scripts(run: RunFolder) -> tuple[list[Script] | None, int]:
    rows = files.rows(run, "audit/scripts.parquet", ("script", "verdict", "rows", "sampled_one_in"))
    if rows is None:
        return None, 1
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        verdicts = found.setdefault(row["script"], {})
        verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + row["rows"]
    told = []
    for name, verdicts in found.items():
        dropped = sorted(
            ((reason, count) for reason, count in verdicts.items() if reason != KEPT),
            key=lambda entry: (-entry[1], entry[0]),
        )
        told.append(Script(name, sum(verdicts.values()), verdicts.get(KEPT, 0), dict(dropped)))
    return sorted(told, key=lambda script: (-script.rows, script.name)), max(
        (row["sampled_one_in"] for row in rows), default=1
    )
