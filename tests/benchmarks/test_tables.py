"""The tables of the documents are those of the results."""

import json
from pathlib import Path

import pytest

from benchmarks import tables


@pytest.mark.parametrize("path", tables.DOCUMENTS, ids=lambda path: path.name)
def test_a_document_has_the_tables_of_the_results(path: Path):
    document = path.read_text(encoding="utf-8")
    assert tables.filled(document) == document, "run `python -m benchmarks.tables --write`"


def test_the_documents_have_a_place_for_every_part():
    places = [
        found["part"] for path in tables.DOCUMENTS for found in tables.MARKS.finditer(path.read_text(encoding="utf-8"))
    ]
    assert sorted(places) == sorted(tables.COLUMNS)


def test_a_part_is_shown_as_figures_targets_and_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert tables.markdown("text") == tables.NOT_YET
    found = {
        "part": "text",
        "date": "2027-01-02",
        "machine": {"cores": 2, "cpu": "a CPU", "memory_bytes": 25e9, "system": "Linux"},
        "versions": {"python": "3.11.7", "polars": "2.1.0"},
        "targets": [
            {"what": "CPU, of polars'", "value": 0.4567, "target": "at most 0.6", "met": True},
            {"what": "x", "value": 3, "target": "y", "met": False},
        ],
        "disturbed": ["round 1, altalign: others kept 1.0 of 2 cores busy"],
        "figures": {
            "altalign": {
                "work_cpu_s": {"median": 8.0, "least": 7.9, "most": 8.25},
                "peak_bytes": {"median": 5e8, "least": 5e8, "most": 5e8},
            },
            "polars": {"work_cpu_s": {"median": 16.0, "least": 16.0, "most": 16.0}},
        },
        "rounds": [{"altalign": {}, "polars": {}}] * 3,
    }
    (tmp_path / "text.json").write_text(json.dumps(found), encoding="utf-8")
    assert (
        tables.markdown("text")
        == """\
| | CPU s | Peak memory |
|---|---|---|
| `altalign` | 8.0 (7.9 to 8.2) | 0.50 GB |
| `polars` | 16.0 | |

| Target | Wanted | Measured | |
|---|---|---|---|
| CPU, of polars' | at most 0.6 | 0.457 | |
| x | y | 3 | **missed** |

2027-01-02, 2 cores (a CPU), 25 GB. Others kept more than a quarter of the cores busy in 1 of 6 runs. python 3.11.7, polars 2.1.0."""  # noqa: E501
    )
