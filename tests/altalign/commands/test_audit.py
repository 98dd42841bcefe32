"""`altalign audit` on a small run: what it prints and writes, its exit codes, what it refuses; and how a curation ends
with it.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign import cli
from altalign.audit.checks import Check
from altalign.audit.run_folder import RunFolder
from altalign.commands import audit
from tests.altalign.audit.report import report_run
from tests.altalign.audit.report.report_run import PASSED

FAILED = Check(
    "words are within\x1b[31m the limits", passed=False, detail="shard 00003: 3 pairs have 323 words", checked=300
)

Stub = Callable[..., list[dict[str, object]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return report_run.write(tmp_path, report_run.candidates(100))


@pytest.fixture
def checking(monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Puts checks of these results in the place of the real ones; gives the list of how they are called."""

    def stub(*checks: Check) -> list[dict[str, object]]:
        asked: list[dict[str, object]] = []

        def run_checks(run: RunFolder, **at_most: int | None) -> list[Check]:
            asked.append({"folder": run.folder, **at_most})
            return list(checks)

        monkeypatch.setattr("altalign.audit.checks.run_checks", run_checks)
        return asked

    return stub


def digests(run: Path) -> dict[str, str]:
    return {
        path.relative_to(run).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in run.rglob("*")
        if path.is_file()
    }


def test_it_writes_the_report_and_names_it(run: Path, checking: Stub, capsys: pytest.CaptureFixture[str]):
    asked, before = checking(*PASSED), digests(run)
    assert cli.main(["audit", "run"]) == 0
    assert capsys.readouterr() == ("report: run/report.html (2 checks passed)\n", "")
    after = digests(run)
    assert set(after) - set(before) == {"report.html", "audit/checks.json", "audit/report.json"}
    assert {name: after[name] for name in before} == before
    assert asked == [{"folder": "run", "shards_at_most": None, "images_at_most": None}]
    assert json.loads((run / "audit/checks.json").read_text(encoding="utf-8")) == {
        "passed": True,
        "checks": [asdict(check) for check in PASSED],
    }


