"""Whole runs in a real S3 server, and in an emulator of GCS: the same bytes as on a disk, also of runs that are killed
and continued.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

from altalign import storage
from altalign.cli import main
from altalign.pipelines.web import journal
from altalign.storage import objects, parquet
from tests.end_to_end.clusters import need_job_server
from tests.end_to_end.web_inputs import answers, asked_for, ids, pictures, write_web_input
from tests.object_stores.servers import Server
from tests.support.curations import CONFIG, EXEMPT, ROOT, environ, tree, write_input
from tests.web_server.running import WebServer

pytestmark = pytest.mark.stores

KILLS = 5  # in S3; in GCS two of these
KILLS_IN_GCS = (1, 3)

# A command that is killed just before its n-th object is written; of a large one half is uploaded then.
KILLED_AT_AN_OBJECT = """
import os, signal, sys
from altalign.storage import objects
at, seen, real = int(sys.argv.pop(1)), 0, objects._put
def put(place, data):
    global seen
    seen += 1
    if seen == at:
        if data.size > objects.ONE_REQUEST_BYTES:
            stream = objects.client(place, in_parts=True).open_output_stream(place.name)
            stream.write(data.slice(0, data.size // 2))
        os.kill(os.getpid(), signal.SIGKILL)
    real(place, data)
objects._put = put
from altalign.cli import main
sys.exit(main(sys.argv[1:]))
"""


def tree_of(run: str) -> dict[str, str]:
    """SHA-256 of every object of a run but those that are exempt."""
    paths = [path for path in storage.files_below(run) if path.removeprefix(f"{run}/").split("/")[0] not in EXEMPT]
    return {path.removeprefix(f"{run}/"): hashlib.sha256(storage.read_bytes(path)).hexdigest() for path in paths}


def upload(folder: Path, url: str) -> None:
    """Input and test set of a small run."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.relative_to(folder).parts[0] in ("input", "text", "tests"):
            storage.write_bytes(f"{url}/{path.relative_to(folder)}", path.read_bytes())


def config_of(url: str) -> str:
    """The settings of the small run, with its input in a bucket."""
    return (
        CONFIG.replace('"input/', f'"{url}/input/')
        .replace('"text/', f'"{url}/text/')
        .replace('["tests"]', f'["{url}/tests"]')
    )


class Made(NamedTuple):
    """A bucket with an input and a finished run, and the same run on a disk."""

    store: Server
    folder: Path  # working directory, with the config
    on_disk: dict[str, str]
    objects: int  # that the run wrote

    @property
    def run(self) -> str:
        """The run in the bucket."""
        return f"{self.store.url}/run"


@contextmanager
def in_a_bucket(
    request: pytest.FixtureRequest, folder: Path, *, rows: int, vocabulary_size: int
) -> Iterator[tuple[Server, pytest.MonkeyPatch]]:
    """A bucket of the server that the fixture's parameter names, with a small input; config.toml in the folder, which
    is the working directory, reads it.
    """
    server: Server = request.getfixturevalue(f"{request.param}_server")
    with pytest.MonkeyPatch.context() as patch:
        store = server.for_test(folder, patch)
        patch.chdir(folder)
        write_input(folder, rows=rows)
        upload(folder, store.url)
        text = config_of(store.url).replace("vocabulary_size = 380", f"vocabulary_size = {vocabulary_size}")
        Path("config.toml").write_text(text, encoding="utf-8")
        yield store, patch


def in_store(store: Server, name: str) -> str:
    return f"--set=run.folder={store.url}/{name}"


@pytest.fixture(scope="module", params=["s3", "gcs"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("made")
    with in_a_bucket(request, folder, rows=120, vocabulary_size=150) as (store, patch):
        assert main(["curate", "config.toml"]) == 0
        written = []
        real = objects._put  # pyright: ignore[reportPrivateUsage]
        patch.setattr(objects, "_put", lambda place, data: (written.append(place), real(place, data)))
        assert main(["curate", "config.toml", in_store(store, "run")]) == 0
        patch.setattr(objects, "_put", real)
        yield Made(store, folder, tree(folder / "run"), len(written))


@pytest.fixture
def s3_made(made: Made) -> Made:
    if made.store.scheme != "s3":
        pytest.skip("of S3 alone")
    return made


def left_over(store: Server) -> list[str]:
    """Objects of a bucket that no finished run has: tickets."""
    return [path for path in storage.files_below(store.url) if "/lock-" in path]


# Whole runs ----------------------------------------------------------------------------------------------------------


@pytest.mark.everyday
def test_a_run_in_a_store_has_the_bytes_of_one_on_a_disk(made: Made) -> None:
    assert tree_of(made.run) == made.on_disk
    assert len(made.on_disk) > 40
    assert left_over(made.store) == []


@pytest.mark.java
def test_spark_killed_and_continued_leaves_the_same_bytes_in_a_store(made: Made) -> None:
    need_job_server("spark")
    assert killed_at(made, "spark", made.objects // 2, "--set=engine.runner=spark") == -signal.SIGKILL
    command = ["curate", "config.toml", in_store(made.store, "spark"), "--set=engine.runner=spark"]
    done = subprocess.run(
        [sys.executable, "-m", "altalign.cli", *command],
        cwd=made.folder,
        env=environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert tree_of(f"{made.store.url}/spark") == made.on_disk


def test_input_in_a_store_gives_the_pairs_of_input_on_a_disk(
    s3_made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_input(tmp_path, rows=120)
    monkeypatch.chdir(tmp_path)
    assert main(["curate", "config.toml", "--set=text.vocabulary_size=150"]) == 0
    differs = {name for name, digest in tree(tmp_path / "run").items() if s3_made.on_disk[name] != digest}
    # by digest, the list names audit/near_duplicates, card and manifest the list, and the report's facts the manifest
    by_digest = {"files.jsonl", "README.md", "manifest.json", "audit/report.json"}
    assert differs <= {"config.toml", *by_digest} | {
        name for name in s3_made.on_disk if name.startswith("audit/near_duplicates")
    }


def test_web_archives_in_a_store_give_the_bytes_of_those_on_a_disk(
    s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "web"]) == 0
    for path in Path("web").rglob("*"):
        if path.is_file():
            storage.write_bytes(f"{s3.url}/{path}", path.read_bytes())
    config = (ROOT / "configs" / "demo.toml").read_text(encoding="utf-8").replace("demo-web", f"{s3.url}/web")
    Path("config.toml").write_text(config, encoding="utf-8")
    assert main(["curate", "config.toml", "--set=run.folder=run"]) == 0
    assert main(["curate", "config.toml", in_store(s3, "run")]) == 0
    assert tree_of(f"{s3.url}/run") == tree(Path("run"))


def test_what_is_removed_in_a_store_leaves_the_shards_of_a_removal_on_a_disk(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.folder / "run", tmp_path / "run")
    for path in storage.files_below(made.run):
        storage.write_bytes(path.replace(made.run, f"{made.store.url}/without", 1), storage.read_bytes(path))
    keys = pq.read_table(tmp_path / "run" / "shards" / "00000.parquet")["key"].to_pylist()[:3]
    (tmp_path / "keys").write_text("\n".join(map(str, keys)), encoding="utf-8")
    for run in (str(tmp_path / "run"), f"{made.store.url}/without"):
        assert main(["remove", run, "--keys", str(tmp_path / "keys")]) == 0
        assert main(["audit", run, "--digest"]) == 0
    in_store, on_disk = tree_of(f"{made.store.url}/without"), tree(tmp_path / "run")
    assert in_store.keys() == on_disk.keys()
    assert {name: of for name, of in in_store.items() if name.startswith(("shards/", "dropped/"))} == {
        name: of for name, of in on_disk.items() if name.startswith(("shards/", "dropped/"))
    }
    assert not [path for path in storage.files_below(f"{made.store.url}/without") if "/.change/" in path]


def killed_at(made: Made, name: str, point: int, *args: str) -> int:
    command = [
        sys.executable,
        "-c",
        KILLED_AT_AN_OBJECT,
        str(point),
        "curate",
        "config.toml",
        in_store(made.store, name),
        "--set=engine.workers=2",
        *args,
    ]
    return subprocess.run(
        command, cwd=made.folder, env=environ(), capture_output=True, timeout=300, check=False
    ).returncode


@pytest.mark.parametrize("number", range(KILLS))
def test_a_run_that_was_killed_continues_to_the_same_bytes(number: int, made: Made) -> None:
    if made.store.scheme == "gs" and number not in KILLS_IN_GCS:
        pytest.skip("of S3 alone")
    name = f"killed-{number}"
    run = f"{made.store.url}/{name}"
    assert killed_at(made, name, 2 + number * (made.objects - 4) // (KILLS - 1)) == -signal.SIGKILL
    partial = tree_of(run)
    assert partial.keys() <= made.on_disk.keys()
    assert all(made.on_disk[path] == digest for path, digest in partial.items())  # whole, or not there
    assert storage.holder(run) is None
    if number % 2:
        killed_at(made, name, 3 + 7 * number)  # once more, on the way
    assert main(["curate", "config.toml", in_store(made.store, name)]) == 0
    assert tree_of(run) == made.on_disk
    assert sorted(path.removeprefix(run) for path in storage.files_below(run)) == sorted(
        path.removeprefix(made.run) for path in storage.files_below(made.run)
    )
    storage.delete(run)


def test_a_run_goes_on_with_what_another_machine_has_begun(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = f"{made.store.url}/moved"
    assert main(["curate", "config.toml", in_store(made.store, "moved"), "--until", "judge"]) == 0
    monkeypatch.setenv("ALTALIGN_CACHE", str(tmp_path / "another machine"))
    assert main(["curate", "config.toml", in_store(made.store, "moved")]) == 0
    assert tree_of(run) == made.on_disk
    storage.delete(run)


# Other commands ------------------------------------------------------------------------------------------------------


def test_status_explain_and_a_dry_run_tell_of_a_run_in_a_store(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", made.run]) == 0
    said = capsys.readouterr().out
    assert f"{made.run}: finished" in said
    assert "write" in said
    dropped = next(path for path in sorted(storage.files_below(f"{made.run}/dropped/judge")))
    with storage.open_read(dropped) as file:
        row = pq.read_table(file).to_pylist()[0]
    assert main(["explain", made.run, "--key", row["key"]]) == 0
    assert f"dropped: {row['reason']}" in capsys.readouterr().out
    rare = next(
        row
        for path in storage.files_below(f"{made.run}/dropped/judge")
        for row in _rows(path)
        if row["reason"] == "text_has_rare_ngram"
    )
    assert main(["explain", made.run, "--text", rare["caption"]]) == 0
    assert "rare:" in capsys.readouterr().out
    assert main(["curate", "config.toml", in_store(made.store, "never"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "3 input files" in said
    assert "as much as the store gives" in said
    assert storage.kind(f"{made.store.url}/never") == "missing"


def _rows(path: str) -> list[dict[str, Any]]:
    with storage.open_read(path) as file:
        return pq.read_table(file).to_pylist()


def test_a_stage_is_run_anew_and_work_is_deleted(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    run = f"{made.store.url}/again"
    assert main(["curate", "config.toml", in_store(made.store, "again"), "--set=text.words_at_least=2"]) == 0
    capsys.readouterr()
    assert main(["curate", "config.toml", in_store(made.store, "again")]) == 2
    assert "text.words_at_least = 2, now 3" in capsys.readouterr().err
    assert main(["curate", "config.toml", in_store(made.store, "again"), "--rerun"]) == 0
    assert tree_of(run) == made.on_disk
    assert main(["clean", run]) == 0
    assert storage.kind(f"{run}/work") == "missing"
    assert tree_of(run) == made.on_disk
    assert main(["curate", "config.toml", in_store(made.store, "again")]) == 0
    assert main(["curate", "config.toml", in_store(made.store, "again"), "--restart"]) == 0
    assert tree_of(run) == made.on_disk
    storage.delete(run)


def test_a_test_set_is_added_to_a_finished_run(s3_made: Made, tmp_path: Path) -> None:
    store, run = s3_made.store, f"{s3_made.store.url}/more"
    for folder, where in (
        (str(tmp_path / "more"), "--set=run.folder=" + str(tmp_path / "more")),
        (run, in_store(store, "more")),
    ):
        assert main(["curate", "config.toml", where, "--set=decontaminate.test_sets=[]"]) == 0
        assert main(["add", folder, "--test-set", f"tests={store.url}/tests"]) == 0
    assert tree_of(run) == tree(tmp_path / "more")
    storage.delete(run)


def test_another_command_is_refused_while_one_is_at_work(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    with storage.locked(made.run):
        assert main(["clean", made.run]) == 2
        assert f"another command is at work on this run (process {os.getpid()})" in capsys.readouterr().err
        assert main(["status", made.run]) == 0
        assert f"running (process {os.getpid()})" in capsys.readouterr().out


def test_input_that_changed_in_the_store_is_refused(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    path, run = f"{made.store.url}/text/some.csv", f"{made.store.url}/changed"
    before = storage.read_bytes(path)
    assert main(["curate", "config.toml", in_store(made.store, "changed"), "--until", "tables"]) == 0
    storage.write_bytes(path, before.replace(b"cat", b"cow"))  # of the same size, within a second
    capsys.readouterr()
    assert main(["curate", "config.toml", in_store(made.store, "changed")]) == 2
    assert f"the file {path} of the same size, but another content now" in capsys.readouterr().err
    storage.write_bytes(path, before)
    assert main(["curate", "config.toml", in_store(made.store, "changed")]) == 0  # the same bytes again
    assert tree_of(run) == made.on_disk
    storage.delete(run)


def test_files_that_are_damaged_are_named_with_what_makes_them_anew(
    s3_made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    run = f"{s3_made.store.url}/damaged"
    assert main(["curate", "config.toml", in_store(s3_made.store, "damaged")]) == 0
    storage.write_bytes(f"{run}/counts.parquet", b"noise" * 100)
    capsys.readouterr()
    assert main(["curate", "config.toml", in_store(s3_made.store, "damaged")]) == 1
    assert f"{run}/counts.parquet: damaged" in capsys.readouterr().err
    storage.delete(f"{run}/shards/00000.tar")
    assert main(["curate", "config.toml", in_store(s3_made.store, "damaged")]) == 1
    assert (
        f"{run}/shards/00000.tar: damaged: it is not there; `altalign curate` with --rerun write makes it anew"
        in capsys.readouterr().err
    )
    assert main(["curate", "config.toml", in_store(s3_made.store, "damaged"), "--rerun", "write"]) == 0
    assert tree_of(run) == s3_made.on_disk
    storage.write_bytes(f"{s3_made.store.url}/thesis/mine.txt", b"mine")
    assert main(["curate", "config.toml", in_store(s3_made.store, "thesis")]) == 2
    assert "a folder that is no run of altalign" in capsys.readouterr().err
    storage.delete(run)


def test_a_lost_hold_ends_a_command_and_the_next_goes_on(
    s3_made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = f"{s3_made.store.url}/asleep"
    with monkeypatch.context() as patch:
        patch.setattr(objects, "LEASE_S", -1.0)  # as if every request had taken longer
        assert main(["curate", "config.toml", in_store(s3_made.store, "asleep")]) == 1
    assert "held no longer" in capsys.readouterr().err
    assert main(["curate", "config.toml", in_store(s3_made.store, "asleep")]) == 0
    assert tree_of(run) == s3_made.on_disk
    storage.delete(run)


# From the web --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    with WebServer(
        tmp_path_factory.mktemp("server"), addresses=[f"127.0.0.{number}" for number in range(1, 5)]
    ) as running:
        yield running


def _in_journals(run: str) -> set[str]:
    """image_id of every image that some journal of the run has."""
    found = set[str]()
    for name in journal.names(storage.join(run, "work", "fetch", "units")):
        partition, _, group = name.partition("-")
        rows = parquet.read_row_groups(
            storage.join(run, "work", "judge", "grouped", f"{partition}.parquet"), int(group), int(group), ["image_id"]
        )
        of_unit = list(dict.fromkeys((each or b"").hex() for batch in rows for each in batch["image_id"].to_pylist()))
        found |= {
            of_unit[number] for number in journal.read(storage.join(run, "work", "fetch", "units", name)).outcomes
        }
    return found


def test_a_run_from_the_web_is_killed_continued_and_tried_again(
    s3: Server, web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = [*pictures(web, 60), *answers(web)]
    write_web_input(tmp_path, web, asked)
    assert main(["curate", "config.toml"]) == 0
    killer = f"""
import os, signal, sys
from altalign.storage import objects
seen, real = 0, objects.GrowingObject.write
def write(self, data):
    global seen
    seen += 1
    if seen == 12:  # of 16 at least: eight units, each with images and a journal
        os.kill(os.getpid(), signal.SIGKILL)
    self._due_s = 0.0
    real(self, data)
    self._sending.result()
objects.GrowingObject.write = write
from altalign.cli import main
sys.exit(main(["curate", "config.toml", "{in_store(s3, "run")}"]))
"""
    since = len(web.requests())
    killed = subprocess.run(
        [sys.executable, "-c", killer], cwd=tmp_path, env=environ(), capture_output=True, timeout=300, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    in_hand, before = _in_journals(f"{s3.url}/run"), len(asked_for(web, since=since))
    assert in_hand
    assert main(["curate", "config.toml", in_store(s3, "run")]) == 0
    assert not in_hand & ids(asked_for(web, since=since)[before:])  # what had come is not asked for again
    assert tree_of(f"{s3.url}/run") == tree(Path("run"))
    assert left_over(s3) == []
    assert main(["retry", f"{s3.url}/run", "--reason", "http_status"]) == 0
    assert tree_of(f"{s3.url}/run") == tree(Path("run"))
    progress = json.loads(storage.read_bytes(f"{s3.url}/run/log/fetch/progress.json"))
    assert progress["units_finished"] == progress["units"]
