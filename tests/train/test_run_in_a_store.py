"""Training runs in a real S3 server, and in an emulator of GCS: killed, gone on with on another disk, of two machines,
and read by other commands.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from altalign import cli, storage
from altalign.train.run import checkpoints
from tests.object_stores.servers import ONE_STORE, Server
from tests.support.mounts import UNSHARE, skip_where_nothing_can_be_mounted
from tests.support.run_folders import pairs, write_run
from tests.train.test_sharded_run import free_port
from tests.train.test_training_run import AT, ROOT, STEPS, WATCHDOG_S, started, written
from tests.warm.python import warm

pytestmark = [pytest.mark.stores, pytest.mark.trained]
SHARDED = ["--set=loop.sharded=true", "--set=optimizer.name=adamw", "--set=loop.chunk=4"]
SMALL_BYTES = 80 << 10  # more than the index and a lock take, less than a part of the moments beside them
FILES = ("model.safetensors", "optimizer.safetensors", "optimizer.json", "state.json")

# A training that is killed just before its n-th object is written; of half an object nothing is seen anyway
KILLED_AT_AN_OBJECT = """
import os, signal, sys
from altalign.storage import objects
at, seen, real = int(sys.argv.pop(1)), 0, objects._put
def put(place, data):
    global seen
    seen += "/log/" not in place.name  # tickets are renewed by the clock
    if seen == at:
        os.kill(os.getpid(), signal.SIGKILL)
    real(place, data)
objects._put = put
from altalign.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Made(NamedTuple):
    """Settings of a run in a bucket, the same run on a disk, and how many objects the former takes."""

    store: Server
    config: str
    on_disk: Path
    objects: int

    def run(self, name: str) -> str:
        return f"{self.store.url}/{name}"

    def argv(self, name: str) -> list[str]:
        return ["train", self.config, f"--set=run.folder={self.run(name)}"]


