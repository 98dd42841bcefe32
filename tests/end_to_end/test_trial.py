"""Trials: what a sample predicts of a curation, the policy that has to be approved, and that nobody is asked twice."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from altalign import storage
from altalign.cli import main
from tests.audit.runs import rows_of
from tests.end_to_end.runs import ROOT, altalign, environ, tree, write_input
from tests.end_to_end.web_inputs import answers, asked_for, pictures, write_web_input
from tests.object_stores.servers import Server
from tests.web_server.running import WebServer

pytestmark = pytest.mark.runs

IMAGES = 150
SAMPLE = ("--images", "60")
KILLS = int(os.environ.get("ALTALIGN_KILLS", "2"))


@pytest.fixture
def folder(server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_web_input(tmp_path, server, [*pictures(server, IMAGES), *answers(server)])
    return tmp_path


def told(run: Path = Path("run")) -> dict[str, Any]:
    return json.loads((run / "trial" / "trial.json").read_text())


def predicted(run: Path = Path("run")) -> dict[tuple[str, str, str], dict[str, float]]:
    """Every estimate that does not rest on how long something took."""
    return {
        (each["stage"], each["reason"], each["of"]): {name: each[name] for name in ("value", "least", "most")}
        for each in told(run)["predicted"]
        if "seconds" not in each["of"]
    }


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """The one line that a command fails with."""
    capsys.readouterr()
    assert main([*command]) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("altalign: "))
    return line.removeprefix("altalign: ")


def approve(run: Path = Path("run")) -> str:
    path = run / "trial" / "policy.toml"
    path.write_text(path.read_text().replace("approved = false", "approved = true"))
    return str(path)


@pytest.mark.everyday
def test_a_curation_goes_on_from_its_trial_and_asks_for_nothing_twice(
    server: WebServer, folder: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    since = len(server.requests())
    assert main(["trial", "config.toml", *SAMPLE]) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines()[1:-4] if len(line) > 80] == []
    found = told()
    assert 30 <= found["sample"]["images"] <= 90
    assert found["pool"] == {"hosts": 5, "images": IMAGES + 13, "pairs": IMAGES + 13 + 55}
    assert found["counted"][-1] == {"stage": "judge", "reason": "kept", "pairs": IMAGES + 13 + 55}
    page = Path("run/trial/report.html").read_text()
    assert "<script>" in page
    assert "http_<wbr>" in page
    assert refused(capsys, "curate", "--policy", "run/trial/policy.toml").endswith("and set approved = true")
    assert main(["curate", "--policy", approve()]) == 0
    assert "amounts are in the intervals of the policy" in capsys.readouterr().out
    asked = Counter(asked_for(server, since=since))
    # a loop leads to itself, and a connection that is cut without an answer is asked over another one
    assert {url for url, times in asked.items() if times > 1 and "/loop" not in url and "/reset" not in url} == set()
    assert not Path("run/work/trial").exists()
    other = tmp_path_factory.mktemp("without")
    for name in ("input", "config.toml"):
        (other / name).symlink_to(folder / name)
    assert altalign(other, "curate", "config.toml").returncode == 0
    of_trial = {name for name in tree(folder / "run") if name.startswith("trial/")}
    assert {name: digest for name, digest in tree(folder / "run").items() if name not in of_trial} == tree(
        other / "run"
    )
    assert main(["audit", "run"]) == 0
    (folder / "gone").write_text(rows_of(Path("run"))[0]["key"])
    assert main(["remove", "run", "--keys", "gone"]) == 0
    assert not Path("run/trial").exists()


def test_a_larger_trial_and_other_text_settings_take_what_was_fetched(server: WebServer, folder: Path) -> None:
    assert main(["trial", "config.toml", *SAMPLE]) == 0
    first, since = told()["sample"], len(server.requests())
    assert main(["trial", "config.toml", "--images", "100"]) == 0
    asked = told()["sample"]["images_asked_for_now"]
    assert asked == told()["sample"]["images"] - first["images"] > 0
    assert len({url for url in asked_for(server, since=since) if "/png/" in url}) <= asked
    since = len(server.requests())
    assert main(["trial", "config.toml", "--images", "100", "--set", "text.words_at_most=19"]) == 0
    assert asked_for(server, since=since) == []
    assert predicted()["fetch", "kept", "images"]["most"] <= IMAGES + 13


def test_a_trial_that_is_killed_goes_on_to_the_same_prediction_and_asks_for_nothing_twice(
    server: WebServer, folder: Path
) -> None:
    (folder / "start").mkdir()
    for name in ("input", "config.toml"):
        (folder / name).rename(folder / "start" / name)
    since = len(server.requests())
    wanted = ["trial", "config.toml", *SAMPLE]
    program = [sys.executable, "-m", "tests.end_to_end.commands_killing", str(folder), str(KILLS)]
    done = subprocess.run(
        [*program, "run/trial/policy.toml", *wanted],
        cwd=ROOT,
        env=environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for report in map(json.loads, done.stdout.splitlines()):
        assert report["continued"] == 0, report
        assert report["differs"] == [], report
    asked = Counter(url for url in asked_for(server, since=since) if "/png/" in url)
    assert max(asked.values()) <= 1 + KILLS + KILLS // 2  # what a kill has lost is asked for again


def test_images_in_hand_are_tried_without_the_web(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_input(tmp_path)
    assert main(["trial", "config.toml", "--images", "1000", "--set", "prices.machine_hour=2"]) == 0
    said = capsys.readouterr().out
    assert "EUR" in said
    assert re.search(r"images? of \d+ hosts? were tried; \d+ pairs will be kept\n", said)
    everything = predicted()
    assert all(each["least"] == each["value"] == each["most"] for each in everything.values())  # all was sampled
    page = Path("run/trial/report.html").read_text()
    assert "image.short_side_above_px" in page
    assert "data:image/webp" in page
    path = approve()
    assert main(["curate", "--policy", path]) == 0
    inside = re.search(r"(\d+) of (\d+) amounts are in the intervals", capsys.readouterr().out)
    assert inside
    assert inside[1] == inside[2]
    assert int(inside[1]) >= len(everything)
    said = "run: finished: its counts are exact, and there is nothing to try"
    assert refused(capsys, "trial", "config.toml").endswith(said)


def test_a_policy_is_of_one_input_and_of_its_settings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trial", "config.toml", *SAMPLE]) == 0
    path = approve()
    capsys.readouterr()
    assert "settings, or files that they name, have changed" in refused(
        capsys, "curate", "--policy", path, "--set", "text.words_at_least=2"
    )
    assert "give one of them" in refused(capsys, "curate", "config.toml", "--policy", path)
    table = folder / "input" / "pairs.parquet"
    table.touch()
    assert "the policy of another input (other versions of the same files)" in refused(
        capsys, "curate", "--policy", path
    )
    (folder / "input" / "more.parquet").write_bytes(table.read_bytes())
    assert "the policy of another input (1 files" in refused(capsys, "curate", "--policy", path)
    Path("other.toml").write_text("approved = true\n")
    assert "no policy of this version" in refused(capsys, "curate", "--policy", "other.toml")


def test_a_run_that_fetches_has_nothing_left_to_try(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "config.toml", "--until", "fetch"]) == 0
    capsys.readouterr()
    assert "its images are being fetched already" in refused(capsys, "trial", "config.toml")


@pytest.mark.stores
def test_a_trial_of_a_run_in_a_store_is_taken_over_there(server: WebServer, folder: Path, s3: Server) -> None:
    override = ("--set", f"run.folder={s3.url}/run")
    since = len(server.requests())
    assert main(["trial", "config.toml", *SAMPLE, *override]) == 0
    policy = storage.read_bytes(f"{s3.url}/run/trial/policy.toml").replace(b"approved = false", b"approved = true")
    storage.write_bytes(f"{s3.url}/run/trial/policy.toml", policy)
    assert main(["curate", "--policy", f"{s3.url}/run/trial/policy.toml"]) == 0
    asked = Counter(url for url in asked_for(server, since=since) if "/png/" in url)
    assert set(asked.values()) == {1}
    assert storage.kind(f"{s3.url}/run/work/trial") == "missing"
