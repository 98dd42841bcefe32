"""Trials: what a sample predicts of a curation, and that no image is asked for twice."""

import json
import re
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from altalign import storage
from altalign.cli import main
from altalign.demo import web as demo
from altalign.pipelines.trial import prediction
from altalign.pipelines.trial import sample as drawing
from altalign.pipelines.trial.prediction import Outcomes
from altalign.pipelines.trial.sample import Sample
from tests.end_to_end import faults
from tests.end_to_end.web_inputs import answers, asked_for, pictures, write_web_input
from tests.object_stores.servers import Server
from tests.support.curations import altalign, refused, tree, write_input
from tests.support.finished_runs import rows_of
from tests.web_server.running import WebServer

pytestmark = pytest.mark.runs

IMAGES = 150
SAMPLE = ("--images", "60")
SEEDS, SEEN = 60, 200
DEMO = """
[run]
folder = "run"

[[input]]
kind = "warc"
paths = ["demo-web/*.warc.gz"]

[image]
texts_per_image_at_most = 20
"""
KILLS = 2


@pytest.fixture
def folder(server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_web_input(tmp_path, server, [*pictures(server, IMAGES), *answers(server)])
    return tmp_path


def facts(run: Path = Path("run")) -> dict[str, Any]:
    return json.loads((run / "trial" / "trial.json").read_text())


def predicted(run: Path = Path("run")) -> dict[tuple[str, str, str], dict[str, float]]:
    """Every estimate that does not rest on how long something took."""
    return {
        (each["stage"], each["reason"], each["of"]): {name: each[name] for name in ("value", "least", "most")}
        for each in facts(run)["predicted"]
        if each["of"] != "hours"
    }


def counts(run: Path) -> Counter[tuple[str, str]]:
    """The pairs of a finished run by stage and reason."""
    pairs = Counter[tuple[str, str]]()
    for row in pq.read_table(run / "counts.parquet").to_pylist():
        pairs[row["stage"], row["reason"]] += row["rows"]
    return pairs


@pytest.mark.everyday
def test_a_curation_goes_on_from_its_trial_and_asks_for_nothing_twice(
    server: WebServer, folder: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    since = len(server.requests())
    assert main(["trial", "config.toml", *SAMPLE]) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines()[1:-2] if len(line) > 80] == []
    trial = facts()
    assert 30 <= trial["sample"]["images"] <= 90
    assert trial["pool"] == {"hosts": 5, "images": IMAGES + 13, "pairs": IMAGES + 13 + 55}
    assert trial["counted"][-1] == {"stage": "judge", "reason": "kept", "pairs": IMAGES + 13 + 55}
    amounts = {each["of"]: each for each in trial["predicted"] if each["of"] not in ("pairs", "images")}
    assert amounts.keys() == {"bytes fetched", "bytes of shards", "hours"}
    assert all(0 < each["least"] <= each["value"] <= each["most"] for each in amounts.values())
    assert "  http_" in shown
    assert main(["curate", "config.toml"]) == 0
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
    first, since = facts()["sample"], len(server.requests())
    assert main(["trial", "config.toml", "--images", "100"]) == 0
    asked = facts()["sample"]["images_asked_for_now"]
    assert asked == facts()["sample"]["images"] - first["images"] > 0
    assert len({url for url in asked_for(server, since=since) if "/png/" in url}) <= asked
    since = len(server.requests())
    assert main(["trial", "config.toml", "--images", "100", "--set", "text.words_at_most=19"]) == 0
    assert asked_for(server, since=since) == []
    assert predicted()["fetch", "kept", "images"]["most"] <= IMAGES + 13


def test_a_trial_that_is_killed_goes_on_to_the_same_prediction_and_asks_for_nothing_twice(
    server: WebServer, folder: Path
) -> None:
    start, arguments = Path(shutil.copytree(folder, folder / "start")), ["trial", "config.toml", *SAMPLE]
    since = len(server.requests())
    whole = faults.copied(start, "whole")
    points, missed = faults.drawn(faults.changes(whole, arguments), KILLS, "trial"), 0
    for point in points:
        new = faults.copied(start, f"killed at {point}")
        killed = faults.give(new, arguments, faults.killed, point)
        missed += not killed.at
        assert killed.code == (-signal.SIGKILL if killed.at else 0), killed.output
        again = faults.give(new, arguments)
        assert again.code == 0, again.output
        assert predicted(new / "run") == predicted(whole / "run"), point  # how long it took differs
    assert missed <= 1  # the last of the changes may not come
    asked = Counter(url for url in asked_for(server, since=since) if "/png/" in url)
    assert max(asked.values()) <= 1 + KILLS + KILLS // 2  # what a kill has lost is asked for again


def test_images_in_hand_are_tried_without_the_web(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_input(tmp_path)
    monkeypatch.setattr(drawing, "rates", lambda pool, _images: np.full(len(pool.names), 1e-9))
    assert "--images 1: no image was drawn of " in refused(capsys, "trial", "config.toml", "--images", "1")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert main(["trial", "config.toml", "--images", "1000"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"images? of \d+ hosts? were tried; \d+ pairs will be kept\n", shown)
    assert re.search(r"^hours: (less than )?0\.\d+( \(0\.\d+–0\.\d+\))?$", shown, re.MULTILINE)  # no power of ten
    everything = predicted()
    for each in everything.values():  # all was sampled
        assert each["least"] in (None, each["value"])
        assert each["most"] in (None, each["value"])
    assert main(["curate", "config.toml"]) == 0
    left = {(*stage_and_reason, "pairs"): pairs for stage_and_reason, pairs in counts(Path("run")).items()}
    of_pairs = {name: each["value"] for name, each in everything.items() if name[2] == "pairs"}
    assert of_pairs == {name: left.get(name, 0) for name in of_pairs}
    message = "run: finished: its counts are exact, and there is nothing to try"
    assert refused(capsys, "trial", "config.toml").endswith(message)


def test_intervals_of_samples_hold_what_the_full_run_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are drawn with many seeds from what became of every image; the full run of the demo is the truth."""
    monkeypatch.chdir(tmp_path)
    demo.write(tmp_path / "demo-web", pages_a_site=12)
    (tmp_path / "config.toml").write_text(DEMO)
    of_trial, predict = dict[str, Any](), prediction.predict

    def recorded(*arguments: Any) -> list[dict[str, Any]]:
        of_trial["arguments"] = arguments
        return predict(*arguments)

    monkeypatch.setattr(prediction, "predict", recorded)
    assert main(["trial", "config.toml", "--images", "1000000"]) == 0
    assert main(["curate", "config.toml"]) == 0
    config, everything, pool, of, cpu_s = of_trial["arguments"]
    left = counts(Path("run"))
    image_ids = np.random.default_rng(0).integers(0, 256, (len(everything.hosts), 16), np.uint8)
    rates, inside, tried = drawing.rates(pool, SEEN), Counter[str](), Counter[str]()
    for seed in range(SEEDS):
        numbers = np.flatnonzero(drawing.is_drawn(image_ids, rates[everything.hosts], seed))
        sample = Sample(everything.hosts[numbers], everything.pairs[numbers], rates)
        place = {number: new for new, number in enumerate(numbers.tolist())}
        dropped = {place[number]: why for number, why in of.dropped.items() if number in place}
        of_sample = Outcomes(dropped, of.bytes[numbers], of.shard_bytes[numbers], of.seconds[numbers])
        of_seed = predict(config, sample, pool, of_sample, cpu_s)
        for row in of_seed:
            if row["of"] == "pairs" and row["least"] is not None:
                name = f"{row['stage']} {row['reason']}"
                tried[name] += 1
                inside[name] += row["least"] <= left[row["stage"], row["reason"]] <= row["most"]
    assert tried["image kept"] == tried["decontaminate kept"] == SEEDS
    assert {name: times for name, times in inside.items() if tried[name] >= 20 and times < 0.85 * tried[name]} == {}


def test_a_run_that_fetches_has_nothing_left_to_try(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "config.toml", "--until", "fetch"]) == 0
    capsys.readouterr()
    assert "its images are being fetched already" in refused(capsys, "trial", "config.toml")


@pytest.mark.stores
def test_a_trial_of_a_run_in_a_store_is_taken_over_there(server: WebServer, folder: Path, s3: Server) -> None:
    override = ("--set", f"run.folder={s3.url}/run")
    since = len(server.requests())
    assert main(["trial", "config.toml", *SAMPLE, *override]) == 0
    assert main(["curate", "config.toml", *override]) == 0
    asked = Counter(url for url in asked_for(server, since=since) if "/png/" in url)
    assert set(asked.values()) == {1}
    assert storage.kind(f"{s3.url}/run/work/trial") == "missing"