def test_a_check_that_fails_is_said_and_is_exit_code_1(run: Path, checking: Stub, capsys: pytest.CaptureFixture[str]):
    checking(*PASSED, FAILED)
    assert cli.main(["audit", "run", "--shards", "3"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "FAILED words are within\\x1b[31m the limits: shard 00003: 3 pairs have 323 words",
        "report: run/report.html (1 of 3 checks failed)",
    ]
    assert b"1 of 3 checks failed" in (run / "report.html").read_bytes()


@pytest.mark.parametrize(("others", "code"), [((), 0), ((FAILED,), 1)])
def test_a_check_that_could_not_be_asked_is_said_and_fails_nothing(
    run: Path, checking: Stub, capsys: pytest.CaptureFixture[str], others: tuple[Check, ...], code: int
):
    unasked = Check("image_blocked", passed=None, detail="blocked.txt: the list is needed", checked=0)
    checking(unasked, *PASSED, *others)
    assert cli.main(["audit", "run"]) == code
    *said, last = capsys.readouterr().out.splitlines()
    assert said[len(others) :] == ["not asked image_blocked: blocked.txt: the list is needed"]
    assert (
        last
        == f"report: run/report.html ({'1 of 4 checks failed' if others else '2 checks passed'}, 1 could not be asked)"
    )
    assert cli.main(["audit", "run", "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert (told["passed"], told["checks"][0]["passed"]) == (not code, None)
    assert audit.after_curation("run") == code  # of the report that is there
    assert "not asked image_blocked" in capsys.readouterr().out


def test_a_name_that_is_no_utf_8_is_said_as_it_can_be(run: Path, checking: Stub, capsys: pytest.CaptureFixture[str]):
    checking(replace(FAILED, detail="shards/\udcff.tar: not there"))
    assert cli.main(["audit", "run"]) == 1
    assert capsys.readouterr().out.startswith("FAILED ")
    assert (
        json.loads((run / "audit/checks.json").read_text(encoding="ascii"))["checks"][0]["detail"]
        == "shards/\udcff.tar: not there"
    )


@pytest.mark.parametrize(("checks", "code"), [(PASSED, 0), ((*PASSED, FAILED), 1)])
def test_json_is_printed_and_nothing_is_written(
    run: Path, checking: Stub, capsys: pytest.CaptureFixture[str], checks: tuple[Check, ...], code: int
):
    asked, before = checking(*checks), digests(run)
    assert cli.main(["audit", "run", "--json", "--shards", "2"]) == code
    assert json.loads(capsys.readouterr().out) == {
        "run": "run",
        "passed": code == 0,
        "checks": [asdict(check) for check in checks],
    }
    assert digests(run) == before
    assert asked[0]["shards_at_most"] == 2


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ([], {"as_json": False, "page": None}),
        (["--json"], {"as_json": True, "page": None}),
        (["--page", "a.html"], {"as_json": False, "page": "a.html"}),
    ],
)
def test_two_runs_are_compared(run: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], options: dict[str, Any]):
    asked = []
    monkeypatch.setattr("altalign.audit.compare.main", lambda *runs, **given: asked.append((*runs, given)) or 7)
    assert cli.main(["audit", "run", "other", *flags]) == 7
    assert asked == [("run", "other", options)]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nowhere"], "nowhere: no such run folder; give the [run] folder of a curation"),
        (["empty"], "empty: no run of altalign (it has no run.json)"),
        (["unfinished"], "unfinished: not finished, so there is nothing to report yet"),
    ],
)
def test_what_is_refused_is_one_line(
    run: Path, checking: Stub, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
):
    checking(*PASSED)
    Path("empty").mkdir()
    (report_run.write(Path("u"), report_run.candidates(50)) / "manifest.json").unlink()
    Path("u/run").rename("unfinished")
    assert cli.main(["audit", *argv]) == 2
    assert said in (err := capsys.readouterr().err)
    assert err.count("\n") == 1


@pytest.mark.parametrize("shards", ["0", "-1", "many", "1.5"])
def test_a_number_of_shards_is_a_number(run: Path, capsys: pytest.CaptureFixture[str], shards: str):
    assert cli.main(["audit", "run", "--shards", shards]) == 2
    assert "--shards" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    ["counts.parquet", "audit/text_measures.parquet", "audit/samples.parquet", "audit/histograms.json", "summary.json"],
)
@pytest.mark.parametrize("content", [b"", b"PAR1nonsense", b'{"words": 3}'])
def test_a_damaged_file_is_one_line(
    run: Path, checking: Stub, capsys: pytest.CaptureFixture[str], name: str, content: bytes
):
    checking(*PASSED)
    if name.endswith(".json") and content.startswith(b"{"):
        content = content[:-1]
    (run / name).write_bytes(content)
    assert cli.main(["audit", "run"]) == 1
    err = capsys.readouterr().err
    assert f"run/{name}" in err
    assert err.count("\n") == 1
    assert not (run / "report.html").exists()


def test_a_table_of_other_types_is_one_line(run: Path, checking: Stub, capsys: pytest.CaptureFixture[str]):
    checking(*PASSED)
    table = pq.read_table(run / "audit/funnel.parquet")
    pq.write_table(table.set_column(2, "images", pa.array(["many"] * len(table))), run / "audit/funnel.parquet")
    assert cli.main(["audit", "run"]) == 1
    err = capsys.readouterr().err
    assert "run/audit/funnel.parquet: damaged: cannot be read as Parquet" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["counts.parquet", "summary.json", "config.toml"])
def test_a_file_that_every_run_has_is_missed(run: Path, checking: Stub, capsys: pytest.CaptureFixture[str], name: str):
    checking(*PASSED)
    (run / name).unlink()
    assert cli.main(["audit", "run"]) == 1
    assert f"run/{name}: damaged" in (err := capsys.readouterr().err)
    assert err.count("\n") == 1


