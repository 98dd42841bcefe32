"""Writes the results of a benchmark as JSON; `results/PART.json` is published.

`benchmarks.tables` makes the tables of the docs from it.
"""

import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import CACHE, OURS, PEERS, READERS, ROOT, Round, disturbed, summary
from benchmarks.processes import PROC, Figures

RESULTS = ROOT / "benchmarks" / "results"
OUR_PACKAGES = (
    *(
        "aiohttp",
        "altalign",
        "apache-beam",
        "fastwarc",
        "numba",
        "numpy",
        "pillow",
        "pyarrow",
        "selectolax",
        "simplejpeg",
    ),
    *("faiss-cpu", "onnxruntime", "timm", "tokenizers", "torch", "transformers"),
    *("megatron-energon", "open_clip_torch", "spdl", "torchvision", "webdataset"),  # peers that live in our environment
)
WITH_TORCH = {"ours": (READERS, OUR_PACKAGES)}  # environments of what runs on torch, peers among them
PEER_PACKAGES = (
    "duckdb",
    "faiss-cpu",
    "fastwarc",
    "imagehash",
    "img2dataset",
    "numpy",
    "opencv-python-headless",
    "polars",
    "pyarrow",
    "pyspark",
    "selectolax",
)
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
    environments: Mapping[str, tuple[Path, Iterable[str]]] | None = None,
    to: Path | None = None,
    **facts: Any,
) -> Path:
    """`results/PART.json`: facts, machine, versions, medians with ranges, every round.

    A run that is not `is_full`, of another size than the published one or fewer rounds, is for looking at and goes to
    the cache; `to` says where else. `environments` are the Pythons that ran, by whose they are, with the packages that
    count; left out: ours and that of the peers.
    """
    ran = environments or {"ours": (OURS, OUR_PACKAGES), "peers": (PEERS, PEER_PACKAGES)}
    document = {
        "part": part,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **facts,
        "machine": machine(),
        "versions": {whose: versions(python, packages) for whose, (python, packages) in ran.items()},
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


def versions(python: Path, packages: Iterable[str]) -> dict[str, str]:
    """The versions of an environment's Python and of these packages."""
    code = (
        "import json, sys; from importlib.metadata import distributions; print(json.dumps({found.name.lower(): "
        "found.version for found in distributions()}))"
    )
    found = json.loads(subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout)
    python_version = subprocess.run(
        [str(python), "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    return {"python": python_version, **{name: found[name] for name in packages if name in found}}
