"""Scores and selections of a run in a real S3 server, and in an emulator of GCS: the same bytes as on a disk."""

import json
from pathlib import Path

import pytest

from altalign import storage
from altalign.cli import main
from tests.end_to_end.scored import prepared, scores_of
from tests.object_stores.servers import Server
from tests.support.curations import Finished

pytestmark = pytest.mark.stores

WHERE = ["--where", "similarity >= -0.2 AND text_characters > 12", "--top", "picture_entropy=0.7"]


def below(url: str) -> dict[str, bytes]:
    return {path.removeprefix(f"{url}/"): storage.read_bytes(path) for path in storage.files_below(url)}


@pytest.fixture(params=["s3", "gcs"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    return server.for_test(tmp_path, monkeypatch)


def test_scores_selections_and_trainings_of_a_run_in_a_store_are_those_of_one_on_a_disk(
    store: Server, embedded: Finished, scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run, out = prepared(tmp_path / "here", embedded), f"{store.url}/run", f"{store.url}/out"
    monkeypatch.chdir(folder)
    for path in sorted(p for p in (folder / "run").rglob("*") if p.is_file()):
        storage.write_bytes(f"{run}/{path.relative_to(folder / 'run')}", path.read_bytes())
    assert main(["score", run, "--with", "scores.toml"]) == 0
    assert below(f"{run}/scores") == scores_of(scored / "run" / "scores")
    monkeypatch.chdir(scored)
    assert main(["select", "run", str(folder / "whole"), *WHERE]) == 0
    monkeypatch.chdir(folder)
    assert main(["select", run, out, *WHERE]) == 0
    assert below(f"{out}/scores") == scores_of(folder / "whole" / "scores")
    numbers = [
        json.loads(storage.read_bytes(storage.join(where, "manifest.json")))["files"]["sha256"]
        for where in (out, str(folder / "whole"))
    ]
    assert numbers[0] == numbers[1]
    check_training(run, str(scored / "run"), folder)


def check_training(in_store: str, on_disk: str, folder: Path) -> None:
    """A training by a condition has the same pairs, with the same weights."""
    from altalign.train.data.runs import Runs
    from altalign.train.data.samples import Samples
    from altalign.train.settings.training import DataSettings

    selection, found = DataSettings(where="similarity >= -0.1", weight_by="text_characters"), []
    for name, run in (("store", in_store), ("disk", on_disk)):
        Samples.open(str(folder / name), Runs([run], selection), held_out=0.2)
        names = sorted(path.name for path in (folder / name).glob("*.bin"))
        found.append([(each, (folder / name / each).read_bytes()) for each in names])
    assert found[0] == found[1]
    assert {name.partition("-")[0] for name, _ in found[0]} == {"pairs", "weights", "held_out.bin"}
