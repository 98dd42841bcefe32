"""Counts what a run of the text stages left: files, entries and bytes.

The arithmetic of docs/concepts/scale.md is checked against them.

    python -m benchmarks.counters RUN

One line of JSON.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from altalign.pipelines.engine.spilled_groups import slices_of
from altalign.pipelines.stages.tables import KINDS

OF_JUDGE = ("survivors", "places of images")  # kinds of slices in what its units spill


def main() -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    print(json.dumps(counters(parser.parse_args().run)))
    return 0


def counters(run: Path) -> dict[str, Any]:
    """Units, partitions, bytes of each step, entries of each table and what they were chosen from."""
    units, merged, judged, grouped = (
        run / "work" / step for step in ("tables/units", "tables/merged", "judge/units", "judge/grouped")
    )
    of_judge = spilled(judged, ".survivors", OF_JUDGE)
    return {
        "units": _files(units, ".json"),
        "count_partitions": _files(merged, ".json"),
        "group_partitions": _files(grouped, ".json"),
        "spilled_bytes": spilled(units, ".spill", (*KINDS, "images")),
        "merged_bytes": {kind: _bytes(merged, f".{kind}") for kind in ("ngrams", "texts", "images")},
        "survivors_bytes": {"spilled": of_judge["survivors"], "grouped": _bytes(grouped, ".parquet")},
        "marks_bytes": sum(_bytes(folder, ".json") for folder in (units, merged, judged, grouped)),
        "dropped_bytes": _bytes(run / "dropped" / "judge", ".parquet"),
        "tables": {path.stem: table(path) for path in sorted((run / "tables").glob("*.json"))},
    }


def spilled(units: Path, ending: str, kinds: Sequence[str]) -> dict[str, int]:
    """Bytes of each kind of slice, and of the places of all slices, in the spill files of a step."""
    found: Counter[str] = Counter()
    for mark in units.glob("*.json"):
        places = slices_of(str(mark.with_suffix(ending)), json.loads(mark.read_text(encoding="utf-8"))["spilled"])
        found["places"] += places.nbytes
        for number, kind in enumerate(kinds):
            found[kind] += int(places["length"][places["bucket"] % len(kinds) == number].sum())
    return dict(found)


def table(facts: Path) -> dict[str, int]:
    """Entries of a table, distinct keys that it was chosen from, and the bytes of its files."""
    found = json.loads(facts.read_text(encoding="utf-8"))
    return {
        "entries": found["rows"],
        "distinct": found["distinct"],
        "bytes": _sizes(facts.parent.glob(f"{facts.stem}*.npy")),
    }


def _files(folder: Path, suffix: str) -> int:
    return sum(1 for _ in folder.glob(f"*{suffix}"))


def _bytes(folder: Path, suffix: str) -> int:
    return _sizes(folder.glob(f"*{suffix}"))


def _sizes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


if __name__ == "__main__":
    sys.exit(main())
