"""The notebook of examples/ works: its cells run in order, as a notebook runs them, and show what they are for."""

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT

NOTEBOOK = json.loads((ROOT / "examples" / "curate.ipynb").read_text(encoding="utf-8"))
CELLS = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def shown(cell: str, names: dict[str, Any]) -> Any:
    """The value that a notebook shows below a cell: that of its last line, if it is an expression."""
    body = ast.parse(cell).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def as_html(value: Any) -> str:
    return value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)


def test_it_holds_no_output() -> None:
    """So it has no figures that could be wrong, and stays small."""
    assert not [cell for cell in NOTEBOOK["cells"] if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.everyday
@pytest.mark.guides
def test_its_cells_go_from_a_table_to_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples" / "table", tmp_path / "table")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    values = [shown(cell, names) for cell in CELLS]
    run, other = names["run"], names["other"]
    assert values[CELLS.index("run")] is run
    assert "<table" in as_html(run)
    assert "<img" in as_html(run)
    assert "<img" in as_html(values[CELLS.index('run.gallery("image_too_small")')])
    assert 0 < other.samples().count_rows() < run.samples().count_rows()
    assert names["comparison"].settings["name"].to_pylist() == ["image.short_side_above_px"]
    assert [*Path("runs/table-250px/shards").glob("*.tar")]
    assert len(names["pairs"]) == other.samples().count_rows()
    assert all(as_html(value) for value in values)
