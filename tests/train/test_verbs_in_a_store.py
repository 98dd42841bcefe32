"""What takes a training run, given one in a real S3 server or an emulator of GCS: the same as of one on a disk."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from altalign import cli, storage
from altalign.errors import DamagedError
from altalign.filters import pixels
from altalign.models.model import opened as opened_model
from altalign.pipelines.images import embedders
from altalign.settings.curate import DecontaminateSettings
from altalign.train.data import noise_estimates
from altalign.train.data.steps_of_pair import Trained
from altalign.train.data.training_data import CAPTIONS
from altalign.train.exchange import encoders
from altalign.train.nlip import phases
from altalign.train.run import checkpoints, object_store_sync
from altalign.train.settings.training import TrainConfig
from tests.object_stores.servers import Server
from tests.support.run_folders import pairs, picture, write_run
from tests.support.trained_folders import write_trained
from tests.train import test_sweep
from tests.train.nlip.phased import PHASES, config
from tests.train.test_data_changed import ADDED, BATCH, BEFORE, LEFT, REMOVED, told, write_curated
from tests.train.test_training_run import STEPS, written

pytestmark = [pytest.mark.stores, pytest.mark.trained]
SETS = """
[[set]]
task = "retrieval"
name = "kites"
path = "{0}/curated"
"""


@pytest.fixture
def s3(s3: Server) -> str:
    return s3.url


@pytest.fixture
def gcs(gcs: Server) -> str:
    return gcs.url


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """From the call on this machine has an empty disk."""
    return lambda name: monkeypatch.setenv("ALTALIGN_CACHE", str(tmp_path / name))


def uploaded(folder: str, there: str) -> str:
    for path in filter(Path.is_file, Path(folder).rglob("*")):
        storage.put_file(str(path), f"{there}/{path.relative_to(folder).as_posix()}")
    return there


def test_phases_and_what_measures_and_captions_their_pairs(
    gcs: str, tmp_path: Path, elsewhere: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    on_disk, run = config(tmp_path, "whole"), f"{gcs}/whole"
    on_disk = on_disk.model_copy(update={"schedule": on_disk.schedule.model_copy(update={"steps": 2})})
    in_store = on_disk.model_copy(update={"run": on_disk.run.model_copy(update={"folder": run})})
    for name in ("captioning", PHASES[-1]["name"]):  # gone on with on another machine
        elsewhere(name)
        assert phases.train(in_store, until=name) == 0
        assert phases.train(on_disk, until=name) == 0
    of_each = [f"{phase['name']}/run.json" for phase in PHASES if "does" not in phase]
    assert all(len(storage.read_json(f"{run}/phases/{name}")["attempts"]) == 1 for name in of_each)
    assert storage.exists(f"{run}/phases/noise-aware/report.html")

    (tmp_path / "sets.toml").write_text(SETS.format(tmp_path))
    elsewhere("of the reader")
    for folder in (run, f"{tmp_path}/whole"):
        assert cli.main(["nlip", "noise", f"{folder}/phases/noise-aware"]) == 0
        assert cli.main(["nlip", "caption", f"{folder}/phases/noise-aware", "--checkpoint", "1"]) == 0
        for _ in range(2):  # the second takes the embeddings that the first has left
            assert cli.main(["eval", f"{folder}/phases/captioning", "--sets", str(tmp_path / "sets.toml")]) == 0
    assert "made anew" not in capsys.readouterr().err
    assert cli.main(["eval", f"{run}/phases/captioning", f"{tmp_path}/whole/phases/captioning"]) == 0
    assert "24 │" in capsys.readouterr().out
    for name in (
        f"warm-up/{noise_estimates.FILE}",
        f"noise-aware/{noise_estimates.FILE}",
        f"captioning/{CAPTIONS}",
        f"noise-aware/{CAPTIONS}",
        "captioning/eval/step-0000002/metrics.json",
        "concept-enhanced/checkpoints/step-0000002/model.safetensors",
    ):
        ours, expected = storage.read_bytes(f"{run}/phases/{name}"), Path(tmp_path, "whole/phases", name).read_bytes()
        assert ours == expected, name


def test_a_sweep_of_tasks_that_are_there_too(s3: str, tmp_path: Path) -> None:
    test_sweep.write_task(tmp_path / "vtab" / "dtd", seed=0)
    sweep = ["train", "--sweep", test_sweep.write_config(tmp_path, trials=2), "--set=schedule.steps=4"]
    assert cli.main(sweep) == 0
    tasks = uploaded(str(tmp_path / "vtab"), f"{s3}/vtab")
    assert cli.main([*sweep, f"--set=run.folder={s3}/sweep", f"--set=sweep.path={tasks}"]) == 0
    assert storage.read_json(f"{s3}/sweep/sweep.json") == storage.read_json(f"{tmp_path}/sweep/sweep.json")
    for place in (f"{s3}/sweep/dtd/trial-000", f"{tmp_path}/sweep/dtd/trial-000"):
        assert {"eval", "run.json"} <= {*storage.entries(place)}
        assert not {"checkpoints", "index", "packed", "tensorboard"} & {*storage.entries(place)}


def test_an_export_and_models_by_the_name_of_a_run(s3: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disk = write_trained(tmp_path / "trained")
    run = uploaded(disk, f"{s3}/trained")
    for folder, out in ((disk, "expected"), (run, "ours")):
        assert cli.main(["export", folder, str(tmp_path / out), "--to", "align"]) == 0
    of_both = [(tmp_path / out / "model.safetensors").read_bytes() for out in ("expected", "ours")]
    assert of_both[0] == of_both[1]
    assert json.loads((tmp_path / "ours" / "lineage.json").read_text())["metrics"]["retrieval/held"]["rsum"] == 100

    capsys.readouterr()
    assert cli.main(["export", run, f"{s3}/exported", "--to", "align"]) == 2
    said = capsys.readouterr().err
    assert f"{s3}/exported: other libraries write to a disk alone; give a local folder" in said
    assert said.count("\n") == 1

    (tmp_path / "captions.txt").write_text("a kite\n", encoding="utf-8")
    for out in (f"{tmp_path}/encoded", f"{s3}/encoded"):
        assert cli.main(["encode", run, str(tmp_path / "captions.txt"), out]) == 0
    encoded = [storage.read_bytes(f"{place}/encoded/captions.parquet") for place in (tmp_path, s3)]
    assert encoded[0] == encoded[1]

    (tmp_path / "nouns.txt").write_text("kite\ncaption\nunicorn\n", encoding="utf-8")
    asked = ["--words", str(tmp_path / "nouns.txt"), "--at-least", "0"]
    curated, made = write_run(tmp_path / "curated", pairs(6)), list[bytes]()
    for model, out in ((disk, f"{tmp_path}/concepts"), (run, f"{s3}/concepts")):
        assert cli.main(["nlip", "concepts", curated, "--out", out, "--model", model, *asked]) == 0
        made.append(storage.read_bytes(f"{out}/concepts.parquet"))
        assert sorted(storage.entries(out)) == ["concepts.json", "concepts.parquet", "nouns.txt"]
    assert made[0] == made[1]

    digests = [storage.read_bytes(DecontaminateSettings(embedder=f"run:{of}").embedder_files[0]) for of in (disk, run)]
    assert digests[0] == digests[1]
    shown = pixels.decode(picture(4, (50, 40)), pixels_at_most=10**6, colour=True, short_side_px=pixels.FULL_SIZE_PX)
    assert shown.pixels is not None
    vectors = [embedders.load(f"run:{of}").features(shown.pixels) for of in (disk, run)]
    np.testing.assert_array_equal(vectors[0], vectors[1])
    first, second = (opened_model(f"run:{each}", "test", with_texts=True) for each in (run, disk))
    assert first.digest == second.digest


def test_a_checkpoint_is_digested_once_and_lacks_no_file(
    s3: str, tmp_path: Path, elsewhere: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = uploaded(write_trained(tmp_path / "trained"), f"{s3}/trained")
    digested, real = list[str](), object_store_sync.sha256_of
    monkeypatch.setattr(object_store_sync, "sha256_of", lambda path: digested.append(path.name) or real(path))
    digests = storage.read_json(f"{checkpoints.place_of(run, 5)}/manifest.json")
    checkpoints.chosen(run, None)
    assert sorted(digested) == sorted(digests)
    digested.clear()
    checkpoints.chosen(run, None)  # what is there is looked at as well
    assert sorted(name for name in digested if name != "manifest.json") == sorted(digests)

    elsewhere("of the reader")  # which leaves what only a training needs
    place = encoders.trained(run).place
    left = {path.name for path in place.iterdir()}
    assert {*digests, "manifest.json"} - left == {"optimizer.safetensors", "optimizer.json"}
    assert checkpoints.chosen(run, None) == place

    elsewhere("of a short manifest")
    storage.write_json(f"{checkpoints.place_of(run, 5)}/manifest.json", {"state.json": digests["state.json"]})
    with pytest.raises(DamagedError, match=r"step-0000005/manifest\.json: not as it was written"):
        checkpoints.brought(run, 5)


def test_a_training_goes_on_with_changed_data_if_told_to(
    s3: str, tmp_path: Path, elsewhere: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    write_curated(tmp_path / "curated", BEFORE)
    run, given = f"{s3}/trained", written(tmp_path)
    argv = ["train", given, f"--set=run.folder={run}"]
    assert cli.main(argv) == 0
    for step in (6, STEPS):
        storage.delete(checkpoints.place_of(run, step))
    shutil.rmtree(tmp_path / "curated")
    write_curated(tmp_path / "curated", [*BEFORE[len(REMOVED) :], *ADDED])
    elsewhere("another machine")
    assert told(capsys, *argv)[0] == 2
    code, _, said = told(capsys, *argv, "--data-changed")
    assert code == 0, said
    assert f"data changed after step {LEFT}" in said

    elsewhere("a third machine")
    trained = Trained(TrainConfig.load(f"{run}/config.toml", [f"run.folder={run}"]))
    keys = [pair.key for pair in (*BEFORE, *ADDED)]
    seen = {key: [each.step for each in trained.steps(frozenset([key]), STEPS)] for key in keys}
    assert sum(map(len, seen.values())) == STEPS * BATCH
    assert 0 < max(step for pair in REMOVED for step in seen[pair.key]) <= LEFT
    assert min(step for pair in ADDED for step in seen[pair.key]) > LEFT
