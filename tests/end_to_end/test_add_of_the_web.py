"""`altalign add` to a run whose images came from the web: no image is asked for twice, what was removed not at all."""

import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from tests.end_to_end.web_inputs import answers, asked_for, pictures, write_web_input
from tests.support.curations import tree
from tests.support.finished_runs import rows_of
from tests.web_server.running import WebServer

pytestmark = pytest.mark.runs


@pytest.fixture
def later(server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A finished run, in the folder of the test, and a table of more images, some of them those of the run."""
    monkeypatch.chdir(tmp_path)
    write_web_input(tmp_path, server, [*pictures(server, 80), *answers(server)])
    assert main(["curate", "config.toml"]) == 0
    (path,) = Path("input").glob("*.parquet")
    rows = pq.read_table(path).to_pylist()
    new = [
        {**rows[0], "url": server.url(f"/png/new-{number}"), "caption": f"a new boat {number}"} for number in range(9)
    ]
    again = [{**row, "caption": f"{row['caption']} once more"} for row in rows[:9]]
    Path("more").mkdir()
    table = pq.read_table(path)
    pq.write_table(table.from_pylist([*again, *new], table.schema), "more/later.parquet")
    return "more/later.parquet"


def asked(server: WebServer, since: int) -> set[str]:
    return set(asked_for(server, since=since))


def test_only_new_images_are_asked_for(server: WebServer, later: str, capsys: pytest.CaptureFixture[str]) -> None:
    since = len(server.requests())
    assert main(["add", "run", "--input", later]) == 0
    new = {server.url(f"/png/new-{number}") for number in range(9)}
    assert asked(server, since) == new
    assert main(["audit", "run"]) == 0
    with Path("config.toml").open("a") as config:
        config.write('\n[[input]]\nname = "pairs"\nkind = "table"\npaths = ["more/later.parquet"]\n')
    assert main(["curate", "config.toml", "--set", "run.folder=fresh"]) == 0
    assert main(["curate", "run/config.toml", "--rerun", "write"]) == 0  # of one generation
    assert tree(Path("run")).keys() == tree(Path("fresh")).keys()
    assert Path("run", "files.jsonl").read_bytes() == Path("fresh", "files.jsonl").read_bytes()
    # failures of before are asked for again by retry, as ever
    since = len(server.requests())
    capsys.readouterr()
    assert main(["retry", "run", "--reason", "http_status"]) == 0
    assert asked(server, since) <= {url for url in asked(server, 0) if "/status/" in url or "/loop" in url}


def test_what_was_removed_is_not_asked_for_and_does_not_come_back(
    server: WebServer, later: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = [row["image_url"] for row in rows_of(Path("run")) if "/png/" in row["image_url"]][:3]
    Path("gone").write_text("\n".join(gone))
    assert main(["remove", "run", "--urls", "gone"]) == 0
    shutil.copytree("run", "other")
    capsys.readouterr()
    assert main(["add", "run", "--input", later]) == 2
    assert "--fetch-again" in capsys.readouterr().err
    since = len(server.requests())
    assert main(["add", "run", "--input", later, "--fetch-again"]) == 0
    assert not asked(server, since) & set(gone)
    assert not {row["image_url"] for row in rows_of(Path("run"))} & set(gone)
    # /png/7 begins /png/71 too
    named = re.compile(rb"(?:%s)(?![0-9])" % b"|".join(re.escape(url.encode()) for url in gone))
    assert not [path for path in Path("run").rglob("*") if path.is_file() and named.search(path.read_bytes())]
    assert main(["audit", "run"]) == 0
    assert main(["explain", "run", "--url", gone[0]]) == 0
    assert "removed" in capsys.readouterr().out
    counts = pq.read_table("run/counts.parquet").to_pylist()
    assert sum(row["rows"] for row in counts if row["stage"] == "fetch" and row["reason"] == "removed") >= 3
