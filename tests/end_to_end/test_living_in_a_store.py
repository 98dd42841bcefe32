"""`altalign add` and `compact` of runs in a real S3 server, and in an emulator of GCS: what they leave on a disk."""

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from altalign import storage
from altalign.cli import main
from altalign.data.stages import REPORT
from altalign.storage import parquet
from tests.end_to_end.test_object_stores import in_a_bucket, tree_of
from tests.object_stores.servers import ONE_STORE, Server
from tests.support.curations import ROOT, environ, tree
from tests.support.tars import tar

pytestmark = pytest.mark.stores

KILLS = int(os.environ.get("ALTALIGN_KILLS", "2"))

# A command that is killed just before it has the store write or copy its n-th object; without a number it counts them.
KILLED_AT_A_CHANGE = """
import os, signal, sys
from altalign.storage import objects
at, seen = int(sys.argv.pop(1)), 0
def before(real):
    def counted(*args):
        global seen
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)
    return counted
objects._put = before(objects._put)
objects.link = before(objects.link)
objects.delete_file = before(objects.delete_file)
from altalign.cli import main
code = main(sys.argv[1:])
print(seen)
sys.exit(code)
"""


class Made(NamedTuple):
    """A bucket with an input, and a run of a part of it; the same run on a disk."""

    store: Server
    folder: Path  # working directory

    @property
    def url(self) -> str:
        """The run in the bucket."""
        return f"{self.store.url}/run"

    @property
    def new(self) -> list[str]:
        """Options that name the rest of the input."""
        return ["--input", f"{self.store.url}/input/part-1.parquet", "--like", "pictures"]

    def copied(self, name: str) -> str:
        """A copy of the run in the bucket."""
        for path in storage.files_below(self.url):
            storage.write_bytes(path.replace(self.url, f"{self.store.url}/{name}", 1), storage.read_bytes(path))
        return f"{self.store.url}/{name}"


