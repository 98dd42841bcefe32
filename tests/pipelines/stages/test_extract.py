"""What is shown while a large file is extracted."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from altalign import storage
from altalign.pipelines import read
from altalign.pipelines.run import progress
from altalign.pipelines.run.units import InputFile, Run
from altalign.pipelines.stages import extract
from altalign.settings.curate import CurateConfig

HANDBOOK = sorted((Path(__file__).parents[3] / "examples" / "handbook").glob("*.warc.gz"))


def run_of(folder: Path, *paths: Path) -> Run:
    files = tuple(InputFile(number, str(path), 0) for number, path in enumerate(paths))
    return Run(str(folder), CurateConfig.from_values({"input": {"paths": ["-"]}}, where="test"), files)


def test_a_file_that_is_being_read_shows_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "SECONDS_BETWEEN_NOTES", 0.0)
    run, shown = run_of(tmp_path, *HANDBOOK), io.StringIO()
    sizes = [path.stat().st_size for path in HANDBOOK]
    units = extract.plan(run)
    storage.write_json(run.mark("extract", units[0]["name"]), {})
    with storage.noted() as block:
        extract._extract_file(run, run.files[1], [])
    assert not any("/reading/" in path for path in block.files)  # the mark of a unit does not vouch for notes
    noted = storage.read_json(run.work("extract", "reading", f"{units[1]['name']}.json"))["read"]
    assert 0.8 * sizes[1] < noted < sizes[1]
    with progress.watched(run, "extract", units, Console(file=shown), extract.Watch):
        pass
    total = f"{(sizes[0] + noted) / 1e6:,.1f} of {sum(sizes) / 1e6:,.1f} MB"
    assert shown.getvalue().startswith(f"extract: 1 of {len(HANDBOOK)} units, {total}, ")


def test_readers_say_how_far_they_are() -> None:
    said = [
        found.read
        for found in read.read(
            str(HANDBOOK[0]), CurateConfig.from_values({"input": {"paths": ["-"]}}, where="test").input[0]
        )
    ]
    assert said == sorted(said)
    assert 0.8 * HANDBOOK[0].stat().st_size < said[-1] < HANDBOOK[0].stat().st_size
