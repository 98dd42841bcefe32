"""A finished run for another purpose: `select --respect`, and `audit --reservations`, which says what that would cost.

The pairs are those of tests/cases/reservations.toml in a web archive, each of a site of its own.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from altalign import storage
from altalign.cli import main
from altalign.data.purposes import PURPOSES
from altalign.data.schema import SCHEMA_VERSION
from altalign.filters.reservations import NOTATIONS, reason
from tests.end_to_end.test_reservations import CASES, archive, curated, expected, page_of, sites, write_archive
from tests.support.finished_runs import copied, rows_of

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has left nothing out for it."""
    folder = tmp_path_factory.mktemp("every")
    curated(folder, archive(folder), "keep all")
    return folder / "run"


def numbers_of(run: Path) -> set[int]:
    return {int(row["caption"].split()[-1]) for row in rows_of(run)}


def reservations_of(run: Path, folder: Path) -> dict[str, Any]:
    assert main(["audit", str(run), "--reservations", "--to", str(folder)]) == 0
    assert (folder / "reservations.md").read_text(encoding="utf-8").startswith("# Reservations of rights\n")
    return json.loads((folder / "reservations.json").read_text(encoding="utf-8"))


@pytest.mark.everyday
@pytest.mark.parametrize("purpose", ["train", "search"])
def test_a_selection_leaves_out_what_a_curation_for_that_purpose_would(
    purpose: str, every: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_cases = {number: expected(case, purpose) for number, case in enumerate(CASES)}
    assert main(["select", str(every), str(tmp_path / "some"), "--respect", purpose]) == 0
    assert numbers_of(tmp_path / "some") == {number for number, notations in of_cases.items() if not notations}
    dropped = pq.read_table(tmp_path / "some" / "dropped" / "select").to_pylist()
    assert {int(row["caption"].split()[-1]): row["failed"] for row in dropped} == {
        number: [*map(reason, notations)] for number, notations in of_cases.items() if notations
    }
    curated(tmp_path, f'[[input]]\nkind = "warc"\npaths = ["{every.parent}/*.warc.gz"]', purpose)
    assert {row["key"] for row in rows_of(tmp_path / "some")} == {row["key"] for row in rows_of(tmp_path / "run")}
    readme = (tmp_path / "some" / "README.md").read_text(encoding="utf-8")
    assert f"| select: tdmrep opposes '{purpose}'" in readme or purpose == "search"
    assert f"Pairs left out for it: {len(dropped)} (purpose: {purpose})" in readme
    croissant = json.loads((tmp_path / "some" / "croissant.json").read_text(encoding="utf-8"))
    assert croissant["usageInfo"][0]["termCode"] == purpose
    report = re.sub(r"(?s)<(script|style)\b.*?</\1>", "", (tmp_path / "some" / "report.html").read_text("utf-8"))
    ours = report.partition('id="ours-title"')[2]
    assert f"{dropped[0]['reason'].removeprefix('opt_out_').replace('_', '-')} opposes &#39;{purpose}&#39;" in ours
    assert "`" not in report
    capsys.readouterr()
    assert main(["explain", str(tmp_path / "some"), "--key", dropped[0]["key"]]) == 0
    assert f"{dropped[0]['reason']}" in capsys.readouterr().out
    assert main(["audit", str(tmp_path / "some"), "--summary", "eu", "--to", str(tmp_path)]) == 0
    processing = json.loads((tmp_path / "training-content.json").read_text(encoding="utf-8"))["processing"]
    assert processing["purposes_whose_opposition_was_respected"] == [purpose]
    assert sum(processing["pairs_left_out_for_opt_outs"].values()) == len(dropped)


def test_reservations_are_counted_by_purpose_notation_month_and_domain(
    every: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = reservations_of(every, tmp_path)
    said = [row["preferences"] for row in rows_of(every)]
    kept = found["pairs"]["kept"]
    assert kept == {
        "nobody_looked": 0,
        "nothing_found": said.count([]),
        "something_said": len(said) - said.count([]),
    }
    opposed = {purpose: [expected(case, purpose) for case in CASES] for purpose in PURPOSES}
    assert {each["purpose"]: each["kept_that_it_would_drop"] for each in found["by_purpose"]} == {
        purpose: sum(map(bool, notations)) for purpose, notations in opposed.items()
    }
    pairs = Counter(key for one in said for key in {(each["notation"], each["where"]) for each in one})
    assert {(each["notation"], each["where"]): each["pairs"] for each in found["by_notation"]} == pairs
    assert {each["notation"] for each in found["by_notation"]} == {*NOTATIONS}
    months = Counter(
        key for one in said for key in {((each["when"] or "")[:7] or None, each["notation"]) for each in one}
    )
    assert {(each["month"], each["notation"]): each["pairs"] for each in found["by_month"]} == months
    of_domains = {each["domain"]: each for each in found["by_domain"]}
    assert len(of_domains) == len(CASES)
    for number, notations in enumerate(opposed["train"]):
        assert of_domains[f"case-{number}.example"]["against_train"] == bool(notations)
    assert found["looked_for"]["places"][1:] == [
        "headers and meta elements of archived pages",
        "robots.txt and tdmrep.json of archives",
        "headers of archived images",
    ]


def test_what_another_purpose_would_not_have_dropped_is_counted(tmp_path: Path) -> None:
    rows = curated(tmp_path, archive(tmp_path), "train")
    found = reservations_of(tmp_path / "run", tmp_path)
    dropped = [number for number, row in rows.items() if row.get("failed")]
    opted_out = found["pairs"]["opted_out"]
    assert opted_out == {"nobody_looked": 0, "nothing_found": 0, "something_said": len(dropped)}
    by_purpose = {each["purpose"]: each for each in found["by_purpose"]}
    for purpose, of in by_purpose.items():  # of what may be trained on, a site may still say that it is not searched
        stays = [CASES[number] for number in rows if number not in dropped]
        assert of["kept_that_it_would_drop"] == sum(bool(expected(case, purpose)) for case in stays)
    for_search = sum(not expected(CASES[number], "search") for number in dropped)
    assert by_purpose["search"]["opted_out_that_it_would_not_drop"] == for_search
    assert by_purpose["train"]["opted_out_that_it_would_not_drop"] == 0
    assert by_purpose["keep all"]["opted_out_that_it_would_not_drop"] == len(dropped)


def test_a_run_without_the_column_ends_in_a_line(
    every: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = copied(every, tmp_path / "old")
    for path in (old / "shards").glob("*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns(["preferences"]), path)
    capsys.readouterr()
    assert main(["audit", str(old), "--reservations", "--to", str(tmp_path)]) == 1
    assert "no column preferences; was it written by an earlier altalign?" in capsys.readouterr().err
    manifest = str(old / "manifest.json")
    storage.write_sealed(manifest, {**storage.read_sealed(manifest), "schema_version": 2}, durable=False)
    assert main(["select", str(old), str(tmp_path / "new"), "--respect", "search"]) == 2
    err = capsys.readouterr().err
    has = f"this altalign has {SCHEMA_VERSION}"
    assert err.startswith(f"altalign: {old}: made with schema_version = 2, and {has}; curate it anew")
    assert err.count("\n") == 1


def test_of_the_web_it_is_said_when_it_was_asked(tmp_path: Path) -> None:
    with sites() as port:
        urls = [f"http://127.0.1.{number}:{port}{case.get('path', '/a.png')}" for number, case in enumerate(CASES)]
        pages = {f"https://case-{n}.example/page": page_of(n, CASES[n], url) for n, url in enumerate(urls)}
        write_archive(tmp_path / "pages.warc.gz", pages)
        inputs = f'[[input]]\nkind = "warc"\npaths = ["{tmp_path}/*.warc.gz"]'
        fetch = f'source = "web"\nports = [{port}]\nallow_addresses = ["127.0.0.0/8"]\nrequests_per_host_s = 1000\n'
        rows = curated(tmp_path, inputs, "train", fetch)
    found = reservations_of(tmp_path / "run", tmp_path)
    times = found["looked_for"]["on_the_web"]
    assert times["started"] <= times["finished"]
    assert found["looked_for"]["places"][-1] == "headers of images, robots.txt and tdmrep.json on the web"
    opted_out = [row for row in rows.values() if str(row.get("reason", "")).startswith("opt_out_")]
    assert sum(found["pairs"]["opted_out"].values()) == len(opted_out) > 20
    assert sum(found["pairs"]["kept"].values()) == len(rows_of(tmp_path / "run"))
    (of_all,) = [each for each in found["by_purpose"] if each["purpose"] == "keep all"]
    bans = sum(row["reason"] == "opt_out_robots_txt" for row in opted_out)  # which no purpose would undo
    assert of_all["opted_out_that_it_would_not_drop"] == len(opted_out) - bans
