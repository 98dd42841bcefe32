"""Tables of docs/concepts/speed.md and training-speed.md from the JSON of benchmarks/results.

    python -m benchmarks.tables [--write]

Prints them; `--write` puts each between its marks in its document, `<!-- benchmarks: text -->` and `<!-- end -->`. A
test holds the two together.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = [ROOT / "docs" / "concepts" / name for name in ("speed.md", "training-speed.md")]
NOT_YET = "Not measured yet."

Column = tuple[str, str, Callable[[float], str]]


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
        *(make(found) for make in FURTHER.get(part, ())),
        origin(found),
    ]
    return "\n\n".join(pieces)


def figures(programs: dict[str, Any], columns: Sequence[Column]) -> str:
    """A line for each program: medians, with ranges if there were several rounds."""
    shown = [column for column in columns if any(column[1] in found for found in programs.values())]
    lines = (
        [f"`{name}`", *(_spread(found.get(figure), show) for _, figure, show in shown)]
        for name, found in programs.items()
    )
    return _table(["", *(heading for heading, _, _ in shown)], lines)


def _spread(found: dict[str, float] | None, show: Callable[[float], str]) -> str:
    if found is None:
        return ""
    median, least, most = (show(found[name]) for name in ("median", "least", "most"))
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


def recalls(found: dict[str, Any]) -> str:
    """Recall of each descriptor at each rate of false positives, by set of images."""
    lines = [
        [images, f"`{descriptor}`", *(f"{at['recall']:.3f} (above {at['threshold']:.3f})" for at in rates)]
        for images, of in found["recall"].items()
        for descriptor, rates in of.items()
    ]
    rates = next(iter(next(iter(found["recall"].values())).values()))
    return _table(["Recall of copies", "", *(f"at {at['rate']:.0e} false positives" for at in rates)], lines)


def by_transform(found: dict[str, Any]) -> str:
    """Recall of each transform at the lowest rate, by descriptor: of both sets."""
    columns = [
        (images, descriptor, rates[-1]["by_transform"])
        for images, of in found["recall"].items()
        for descriptor, rates in of.items()
    ]
    names = dict.fromkeys(name for _, _, shares in columns for name in shares)
    lines = ([name, *(f"{shares[name]:.2f}" for _, _, shares in columns)] for name in names)
    return _table(["Copy", *(f"{images}, `{descriptor}`" for images, descriptor, _ in columns)], lines)


def counters(found: dict[str, Any]) -> str:
    """What runs left, in numbers and bytes: a line for each counter."""
    runs = {name: _flat(counts) for name, counts in found["counters"].items()}
    names = dict.fromkeys(name for counts in runs.values() for name in counts)
    return _table(
        ["Counter", *(f"`{name}`" for name in runs)],
        ([name, *(f"{counts.get(name, 0):,}" for counts in runs.values())] for name in names),
    )


def _flat(counts: dict[str, Any], prefix: str = "") -> dict[str, int]:
    flat: dict[str, int] = {}
    for name, value in counts.items():
        label = f"{prefix} {name}".replace("_", " ").strip()
        flat |= _flat(value, label) if isinstance(value, dict) else {label: value}
    return flat


def origin(found: dict[str, Any]) -> str:
    """Date, machine, versions, and disturbed runs."""
    machine, versions = found["machine"], {**found["versions"].get("peers", {}), **found["versions"]["ours"]}
    shown = [name for name in VERSIONS[found["part"]] if name in versions]
    runs = sum(len(done) for done in found["rounds"])
    disturbed = (
        f" Others kept more than a quarter of the cores busy in {len(found['disturbed'])} of {runs} runs."
        if found["disturbed"]
        else ""
    )
    names = ", ".join(f"{name} {versions[name]}" for name in shown)
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


def _seconds(value: float) -> str:
    return f"{value:.1f}"


def _hundredths(value: float) -> str:
    return f"{value:.2f}"


def _thousandths(value: float) -> str:
    return f"{value:.3f}"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f} MB"


def _gigabytes(value: float) -> str:
    return f"{value / 1e9:.2f} GB"


def _share(value: float) -> str:
    return f"{value:.0%}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _thousands(value: float) -> str:
    return f"{value / 1e3:,.0f} k"


MEMORY: list[Column] = [
    ("Peak memory", "peak_bytes", _gigabytes),
    ("Without mapped files", "peak_unmapped_bytes", _gigabytes),
]
TIME: list[Column] = [("CPU s", "work_cpu_s", _seconds), ("Wall s", "wall_s", _seconds)]
STAGES: list[Column] = [
    (f"{stage} s", f"{stage}_s", _seconds)
    for stage in ("extract", "tables", "judge", "fetch", "decontaminate", "write")
]
TEXT: list[Column] = [*TIME, ("Rows/s", "rows_per_s", _thousands), *MEMORY]
COLUMNS: dict[str, list[Column]] = {
    "text": TEXT,
    "scale": [*TEXT, ("Open files", "open_files", _whole)],
    "engines": [
        *TIME,
        ("Start-up, CPU s", "start_up_cpu_s", _seconds),
        ("Beside it, CPU s", "beside_start_up_cpu_s", _seconds),
        MEMORY[0],
    ],
    "scores": [*TIME, ("Captions/s", "captions_per_s", _thousands), MEMORY[0]],
    "score_images": [
        ("Images/s", "images_per_s", _seconds),
        *TIME,
        ("Cores busy", "cores_busy", _hundredths),
        MEMORY[0],
    ],
    "adding": [*TIME, ("Written", "bytes", _megabytes), MEMORY[0], *STAGES],
    "removing": [*TIME, MEMORY[0]],
    "pages": [("Pages a CPU s", "pages_per_cpu_s", _whole), *MEMORY[:1]],
    "images": [("Images a CPU s", "images_per_cpu_s", _whole), *MEMORY[:1]],
    "web": [
        ("Images", "fetched", _whole),
        ("Images/s", "images_per_s", _whole),
        *TIME,
        MEMORY[0],
        ("Last image to end, s", "tail_s", _seconds),
    ],
    "near_duplicates": [
        ("CPU us an image", "us_per_image", _whole),
        ("Built in s", "build_s", _hundredths),
        ("Beside the vectors", "index_bytes", _megabytes),
        MEMORY[0],
    ],
    "decontaminate": [
        ("Images", "images", _whole),
        ("Decode, us", "decode_us", _whole),
        ("Describe, us", "describe_us", _whole),
        ("Search, us", "us_per_image", _whole),
        ("Index built in s", "build_s", _hundredths),
        MEMORY[0],
    ],
    "descriptors": [("CPU us an image", "us_per_image", _whole), *TIME, MEMORY[0]],
    "train_step": [("Pairs a CPU s", "samples_per_cpu_s", _seconds), ("Pairs/s", "samples_per_s", _seconds), MEMORY[0]],
    "loader": [("Images/s", "images_per_s", _whole), *TIME, MEMORY[0]],
    "reads": [
        ("Requests a pair", "requests_per_pair", _thousandths),
        ("Pairs/s from S3", "pairs_per_s", _whole),
        ("Pairs/s from the disk", "pairs_per_s_from_disk", _whole),
    ],
    "scaled_decoding": [
        ("CPU ms an image", "ms_per_image", _hundredths),
        ("Levels apart, mean", "levels", _hundredths),
    ],
    "zerovl": [("Pairs a CPU s", "pairs_per_cpu_s", _seconds), ("Pairs/s", "pairs_per_s", _seconds), MEMORY[0]],
    "nlip": [("CPU s a step", "step_cpu_s", _hundredths), ("Memory of the steps", "step_bytes", _megabytes)],
    "concepts": [("CPU s", "search_cpu_s", _seconds), ("Wall s", "search_s", _seconds), MEMORY[0]],
    "loss_memory": [("Memory of the loss", "loss_bytes", _megabytes), ("Its seconds", "loss_s", _seconds), TIME[0]],
    "train_gpu": [
        ("Pairs/s", "samples_per_s", _whole),
        ("Peak GPU memory", "peak_bytes", _gigabytes),
        ("Of the GPU's arithmetic", "utilisation", _share),
    ],
    "whole": [
        ("Images", "fetched", _whole),
        ("Images/s", "images_per_s", _whole),
        *TIME,
        ("Cores busy", "cores_busy", _seconds),
        MEMORY[0],
        *STAGES,
    ],
}
VERSIONS = {
    "text": ("altalign", "python", "numba", "pyarrow", "polars", "duckdb"),
    "scale": ("altalign", "python", "numba", "pyarrow", "polars", "duckdb"),
    "engines": ("altalign", "python", "apache-beam", "numba", "pyarrow", "pyspark"),
    "scores": ("altalign", "python", "apache-beam", "numba", "numpy", "pyarrow"),
    "score_images": ("altalign", "python", "onnxruntime", "torch", "open_clip_torch", "pillow", "simplejpeg"),
    "adding": ("altalign", "python", "apache-beam", "numba", "pyarrow", "pillow", "simplejpeg"),
    "removing": ("altalign", "python", "numpy", "pyarrow"),
    "pages": ("altalign", "python", "numba", "fastwarc", "selectolax"),
    "images": ("altalign", "python", "pillow", "simplejpeg", "img2dataset", "opencv-python-headless"),
    "web": (
        "altalign",
        "python",
        "aiohttp",
        "apache-beam",
        "pillow",
        "simplejpeg",
        "img2dataset",
        "opencv-python-headless",
    ),
    "near_duplicates": ("altalign", "python", "numba", "numpy", "faiss-cpu"),
    "decontaminate": ("altalign", "python", "numba", "numpy", "pillow", "simplejpeg"),
    "descriptors": ("altalign", "python", "numba", "numpy", "pillow", "imagehash"),
    "train_step": ("altalign", "python", "torch", "timm", "transformers", "open_clip_torch"),
    "loader": (
        *("altalign", "python", "torch", "torchvision", "tokenizers", "simplejpeg"),
        *("webdataset", "spdl", "megatron-energon"),
    ),
    "reads": ("altalign", "python", "pyarrow"),
    "scaled_decoding": ("altalign", "python", "simplejpeg", "torch", "torchvision"),
    "zerovl": ("altalign", "python", "torch", "torchvision", "timm", "transformers", "tokenizers"),
    "nlip": ("altalign", "python", "torch", "timm", "transformers"),
    "concepts": ("altalign", "python", "torch", "numpy", "faiss-cpu"),
    "loss_memory": ("altalign", "python", "torch"),
    "train_gpu": ("altalign", "python", "torch", "timm", "transformers", "open_clip_torch"),
    "whole": ("altalign", "python", "apache-beam", "pillow", "simplejpeg"),
}
FURTHER: dict[str, list[Callable[[dict[str, Any]], str]]] = {
    "images": [refused],
    "scale": [counters],
    "descriptors": [recalls, by_transform],
}
MARKS = re.compile(rf"<!-- benchmarks: (?P<part>{'|'.join(COLUMNS)}) -->\n.*?<!-- end -->", re.DOTALL)


if __name__ == "__main__":
    sys.exit(main())
