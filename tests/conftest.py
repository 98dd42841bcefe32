"""Puts the repository's root on the path, so that tests find the packages and one another; and finds engines."""

import contextlib
import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parents[1]))

from altalign.demo import web
from altalign.machine import memory, startup
from tests import made_once, process_state
from tests.object_stores import servers
from tests.object_stores.servers import Server
from tests.support.curations import ROOT, Finished, altalign, listed, tree, write_input

# A shell that starts us in the background has both ignored, which our children would inherit: tests of interrupts would
# then test nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What runs write is made to last: 4 ms a file on the disk of a virtual machine, which is half of a small run's time;
# nothing in memory. pytest deletes there what tests that passed have left.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and min(shutil.disk_usage(MEMORY).free, memory.free().bytes) > 10e9:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# The line that announces the first compilation of kernels is for users: here it would be in the output of whatever test
# comes first in a fresh checkout.
with contextlib.redirect_stderr(io.StringIO()):
    startup.place_kernels()

# The same examples everywhere, and no limit of time: machines are busy.
settings.register_profile("altalign", derandomize=True, deadline=None)
settings.load_profile("altalign")


@pytest.fixture(autouse=True)
def leaves_all_as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails the test that would leave the next one another process, or other files where many tests read."""
    before = process_state.current()
    yield
    changed = process_state.changed(before, process_state.current())
    process_state.restore(before, list(changed))
    assert not changed, "the test leaves this process changed: " + "; ".join(changed.values())
    written = made_once.changed(request.fixturenames)
    assert not written, f"the test writes into what others read: {written}"


@pytest.fixture(scope="session")
def demo_web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo web, and in summary.json what its writer says of it; read only."""

    def make(folder: Path) -> None:
        summary = web.write(folder / "demo-web")
        (folder / "summary.json").write_text(json.dumps(asdict(summary)), encoding="utf-8")

    return made_once.made_once("demo_web", tmp_path_factory, make)


@pytest.fixture(scope="session")
def checkout(demo_web: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user's checkout is after both sample runs; read only."""

    def make(folder: Path) -> None:
        for name in ("configs", "examples"):
            shutil.copytree(ROOT / name, folder / name)
        made_once.linked(demo_web / "demo-web", folder / "demo-web")
        for config in ("configs/handbook.toml", "configs/demo.toml"):
            done = altalign(folder, "curate", config)
            assert done.returncode == 0, done.stderr

    return made_once.made_once("checkout", tmp_path_factory, make)


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The small input and a run of it inside one process; read only."""

    def make(folder: Path) -> None:
        write_input(folder)
        done = altalign(folder, "curate", "config.toml", "--set", "engine.workers=1")
        assert done.returncode == 0, done.stderr

    folder = made_once.made_once("embedded", tmp_path_factory, make)
    return Finished(folder, tree(folder / "run"), listed(folder / "run"))


@pytest.fixture(scope="session")
def prism() -> str:
    """Path of a Prism binary: ALTALIGN_PRISM, or what `make prism` built."""
    found = os.environ.get("ALTALIGN_PRISM") or str(Path(__file__).parents[1] / ".cache" / "prism" / "prism")
    if not Path(found).is_file():
        pytest.skip(
            "no Prism binary: "
            + (
                "build one with `make prism`"
                if shutil.which("go")
                else "Go is not installed, so `make prism` cannot build one"
            )
        )
    return found


def built(name: str, variable: str) -> str:
    """Path of a server that tests run against: what the variable says, or what `make NAME` built."""
    found = os.environ.get(variable) or str(Path(__file__).parents[1] / ".cache" / name / name)
    if not Path(found).is_file():
        pytest.skip(
            f"no {name}: "
            + (
                f"build it with `make {name}`"
                if shutil.which("go")
                else f"Go is not installed, so `make {name}` cannot build it"
            )
        )
    return found


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real S3 server on loopback."""
    with servers.versitygw(built("versitygw", "ALTALIGN_VERSITYGW"), tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An emulator of GCS on loopback."""
    with servers.fake_gcs(
        built("fake-gcs-server", "ALTALIGN_FAKE_GCS_SERVER"), tmp_path_factory.mktemp("gcs")
    ) as server:
        yield server


@pytest.fixture
def s3(s3_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The S3 server, a bucket of its own, the environment that leads there, and this machine's folder for the test
    alone.
    """
    return s3_server.for_test(tmp_path, monkeypatch)


@pytest.fixture
def gcs(gcs_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The same of GCS."""
    return gcs_server.for_test(tmp_path, monkeypatch)


@pytest.fixture
def ipython() -> Iterator[Any]:
    """The shell of IPython, as in a notebook; gone afterwards, for Beam and others ask whether there is one."""
    of_ipython = pytest.importorskip("IPython.core.interactiveshell", reason="`make test-readers` has it")
    yield of_ipython.InteractiveShell.instance()
    of_ipython.InteractiveShell.clear_instance()