@pytest.fixture(scope="module", params=["s3", "gcs"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("made")
    with in_a_bucket(request, folder, rows=300, vocabulary_size=250) as (store, _):
        text = Path("config.toml").read_text(encoding="utf-8")
        Path("config.toml").write_text(text.replace("input/*.parquet", "input/part-0.parquet"), encoding="utf-8")
        for run in ("run", f"{store.url}/run"):
            assert main(["curate", "config.toml", f"--set=run.folder={run}"]) == 0
        yield Made(store, folder)


def left_over(run: str) -> list[str]:
    return [path for path in storage.files_below(run) if "/.change/" in path or "/.adding/" in path]


def test_what_is_added_and_packed_in_a_store_has_the_bytes_of_that_on_a_disk(made: Made) -> None:
    here = shutil.copytree("run", "added")
    run = made.copied("added")
    before = {path: storage.stamp(path) for path in storage.files_below(f"{run}/shards")}
    for folder in (here, run):
        assert main(["add", folder, *made.new]) == 0
        assert main(["audit", folder, "--digest"]) == 0
    on_disk = tree(Path(here))
    assert any(name.startswith("shards/g0002-") for name in on_disk)
    assert tree_of(run) == on_disk
    assert left_over(run) == []
    in_work = [path.removeprefix(run) for path in storage.files_below(f"{run}/work")]
    assert sorted(in_work) == sorted(f"/{path.relative_to(here)}" for path in Path(here, "work").rglob("*.*"))
    # shards in which nothing changed were not written again
    kept = [path for path in before if tree(Path("run")).get(name := path.removeprefix(f"{run}/")) == on_disk.get(name)]
    if made.store.scheme == "gs":  # a file of the other server has the time of its last write
        assert {path: storage.stamp(path) for path in kept} == {path: before[path] for path in kept}
    for folder in (here, run):
        assert main(["merge", folder, "--to", f"{folder}-packed"]) == 0
    assert tree_of(f"{run}-packed") == tree(Path(f"{here}-packed"))
    assert left_over(f"{run}-packed") == []


@ONE_STORE
def test_an_addition_that_is_killed_leaves_the_old_run_or_the_new_one_and_goes_on(made: Made) -> None:
    def killed(at: int, run: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED_AT_A_CHANGE, str(at), "add", run, *made.new]
        return subprocess.run(command, cwd=made.folder, env=environ(), capture_output=True, text=True, check=False)

    run, old = made.copied("whole"), seen(made.url)
    counted = killed(0, run)
    assert counted.returncode == 0, counted.stderr
    changes, new = int(counted.stdout.split()[-1]), seen(run)
    assert new != old
    rng = random.Random(made.store.scheme)
    points = [changes - 8, *(rng.randrange(1, changes + 1) for _ in range(KILLS))]
    for number, point in enumerate(points):
        run = made.copied(f"killed-{number}")
        assert killed(point, run).returncode == -signal.SIGKILL
        assert main(["status", "--lineage", run]) == 0  # whoever opens it finishes a change that was decided
        assert seen(run) in (old, new), point
        assert main(["add", run, *made.new]) == 0
        assert seen(run) == new, point
        assert storage.exists(f"{run}/{REPORT[0]}")
        assert left_over(run) == []
        storage.delete(run)


def seen(run: str) -> dict[str, str]:
    """What a reader finds, without the report, which is made afterwards; names that begin with a point are nobody's."""
    return {name: of for name, of in tree_of(run).items() if not name.startswith((".", *REPORT))}


# A removal that says how much memory it took.
REMOVES = """
import sys
import tarfile
from altalign.pipelines.change import remove
from altalign.commands.arguments import config_of_run
from tests.peak import peak_bytes
remove.main(config_of_run(sys.argv[1]), {"keys": [sys.argv[2]]}, None, by="", because="", is_dry_run=False)
print(peak_bytes())
"""
LARGE_IMAGES, PER_SHARD = 240, 20  # of 1.5 MB each: 12 shards of 30 MB
WITH_LARGE_IMAGES = """
[run]
folder = "{url}/run"
keep_work = false

[[input]]
name = "tars"
kind = "webdataset"
paths = ["large.tar"]

[text]
vocabulary_size = 1000

[shards]
samples_per_shard = 20
"""


def write_tar(path: Path, rows: list[dict[str, Any]]) -> None:
    members: list[tuple[str, bytes]] = []
    for number, row in enumerate(rows):
        of = {"json": json.dumps({"url": row["url"]}).encode(), "txt": row["caption"].encode(), "jpg": row["image"]}
        members += [(f"{number:04d}.{ending}", content) for ending, content in of.items() if content]
    path.write_bytes(tar(members))


def write_large_images(path: Path) -> None:
    noise = np.random.default_rng(0)
    rows = []
    for number in range(LARGE_IMAGES):
        image = io.BytesIO()
        Image.fromarray(noise.integers(0, 256, (1_152, 1_152, 3), np.uint8)).save(image, "jpeg", quality=95)
        caption = f"a small red house near river number {number}"
        rows.append({"url": f"https://img.example/{number}.jpg", "caption": caption, "image": image.getvalue()})
    write_tar(path, rows)


def test_memory_does_not_grow_with_the_shards_that_a_removal_writes(
    s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_large_images(tmp_path / "large.tar")
    Path("config.toml").write_text(WITH_LARGE_IMAGES.format(url=s3.url), encoding="utf-8")
    assert main(["curate", "config.toml"]) == 0
    run = f"{s3.url}/run"
    tars = [path for path in storage.files_below(f"{run}/shards") if path.endswith(".tar")]
    assert len(tars) == LARGE_IMAGES // PER_SHARD
    assert sum(storage.stamp(path).size for path in tars) > 300 << 20
    keys = [parquet.read_table(path.replace(".tar", ".parquet"))["key"][0].as_py() for path in tars]
    Path("keys").write_text("\n".join(keys), encoding="utf-8")
    environment = {**environ(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", REMOVES, run, "keys"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "12 shards are written anew" in done.stdout
    assert 0 < int(done.stdout.split()[-1]) < 800 << 20  # three copies of all shards were 900 MB by themselves
