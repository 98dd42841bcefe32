"""The data-set card against its digests in the manifest."""

import json
from pathlib import Path

import pytest

from tests.altalign.audit import runs
from tests.altalign.audit.runs import checks_of, failing

pytestmark = pytest.mark.runs


@pytest.mark.parametrize("name", ["README.md", "croissant.json"])
def test_an_edit_of_the_card(run: Path, name: str) -> None:
    path = run / name
    before = runs.digest(path)
    path.write_text(path.read_text().replace("ALIGN", "align") + "\n")
    again = "`altalign curate` with --rerun write makes it anew"
    assert failing(run) == {"card": f"{name}: its SHA-256 is {runs.digest(path)}, the manifest says {before}; {again}"}
    path.unlink()
    assert failing(run) == {"card": f"{name}: No such file or directory; {again}"}


def test_a_manifest_of_before_there_were_digests_of_the_card(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({name: value for name, value in manifest.items() if name != "card"}))
    assert failing(run) == {}
    assert "card" not in checks_of(run)
    (run / "manifest.json").write_text(json.dumps({**manifest, "card": ["README.md"]}))
    assert failing(run).keys() == {"card"}
