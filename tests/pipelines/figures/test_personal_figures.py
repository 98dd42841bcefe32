"""The sample of captions that is looked at for personal data: by key, evenly from the shards, and what is counted."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from altalign.filters import personal
from altalign.pipelines.figures import personal_figures
from altalign.pipelines.run.units import Run
from altalign.settings.curate import CurateConfig
from tests.support.finished_runs import copied, curated, rows_of


def written(folder: Path, captions: list[str], *, per_shard: int) -> tuple[Run, list[str]]:
    """A run folder with these captions in shards, whose keys fall as they come."""
    (folder / "shards").mkdir()
    names = []
    for begin in range(0, len(captions), per_shard):
        names.append(f"{begin // per_shard:05d}")
        rows = range(begin, min(begin + per_shard, len(captions)))
        table = {"key": [f"{len(captions) - row:032x}" for row in rows], "caption": [captions[row] for row in rows]}
        pq.write_table(pa.table(table), folder / "shards" / f"{names[-1]}.parquet")
    config = CurateConfig.from_values({"run": {"folder": str(folder)}, "input": {"paths": ["x"]}}, where="here")
    return Run(str(folder), config, ()), names


def test_rates_are_those_of_a_plain_loop_by_language(tmp_path: Path) -> None:
    english, german = "a woman reading a book in the park", "eine Frau liest im Park ein Buch"
    captions = [english, german, f"{english}, info@example.org", f"{german}, Tel. 030/901820", english] * 20
    run, names = written(tmp_path, captions, per_shard=30)
    found = personal_figures.measured(run, names)["personal_data"]
    assert found["phone_countries"] == run.config.text.phone_countries
    rates = found["rates"]
    assert list(rates) == ["", "en", "de"]
    assert [rates[language]["captions"] for language in rates] == [100, 60, 40]
    assert [rates[language]["email"]["found"] for language in rates] == [20, 20, 0]
    assert [rates[language]["phone"]["found"] for language in rates] == [20, 0, 20]
    assert all(rates[language]["address"]["found"] == 0 for language in rates)
    assert rates[""]["email"]["least"] < 0.2 < rates[""]["email"]["most"]


def test_the_sample_has_the_smallest_keys_of_shards_at_even_distances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(personal_figures, "CAPTIONS", 5)
    monkeypatch.setattr(personal_figures, "SHARDS", 3)
    captions = [f"caption {row}" for row in range(60)]
    run, names = written(tmp_path, captions, per_shard=10)
    assert personal_figures._sample(run, names).to_pylist() == [captions[row] for row in (49, 48, 47, 46, 45)]
    assert personal_figures.measured(run, names)["personal_data"]["rates"][""]["captions"] == 5
    assert personal_figures.measured(run, []) == {}


@pytest.mark.runs
def test_summary_and_report_have_what_was_measured_and_selections_measure_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = curated(tmp_path, rows=200)
    rates = json.loads((run / "summary.json").read_text())["personal_data"]["rates"]
    assert rates[""]["captions"] == len(rows_of(run))
    assert set(rates[""]) == {"captions", *personal.KINDS}
    report = (run / "report.html").read_text(encoding="utf-8")
    assert '<section id="personal">' in report
    assert f'data-label="Captions">{len(rows_of(run)):,}</td>' in report
    assert main(["select", str(run), str(tmp_path / "few"), "--where", "words >= 5"]) == 0
    few: Any = json.loads((tmp_path / "few" / "summary.json").read_text())["personal_data"]["rates"][""]
    assert few["captions"] == len(rows_of(tmp_path / "few")) < len(rows_of(run))
    gone = copied(run, tmp_path / "gone")
    (tmp_path / "keys.txt").write_text(rows_of(run)[0]["key"])
    assert main(["remove", str(gone), "--keys", str(tmp_path / "keys.txt")]) == 0
    assert json.loads((gone / "summary.json").read_text())["personal_data"]["rates"] == rates
    capsys.readouterr()


@pytest.mark.runs
def test_captions_with_personal_data_go_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captions = {
        "a red house by the sea": None,
        "write to us at info@example.org": "text_personal",
        "call 0161 496 0000 for a taxi": "text_personal",
        "10 Downing Street, London SW1A 2AA": None,  # a kind that is not asked for
        "ISBN 978-3-16-148410-0 of a book": None,
    }
    urls = [f"https://a.example/{number}.png" for number in range(len(captions))]
    pq.write_table(pa.table({"url": urls, "caption": [*captions]}), tmp_path / "pairs.parquet")
    (tmp_path / "c.toml").write_text(
        f'[run]\nfolder = "{tmp_path}/run"\n[[input]]\nkind = "table"\npaths = ["{tmp_path}/pairs.parquet"]\n'
        '[text]\ndrop_personal = ["email", "phone"]\n'
    )
    assert main(["curate", str(tmp_path / "c.toml"), "--until", "judge"]) == 0
    dropped = pq.read_table(tmp_path / "run" / "dropped" / "judge").to_pylist()
    assert {row["caption"]: row["reason"] for row in dropped} == {key: why for key, why in captions.items() if why}
    capsys.readouterr()
    assert main(["explain", str(tmp_path / "run"), "--text", "call 0161 496 0000 for a taxi"]) == 0
    assert "text_personal: it has: phone number; [text] drop_personal = ['email', 'phone']" in capsys.readouterr().out
