"""Tables of docs/concepts/speed.md, training-speed.md and scale.md from the JSON of benchmarks/results.

    python -m benchmarks.tables [--write]

Prints them; `--write` puts each between its marks in its document, `<!-- benchmarks: text -->` and `<!-- end -->`. A
test holds the two together.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = [ROOT / "docs" / "concepts" / name for name in ("speed.md", "training-speed.md", "scale.md")]
NOT_YET = "Not measured yet."

Column = tuple[str, str, str]  # heading, figure, format of its value; that of bytes ends with its unit


def main() -> int:
    """Print, or write into the documents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into the documents")
    if parser.parse_args().write:
        for document in DOCUMENTS:
            document.write_text(filled(document.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print("\n\n".join(f"## {part}\n\n{markdown(part)}" for part in COLUMNS))
    return 0


def filled(document: str) -> str:
    """The document with the tables of today's results between its marks."""
    return MARKS.sub(
        lambda found: f"<!-- benchmarks: {found['part']} -->\n{markdown(found['part'])}\n<!-- end -->", document
    )


def markdown(part: str) -> str:
    """All tables of a part."""
    path = RESULTS / f"{part}.json"
    if not path.is_file():
        return NOT_YET
    return shown(json.loads(path.read_text(encoding="utf-8")))


def shown(found: dict[str, Any]) -> str:
    """All tables of a part, from its results."""
    part = found["part"]
    pieces = [
        figures(found["figures"], COLUMNS[part]),
        targets(found["targets"]),
        *([refused(found)] if "refused" in found else []),
        origin(found),
    ]
    return "\n\n".join(pieces)


def figures(programs: dict[str, Any], columns: Sequence[Column]) -> str:
    """A line for each program: medians, with ranges if there were several rounds."""
    shown = [column for column in columns if any(column[1] in found for found in programs.values())]
    lines = (
        [f"`{name}`", *(_spread(found.get(figure), form) for _, figure, form in shown)]
        for name, found in programs.items()
    )
    return _table(["", *(heading for heading, _, _ in shown)], lines)


def _spread(values: dict[str, float] | None, form: str) -> str:
    if values is None:
        return ""
    unit = next((scale for name, scale in SCALES.items() if form.endswith(name)), 1)
    median, least, most = (form.format(values[name] / unit) for name in ("median", "least", "most"))
    return median if least == most else f"{median} ({least} to {most})"


def targets(found: Iterable[dict[str, Any]]) -> str:
    """The targets and what was measured."""
    return _table(
        ["Target", "Wanted", "Measured", ""],
        ([t["what"], t["target"], f"{t['value']:.3g}", "" if t["met"] else "**missed**"] for t in found),
    )


def refused(found: dict[str, Any]) -> str:
    """Images that each program refuses, by kind of damage."""
    kinds = dict.fromkeys(kind for counts in found["refused"].values() for kind in counts)
    lines = ([f"`{name}`", *(str(counts.get(kind, 0)) for kind in kinds)] for name, counts in found["refused"].items())
    return _table(["Refused, of 16", *(kind.replace("_", " ") for kind in kinds)], lines)


def origin(found: dict[str, Any]) -> str:
    """Date, machine, versions, and disturbed runs."""
    machine, versions = found["machine"], found["versions"]
    runs = sum(len(done) for done in found["rounds"])
    disturbed = (
        f" Others kept more than a quarter of the cores busy in {len(found['disturbed'])} of {runs} runs."
        if found["disturbed"]
        else ""
    )
    names = ", ".join(f"{name} {version}" for name, version in versions.items())
    device = f"{found['device']}, " if "device" in found else ""
    return (
        f"{found['date']}, {device}{machine['cores']} cores ({machine['cpu']}), {machine['memory_bytes'] / 1e9:.0f} "
        f"GB.{disturbed} {names}."
    )


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(
        "|".join(["", *(f" {cell} " if cell else " " for cell in row), ""]).replace(" --- ", "---") for row in rows
    )


SCALES = {" GB": 1e9, " MB": 1e6, " k": 1e3}
MEMORY: list[Column] = [
    ("Peak memory", "peak_bytes", "{:.2f} GB"),
    ("Without mapped files", "peak_unmapped_bytes", "{:.2f} GB"),
]
TIME: list[Column] = [("CPU s", "work_cpu_s", "{:.1f}"), ("Wall s", "wall_s", "{:.1f}")]
STAGES: list[Column] = [
    (f"{stage} s", f"{stage}_s", "{:.1f}")
    for stage in ("extract", "tables", "judge", "fetch", "decontaminate", "write")
]
TEXT: list[Column] = [*TIME, ("Rows/s", "rows_per_s", "{:,.0f} k"), *MEMORY]
COLUMNS: dict[str, list[Column]] = {
    "text": TEXT,
    "pages": [("Pages a CPU s", "pages_per_cpu_s", "{:,.0f}"), *MEMORY[:1]],
    "images": [("Images a CPU s", "images_per_cpu_s", "{:,.0f}"), *MEMORY[:1]],
    "web": [
        ("Images", "fetched", "{:,.0f}"),
        ("Images/s", "images_per_s", "{:,.0f}"),
        *TIME,
        MEMORY[0],
        ("Last image to end, s", "tail_s", "{:.1f}"),
    ],
    "near_duplicates": [
        ("CPU us an image", "us_per_image", "{:,.0f}"),
        ("Built in s", "build_s", "{:.2f}"),
        ("Beside the vectors", "index_bytes", "{:,.0f} MB"),
        MEMORY[0],
    ],
    "browse": [
        ("Of ten, images", "image_recall", "{:.3f}"),
        ("Of ten, texts", "text_recall", "{:.3f}"),
        ("ms a text", "text_ms", "{:,.0f}"),
        ("CPU ms", "text_cpu_ms", "{:,.0f}"),
        ("ms, 1 % of the rows", "text_filtered_ms", "{:,.1f}"),
        ("Bytes a vector", "bytes_a_vector", "{:,.0f}"),
        ("Read in s", "read_s", "{:.1f}"),
        ("Built in s", "build_s", "{:.1f}"),
        MEMORY[0],
    ],
    "loader": [("Images/s", "images_per_s", "{:,.0f}"), *TIME, MEMORY[0]],
    "train_gpu": [
        ("Pairs/s", "samples_per_s", "{:,.0f}"),
        ("Peak GPU memory", "peak_bytes", "{:.2f} GB"),
        ("Of the GPU's arithmetic", "utilisation", "{:.0%}"),
    ],
    "scale": [
        ("To the first unit, s", "first_s", "{:.1f}"),
        *TIME,
        MEMORY[0],
        ("To merge", "merge_bytes", "{:.2f} GB"),
    ],
    "clusters": [("Wall s", "wall_s", "{:,.0f}"), ("Files compared", "files", "{:,.0f}")],
    "whole": [
        ("Images", "fetched", "{:,.0f}"),
        ("Images/s", "images_per_s", "{:,.0f}"),
        *TIME,
        ("Cores busy", "cores_busy", "{:.1f}"),
        ("Written", "written_bytes", "{:,.0f} MB"),
        MEMORY[0],
        *STAGES,
    ],
}
MARKS = re.compile(rf"<!-- benchmarks: (?P<part>{'|'.join(COLUMNS)}) -->\n.*?<!-- end -->", re.DOTALL)


if __name__ == "__main__":
    sys.exit(main())