@pytest.fixture(scope="module", params=["s3", "gcs"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("made")
    server: Server = request.getfixturevalue(f"{request.param}_server")
    with pytest.MonkeyPatch.context() as patch:
        store = server.for_test(folder, patch)
        curated = write_run(folder / "curated", pairs(60, images=30))
        manifest = storage.read_json(f"{curated}/manifest.json")
        made_of = {"operation": "subset", "settings": {}, "parents": ["c" * 64], "before": [None]}
        storage.write_sealed(
            f"{curated}/manifest.json", {**manifest, "files": {"sha256": "d" * 64}, "lineage": made_of}
        )
        config = written(folder)
        assert cli.main(["train", config]) == 0
        assert cli.main(["train", config, f"--set=run.folder={store.url}/counted"]) == 0
        paths = storage.files_below(f"{store.url}/counted")
        yield Made(store, config, folder / "trained", len(paths))


def elsewhere(made: Made, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this machine has an empty disk."""
    monkeypatch.setenv("ALTALIGN_CACHE", str(made.on_disk.parent / name))


def lines(run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in storage.read_bytes(f"{run}/metrics.jsonl").splitlines()]


def losses(run: str) -> dict[int, float]:
    """Of each step."""
    return {line["step"]: line["loss"] for line in lines(run) if "loss" in line}


def assert_as_on_disk(made: Made, run: str) -> None:
    """The same checkpoints byte for byte, and the same losses."""
    assert checkpoints.finished(run) == checkpoints.finished(str(made.on_disk))
    for step in checkpoints.finished(run):
        for name in FILES:
            ours = storage.read_bytes(f"{checkpoints.place_of(run, step)}/{name}")
            assert ours == Path(checkpoints.place_of(str(made.on_disk), step), name).read_bytes(), (step, name)
    assert losses(run) == losses(str(made.on_disk))


@pytest.mark.everyday
def test_a_run_in_a_store_leaves_what_one_on_a_disk_does(made: Made) -> None:
    run = made.run("counted")
    assert_as_on_disk(made, run)
    there = {path.removeprefix(f"{run}/") for path in storage.files_below(run)}
    expected = {path.relative_to(made.on_disk).as_posix() for path in made.on_disk.rglob("*") if path.is_file()}
    stable = lambda names: {name for name in names if not name.startswith(("tensorboard/", "log/"))}  # noqa: E731
    assert stable(there) == stable(expected)
    assert any(name.startswith("tensorboard/events.") for name in there)
    facts = storage.read_json(f"{run}/run.json")
    assert facts["finished"]


@pytest.mark.parametrize("draw", range(2))
def test_a_killed_run_goes_on_bit_for_bit_on_an_empty_disk(
    made: Made, draw: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = random.Random(f"{AT.random()} {draw}").randint(2, made.objects)
    run, name = made.run(f"killed-{draw}"), f"killed-{draw}"
    elsewhere(made, f"first-{draw}", monkeypatch)
    process = subprocess.run(
        [warm(), "-c", KILLED_AT_AN_OBJECT, str(at), *made.argv(name)], check=False, timeout=WATCHDOG_S
    )
    assert process.returncode == -signal.SIGKILL
    elsewhere(made, f"second-{draw}", monkeypatch)
    there = checkpoints.finished(run)
    for step in there:  # what is seen is whole
        checkpoints.brought(run, step)
    shutil.rmtree(made.on_disk.parent / f"second-{draw}", ignore_errors=True)
    for ticket in storage.names(f"{run}/log"):  # of another machine it would be honoured for two minutes
        storage.delete(f"{run}/log/{ticket}")
    assert cli.main(made.argv(name)) == 0, at
    assert_as_on_disk(made, run)
    attempts = storage.read_json(f"{run}/run.json")["attempts"]
    assert attempts[-1]["from_step"] == max(there, default=0)


@ONE_STORE
def test_a_run_that_is_told_to_end_publishes_a_checkpoint(made: Made) -> None:
    run = made.run("told")
    process = started(["altalign", *made.argv("told"), "--set=schedule.steps=4000", "--set=loop.checkpoint_every=2"])
    while not checkpoints.finished(run):
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=WATCHDOG_S)
    assert process.returncode == 128 + signal.SIGTERM, said
    last = max(checkpoints.finished(run))
    assert [line["step"] for line in lines(run)] == list(range(1, last + 1))
    assert not [name for name in storage.names(f"{run}/log") if name.startswith("lock-")]


def test_a_checkpoint_that_is_damaged_in_the_store_is_passed_over_and_named(
    made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made.run("damaged")
    for path in storage.files_below(made.run("counted")):
        storage.write_bytes(f"{run}/{path.removeprefix(made.run('counted'))[1:]}", storage.read_bytes(path))
    newest = checkpoints.place_of(run, STEPS)
    storage.write_bytes(f"{newest}/model.safetensors", b"cut" + storage.read_bytes(f"{newest}/model.safetensors")[3:])
    elsewhere(made, "of the damaged", monkeypatch)
    assert cli.main(made.argv("damaged")) == 0
    assert f"{newest}/model.safetensors: not as it was written" in capsys.readouterr().err.replace("\n", "")
    assert_as_on_disk(made, run)


def test_other_commands_read_it_on_another_machine(
    made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run, disk = made.run("counted"), str(made.on_disk)
    elsewhere(made, "of the reader", monkeypatch)
    before = storage.read_json(f"{run}/eval/step-{STEPS:07}/metrics.json")
    assert cli.main(["eval", *made.argv("counted")[1:]]) == 0
    assert storage.read_json(f"{run}/eval/step-{STEPS:07}/metrics.json") == before
    assert cli.main(["eval", *made.argv("counted")[1:], "--checkpoint", "3"]) == 0
    assert storage.read_json(f"{run}/eval/step-0000003/metrics.json")["retrieval/held"]

    key = pairs(60, images=30)[0].key
    told: list[dict[str, Any]] = []
    for folder in (run, disk):
        capsys.readouterr()
        assert cli.main(["status", "--lineage", f"{folder}/checkpoints/step-{STEPS:07}", "--key", key, "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == {**told[1], "training": run}
    assert told[0]["seen"]["steps"] or told[0]["seen"]["held_out"]

    assert cli.main(["status", "--lineage", f"{run}/checkpoints/step-0000099"]) == 2
    assert "no checkpoint of step 99 (there: 3, 6, 8)" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "captions.txt").write_text("a kite\n", encoding="utf-8")
    for folder, out in ((run, "ours"), (disk, "expected")):
        assert cli.main(["encode", folder, str(tmp_path / "captions.txt"), str(tmp_path / out)]) == 0
    ours, expected = (
        {path.name: path.read_bytes() for path in (tmp_path / out).rglob("*.parquet")} for out in ("ours", "expected")
    )
    assert expected
    assert ours == expected


def launch(made: Made, name: str) -> list[str]:
    """What each of two machines runs, with a process of a sharded training."""
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "a-run"]
    launched = ["torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *meeting, "-m", "altalign"]
    return [*launched, *made.argv(name), *SHARDED, "--set=loop.timeout_s=60"]


@ONE_STORE
def test_machines_without_a_folder_in_common_train_one_sharded_model(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each writes its part of the moments to its own disk; on a third machine one process goes on with them."""
    run, folder, launched = made.run("sharded"), made.on_disk.parent, launch(made, "sharded")
    machines = [started(launched, ALTALIGN_CACHE=str(folder / name), TMPDIR=str(folder)) for name in ("one", "two")]
    said = [machine.communicate(timeout=WATCHDOG_S)[1] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], said
    digests = storage.read_json(f"{checkpoints.place_of(run, STEPS)}/manifest.json")
    assert len([name for name in digests if name.startswith("moments/")]) == 2
    elsewhere(made, "three", monkeypatch)
    for step in checkpoints.finished(run):
        checkpoints.brought(run, step)
    shutil.rmtree(folder / "three")
    expected = losses(run)
    for step in (6, STEPS):
        storage.delete(checkpoints.place_of(run, step))
    assert cli.main([*made.argv("sharded"), *SHARDED]) == 0
    assert losses(run) == pytest.approx(expected, rel=2e-4)  # sums are rounded in another order
    assert len(expected) == STEPS
    assert [one["ranks"] for one in storage.read_json(f"{run}/run.json")["attempts"]] == [2, 1]


@ONE_STORE
def test_a_full_disk_of_one_machine_ends_all_and_leaves_no_checkpoint(made: Made) -> None:
    run, folder, launched = made.run("full"), made.on_disk.parent, launch(made, "full")
    small = folder / "small"
    small.mkdir()
    skip_where_nothing_can_be_mounted(small)
    mounted = f'mount -t tmpfs -o size={SMALL_BYTES} tmpfs "$0"; exec "$@"'
    held = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    argv = [
        [sys.executable, "-m", *launched],
        [*UNSHARE, "sh", "-ec", mounted, str(small), sys.executable, "-m", *launched],
    ]
    machines = [
        subprocess.Popen(words, env={**held, "ALTALIGN_CACHE": place}, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for words, place in zip(argv, (str(folder / "ample"), str(small)), strict=True)
    ]
    said = [machine.communicate(timeout=WATCHDOG_S)[1] for machine in machines]
    assert all(machine.returncode for machine in machines), said
    assert "no space left on the device while writing a checkpoint" in " ".join(said[1].split()), said
    assert "rank 1 cannot write its part of a checkpoint" in " ".join(said[0].split()), said
    assert checkpoints.finished(run) == []
    frames = [re.findall(rf'File "{re.escape(str(ROOT))}/(?!\.venv)[^"]+"', words) for words in said]
    assert frames == [[], []]  # the launcher's own tracebacks alone, one or, where its peer leaves first, two