# After a curation ----------------------------------------------------------------------------------------------------


def test_a_curation_ends_with_the_report_and_looks_into_some_shards(
    run: Path, checking: Stub, capsys: pytest.CaptureFixture[str]
):
    asked = checking(*PASSED)
    assert audit.after_curation("run") == 0
    assert capsys.readouterr().out == "report: run/report.html (2 checks passed)\n"
    at_most = {"shards_at_most": audit.SHARDS_AFTER_A_CURATION, "images_at_most": audit.IMAGES_AFTER_A_CURATION}
    assert asked == [{"folder": "run", **at_most}]


def test_a_curation_that_had_nothing_to_do_names_the_report_that_is_there(
    run: Path, checking: Stub, capsys: pytest.CaptureFixture[str]
):
    asked = checking(*PASSED)
    audit.after_curation("run")
    written = (run / "report.html").stat().st_mtime_ns
    capsys.readouterr()
    assert audit.after_curation("run") == 0
    assert capsys.readouterr().out == "report: run/report.html (2 checks passed)\n"
    assert ((run / "report.html").stat().st_mtime_ns, len(asked)) == (written, 1)
    (run / "manifest.json").write_text('{"shards": [], "pairs": 1}', encoding="utf-8")
    audit.after_curation("run")
    assert len(asked) == 2


def test_a_curation_fails_where_a_check_does_and_does_so_again(
    run: Path, checking: Stub, capsys: pytest.CaptureFixture[str]
):
    asked = checking(FAILED)
    assert audit.after_curation("run") == 1
    said = capsys.readouterr()
    assert (audit.after_curation("run"), capsys.readouterr(), len(asked)) == (1, said, 1)


@pytest.mark.parametrize("name", ["audit/checks.json", "report.html"])
@pytest.mark.parametrize("content", [b"", b"{}", b'{"checks": [{"name": 1}]}', None])
def test_a_report_that_is_not_whole_is_written_anew(run: Path, checking: Stub, name: str, content: bytes | None):
    asked = checking(*PASSED)
    audit.after_curation("run")
    before = digests(run)
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content)
    assert audit.after_curation("run") == 0
    assert (digests(run), len(asked)) == (before, 2)


def test_trouble_with_the_report_fails_no_curation(run: Path, checking: Stub, capsys: pytest.CaptureFixture[str]):
    checking(*PASSED)
    (run / "audit/samples.parquet").write_bytes(b"nonsense")
    assert audit.after_curation("run") == 0
    assert "no report was written: run/audit/samples.parquet: damaged" in capsys.readouterr().err


def test_too_little_memory_for_the_report_fails_no_curation(
    run: Path, checking: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    checking(*PASSED)
    monkeypatch.setattr("altalign.audit.report.page.gather", fail)
    assert audit.after_curation("run") == 0
    said = "altalign: no report was written: out of memory; the run is whole, and `altalign audit run` tries again\n"
    assert capsys.readouterr() == ("", said)


def test_nothing_is_reported_of_a_run_that_is_not_finished(
    run: Path, checking: Stub, capsys: pytest.CaptureFixture[str]
):
    asked = checking(*PASSED)
    (run / "manifest.json").unlink()
    assert audit.after_curation("run") == 0
    assert (asked, capsys.readouterr()) == ([], ("", ""))


def test_a_run_in_an_object_store_has_its_report_there(
    run: Path, checking: Stub, s3: "object", capsys: pytest.CaptureFixture[str]
):
    from altalign import storage

    checking(*PASSED)
    url = f"{s3.url}/run"  # type: ignore[attr-defined]
    for name in digests(run):
        storage.write_bytes(f"{url}/{name}", (run / name).read_bytes())
    assert audit.after_curation(url) == 0
    assert capsys.readouterr().out == f"report: {url}/report.html (2 checks passed)\n"
    assert storage.read_bytes(f"{url}/report.html").startswith(b"<!doctype html>")
