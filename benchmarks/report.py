"""Writes the results of a benchmark as JSON; `results/PART.json` is published.

`benchmarks.tables` makes the tables of the docs from it.
"""

import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import CACHE, OURS, PEERS, ROOT, Round, disturbed, summary
from benchmarks.processes import PROC, Figures

RESULTS = ROOT / "benchmarks" / "results"
INNERMOST = re.compile(r"\{[^{}\[\]]*\}|\[[^{}\[\]]*\]")  # of JSON: it reads best on one line


def target(what: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> Figures:
    """A figure and its target; prints both."""
    is_met = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
    aim = f"at least {at_least:g}" if at_most is None else f"at most {at_most:g}"
    print(f"{'met' if is_met else 'MISSED':<8} {what}: {value:.3g} ({aim})")
    return {"what": what, "value": value, "target": aim, "met": is_met}


def write(
    part: str,
    rounds: Sequence[Round],
    targets: Sequence[Figures],
    *,
    is_full: bool,
    packages: Sequence[str] = (),
    environments: Sequence[Path] = (OURS, PEERS),
    to: Path | None = None,
    **facts: Any,
) -> Path:
    """`results/PART.json`: facts, machine, versions, medians with ranges, every round.

    A run that is not `is_full`, of another size than the published one or fewer rounds, is for looking at and goes to
    the cache; `to` says where else. Of the `packages` that count the versions are written, from the first of the
    Pythons `environments` that has one.
    """
    document = {
        "part": part,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **facts,
        "machine": machine(),
        "versions": versions(environments, ("altalign", *packages)),
        "targets": list(targets),
        "disturbed": disturbed(rounds),
        "figures": summary(rounds),
        "rounds": list(rounds),
    }
    path = to or (RESULTS if is_full else CACHE) / f"{part}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(rounded(document), indent=1)
    path.write_text(INNERMOST.sub(lambda found: " ".join(found[0].split()), text) + "\n", encoding="utf-8")
    return path


def rounded(value: Any) -> Any:
    """Floats rounded to four significant digits."""
    match value:
        case float():
            return float(f"{value:.4g}")
        case dict():
            return {name: rounded(inner) for name, inner in value.items()}
        case list() | tuple():
            return [rounded(inner) for inner in value]
    return value


def machine() -> Figures:
    """Cores, memory and processor model; nothing that identifies the machine."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines(PROC / "cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "cores": os.cpu_count(),
        "cpu": cpu,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.system(),
    }


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def versions(pythons: Sequence[Path], packages: Sequence[str]) -> dict[str, str]:
    """The version of the first Python, and of these packages, each in the first Python that has it."""
    code = (
        "import json, platform; from importlib.metadata import distributions; print(json.dumps({'python': "
        "platform.python_version(), **{one.name.lower(): one.version for one in distributions()}}))"
    )
    every: dict[str, str] = {}
    for python in pythons:
        ran = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
        every = json.loads(ran.stdout) | every
    return {name: every[name] for name in ("python", *packages) if name in every}
