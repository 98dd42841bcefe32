"""A finished run to be damaged, and what puts its manifest right again, so that one thing alone is wrong."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from altalign.audit.checks import Check, run_checks
from altalign.audit.run_folder import RunFolder
from altalign.cli import main
from altalign.data import shards
from altalign.data.schema import COUNTS
from tests.support.curations import write_input


def curated(folder: Path, *args: str, rows: int = 600, code: int = 0) -> Path:
    """A finished run of the small input, in `folder`, that ended with this exit code; returns the run's folder."""
    write_input(folder, rows=rows)
    with chdir(folder):
        assert main(["curate", "config.toml", *args]) == code
    return folder / "run"


def copied(run: Path, to: Path) -> Path:
    """A copy without work/."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("work", "log"))
    return to


def names(run: Path) -> list[str]:
    """Names of shards, without an ending."""
    return sorted(path.stem for path in (run / "shards").glob("*.tar"))


def rows_of(run: Path, *shards_of_it: str) -> list[dict[str, Any]]:
    """All rows of these side-cars, or of all."""
    return [
        row
        for name in shards_of_it or names(run)
        for row in pq.read_table(run / "shards" / f"{name}.parquet").to_pylist()
    ]


def edit_shard(run: Path, name: str, edit: Callable[[list[shards.Sample]], list[shards.Sample]]) -> None:
    """Write a shard anew with other samples."""
    path = run / "shards" / f"{name}.tar"
    with path.open("rb") as tar:
        found = edit(list(shards.samples(tar)))
    with path.open("wb") as tar:
        writer = shards.ShardWriter(tar)
        rows = [writer.write(sample.image, sample.row) for sample in found]
        writer.end()
    with path.with_suffix(".parquet").open("wb") as file:
        shards.write_sidecar(rows, file, path.name)


def seal(run: Path) -> None:
    """Make the manifest, the summary's totals and the counts of the last stage say what there is."""
    manifest, summary = (json.loads((run / name).read_text()) for name in ("manifest.json", "summary.json"))
    before = manifest["pairs"]
    entries = []
    for name in names(run):
        tar, parquet = (run / "shards" / f"{name}{ending}" for ending in (".tar", ".parquet"))
        digests = {"sha256": digest(tar), "parquet_sha256": digest(parquet)}
        entries.append(
            {"name": tar.name, "rows": pq.read_metadata(parquet).num_rows, "bytes": tar.stat().st_size, **digests}
        )
    rows = rows_of(run)
    manifest |= {"shards": entries, "pairs": len(rows), "settings_sha256": digest(run / "config.toml")}
    summary |= {
        "pairs": len(rows),
        "images": len({row["image_id"] for row in rows}),
        "bytes": sum(entry["bytes"] for entry in entries),
    }
    if len(rows) == before:
        (run / "manifest.json").write_text(json.dumps(manifest))
        (run / "summary.json").write_text(json.dumps(summary))


def digest(path: Path) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def set_in_config(run: Path, name: str, value: str, *, section: str = "") -> None:
    """Another value of a setting (the first of this name in its section), in TOML; the manifest takes its digest."""
    path = run / "config.toml"
    whole = path.read_text()
    at = whole.index(f"[{section}]") if section else 0
    before, text = whole[:at], whole[at:]
    text, number = re.subn(rf"^{name} = .*$", f"{name} = {value}", text, count=1, flags=re.MULTILINE)
    assert number == 1
    path.write_text(before + text)
    seal(run)


def edit_table(run: Path, name: str, edit: Callable[[np.ndarray], np.ndarray]) -> None:
    """Other hashes in a table."""
    path = run / "tables" / f"{name}.npy"
    hashes = np.sort(edit(np.load(path)))
    np.save(path, hashes)
    facts = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**facts, "rows": len(hashes)}))


def edit_counts(run: Path, edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Other counts."""
    path = run / "counts.parquet"
    pq.write_table(pa.Table.from_pylist(edit(pq.read_table(path).to_pylist()), COUNTS), path)


def block_an_image(run: Path) -> None:
    """A block list that has the first image."""
    path = run / "blocked.txt"
    path.write_text(f"# a list\n{rows_of(run)[0]['found_sha256'].upper()}\n")
    set_in_config(run, "blocked_hashes", f'["{path}"]')


def checks_of(run: Path, **more: Any) -> dict[str, Check]:
    """Its checks by name."""
    return {str(check.name): check for check in run_checks(RunFolder.open(str(run)), **more)}


def failing(run: Path, **more: Any) -> dict[str, str]:
    """Details of the checks that fail, but of `files`.

    That one sees that a file was edited at all (tests/end_to_end/test_files_of_a_run.py); the others see what is wrong.
    """
    found = checks_of(run, **more)
    return {name: check.detail for name, check in found.items() if check.passed is False and name != "files"}


def not_asked(run: Path) -> dict[str, str]:
    """Details of the checks that could not be asked."""
    return {name: check.detail for name, check in checks_of(run).items() if check.passed is None}
