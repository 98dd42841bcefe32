"""What stages declare to read and to write is what they do, on a run of every kind of step."""

import re
import shutil
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign import storage
from altalign.data.stages import STAGES
from altalign.pipelines import curate
from altalign.pipelines.engine.jobs import started
from altalign.pipelines.engine.options import options
from altalign.pipelines.opening import reopen
from altalign.pipelines.opening.find import find_run
from altalign.pipelines.run.outputs import written_by
from altalign.pipelines.run.units import Run, Table
from altalign.pipelines.stages import decontaminate, extract, fetch, judge, tables, write
from altalign.settings.curate import CurateConfig
from tests.support.curations import write_input

DECLARED = dict(zip(STAGES, (extract, tables, judge, fetch, decontaminate, write), strict=True))
WRITTEN = list(chain.from_iterable(map(written_by, STAGES)))


def test_what_a_stage_reads_was_written_by_an_earlier_one() -> None:
    written = list[Table]()
    for stage, module in DECLARED.items():
        assert [(stage, table.where) for table in module.READS if table not in written] == []
        written += written_by(stage)


def test_each_table_has_one_writer_and_one_path() -> None:
    assert len({table.where for table in WRITTEN}) == len(WRITTEN)


def test_a_stage_needs_no_table_but_those_it_reads_and_leaves_those_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = opened(tmp_path)
    flags = options(run.config.engine, [])
    grounds = reopen.open_run(run, rerun=None, is_restart=False)
    with started(run, flags):
        for stage, module in DECLARED.items():
            aside = set_aside(run, [table for table in WRITTEN if table not in module.READS], tmp_path / "aside")
            before = {*storage.files_below(run.folder)}
            curate.run_stage(run, stage, grounds[stage], flags, None)
            for path in sorted({*storage.files_below(run.folder)} - before - by_the_way(run)):
                check(path, *(table for table in written_by(stage) if matches(run, table, path)))
            for source, kept in aside.items():
                Path(source).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(kept, source)
    assert curate.check(run) == ""


def opened(folder: Path) -> Run:
    """A run over tables of images in hand, text alone and a folder of images, with all that decontamination does."""
    config = write_input(folder, rows=200)
    (folder / "images").mkdir()
    shutil.copy(folder / "tests" / "copy.jpg", folder / "images")
    (folder / "images" / "copy.txt").write_text("a small copy of a picture", encoding="utf-8")
    text = config.read_text(encoding="utf-8") + '\n[[input]]\nname = "images"\nkind = "folder"\npaths = ["images"]\n'
    config.write_text(text, encoding="utf-8")
    settings = ["run.folder='run'", "dedup.within_pool='keep_one_image'", "engine.workers=1"]
    return find_run(CurateConfig.load(config, settings), config_path=str(config))


def set_aside(run: Run, hidden: Iterable[Table], folder: Path) -> dict[str, str]:
    """Move the files of these tables to a folder; where each was, and where it is."""
    folder.mkdir(exist_ok=True)
    there = [path for table in hidden for path in storage.files_below(run.folder) if matches(run, table, path)]
    return {path: str(shutil.move(path, folder / f"{number}")) for number, path in enumerate(there)}


def by_the_way(run: Run) -> set[str]:
    """Files that are no tables: marks, plans, lists of units and spill files, logs, progress, what `run.json` says."""
    noted = re.compile(r"work/(.*/)?(plan|elements|marks|spilled)/|work/[a-z]+/done\.json$|log/|run\.json$")
    below = {path: str(storage.relative(path, run.folder)) for path in storage.files_below(run.folder)}
    return {path for path, name in below.items() if noted.match(name)}


def matches(run: Run, table: Table, path: str) -> bool:
    """Whether a file is one of a table."""
    pattern = re.escape(table.where).replace(r"\*", r"[^/.]+")
    return re.fullmatch(pattern, str(storage.relative(path, run.folder))) is not None


def check(path: str, *tables_of_path: Table) -> None:
    """A file is of one declared table, and has its columns."""
    assert len(tables_of_path) == 1, (path, [table.where for table in tables_of_path])
    (table,) = tables_of_path
    match table.columns:
        case pa.Schema() if not table.is_raw:
            found = {field.name: str(field.type).replace("element", "item") for field in pq.read_schema(path)}
            expected = {field.name: str(field.type).replace("element", "item") for field in table.columns}
            assert found == expected, path
        case np.dtype() if not table.is_raw:
            assert np.load(path).dtype == table.columns, path
        case np.dtype():
            assert Path(path).stat().st_size % table.columns.itemsize == 0, path
