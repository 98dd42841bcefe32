"""The summary of training content: what a run knows of it, beside its rows, and what it leaves open."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from altalign.audit import training_content
from altalign.audit.run_folder import RunFolder
from altalign.cli import main
from tests.support.finished_runs import copied, curated, rows_of

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return curated(tmp_path_factory.mktemp("run"), rows=120)


def test_it_has_what_the_run_knows_and_leaves_the_rest_open(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["audit", str(run), "--summary", "eu", "--to", str(tmp_path)]) == 0
    paths = [tmp_path / name for name in training_content.NAMES]
    assert capsys.readouterr().out.splitlines() == list(map(str, paths))
    found = json.loads(paths[1].read_text(encoding="utf-8"))
    rows = rows_of(run)
    assert (found["general"]["pairs"], found["general"]["provider"]) == (len(rows), None)
    sizes = Counter[str]()
    for image_id, row in {row["image_id"]: row for row in rows if row["image_url"]}.items():
        assert image_id
        sizes[row["image_url"].split("/")[2]] += row["bytes"]
    assert found["sources"]["crawled_and_scraped"]["hosts"] == len(sizes)
    top = found["sources"]["crawled_and_scraped"]["top_hosts"]
    assert [(each["host"], each["bytes"]) for each in top] == sizes.most_common(1)
    text = paths[0].read_text(encoding="utf-8")
    assert "- Provider: **not known to the run**" in text
    assert f"- Pairs: {len(rows):,}" in text
    assert main(["audit", str(run), "--quick"]) == 0  # nothing was written in the run


def test_an_image_of_two_generations_counts_once(run: Path, tmp_path: Path) -> None:
    grown = copied(run, tmp_path / "grown")
    shutil.copy(grown / "shards" / "00000.parquet", grown / "shards" / "g0002-00000.parquet")
    of_both = [training_content.gathered(RunFolder.open(str(each))) for each in (run, grown)]
    assert of_both[0] == of_both[1]


def test_the_top_tenth_of_hosts_is_rounded_up(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [(f"{number}.example", 100 - number) for number in range(21)]
    monkeypatch.setattr(training_content, "_hosts", lambda _: hosts)
    found = training_content.gathered(RunFolder.open(str(run)))["sources"]["crawled_and_scraped"]
    assert [each["host"] for each in found["top_hosts"]] == ["0.example", "1.example", "2.example"]


def test_it_is_not_written_into_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["audit", str(run), "--summary", "eu", "--to", str(run / "audit")]) == 2
    assert "inside the run, whose files are listed; give another folder" in capsys.readouterr().err
