"""Clusters of Spark and Flink.

The same bytes as the embedded run, whichever of their processes are killed, and nothing of them left in the run.

`make test-clusters` kills a JVM, the command, and a Python worker in a mapping and in a grouping step; `make
test-clusters-all` one in every step, too.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end import blows, clusters
from tests.end_to_end.clusters import Cluster, of_environment, wait_for
from tests.support.curations import Finished, altalign, command, environ, listed, tree

pytestmark = pytest.mark.cluster

STEPS = [
    "extract",
    "tables/units",
    "tables/merged",
    "judge/units",
    "judge/grouped",
    "test_images",
    "fetch/gathered",
    "fetch/units",
]
STEPS += [f"decontaminate/{step}" for step in ("map", "index", "search", "units")] + ["write"]

TAKES_AT_MOST_S = 1_200  # watchdogs
REACHED_WITHIN_S = 300


@pytest.fixture(scope="module")
def struck_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tests say what Python workers are to meet."""
    return tmp_path_factory.mktemp("blows")


@pytest.fixture(scope="module", params=["spark", "flink"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, struck_at: Path
) -> Iterator[Cluster]:
    clusters.need_cluster(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    start = clusters.spark if request.param == "spark" else clusters.flink
    with (
        clusters.worker_pool(folder / "pool", blows.environ(struck_at)) as pool,
        start(folder / "cluster", pool) as cluster,
    ):
        yield cluster
    wait_for("the end of all workers", lambda: not of_environment(f"TMPDIR={folder / 'pool'}"), [], within_s=60)


def begun(folder: Path, cluster: Cluster, *args: str) -> "subprocess.Popen[str]":
    """The command, begun in a folder."""
    (folder / "temp").mkdir(exist_ok=True)
    wanted = command("curate", "config.toml", "--set", f"engine.runner={cluster.runner}", *args, "--", *cluster.flags)
    # at which Spark's driver listens
    environment = environ({"TMPDIR": str(folder / "temp"), "SPARK_LOCAL_IP": "127.0.0.1"})
    return subprocess.Popen(
        wanted, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def ended(run: "subprocess.Popen[str]") -> str:
    """What the command has said on stderr at its end, which has to be a good one."""
    with run:
        try:
            _, said = run.communicate(timeout=TAKES_AT_MOST_S)
        finally:
            run.kill()
    assert run.returncode == 0, said
    return said


def check_same(folder: Path, embedded: Finished) -> None:
    """The run has the bytes of the embedded one, and no file that this has not."""
    assert tree(folder / "run") == embedded.tree
    assert listed(folder / "run") == embedded.listed
    assert not list((folder / "run").rglob("*partial-*"))
    assert list((folder / "temp").iterdir()) == []
    wait_for(
        "the end of all of the command's processes",
        lambda: not of_environment(f"TMPDIR={folder / 'temp'}"),
        [],
        within_s=60,
    )


def test_a_cluster_changes_no_byte(embedded: Finished, tmp_path: Path, cluster: Cluster, struck_at: Path) -> None:
    blows.want(struck_at, {})
    folder = embedded.input_in(tmp_path)
    said = ended(begun(folder, cluster))
    assert re.fullmatch(r"([a-z_/]+: \d+ of \d+ units.*\n)+", said)
    check_same(folder, embedded)


def test_a_jvm_of_the_engine_and_the_command_and_then_python_workers_killed_change_no_byte(
    embedded: Finished, tmp_path: Path, cluster: Cluster, struck_at: Path
) -> None:
    folder = embedded.input_in(tmp_path)
    blows.want(struck_at, {"extract": blows.HOLD})
    with begun(folder, cluster) as run:
        try:
            reached(run, struck_at, "extract")
            cluster.kill(blows.struck(struck_at, "extract"))
            blows.release(struck_at)  # its worker goes on with the unit, while another one does it too
            wait_for(
                "the stage after it",
                lambda: (folder / "run" / "work" / "extract" / "done.json").exists() or run.poll(),
                [],
                within_s=REACHED_WITHIN_S,
            )
            blows.want(struck_at, {"tables/units": blows.HOLD})
            reached(run, struck_at, "tables/units")
        finally:
            run.kill()
    # In a grouping and in a mapping step after those of a job that the killed command may have left at work. What these
    # workers leave is swept at the end.
    blows.want(struck_at, dict.fromkeys(["judge/grouped", "decontaminate/units"], "SIGKILL"))
    blows.release(struck_at)
    ended(begun(folder, cluster))
    assert blows.wanted(struck_at) == []
    check_same(folder, embedded)


@pytest.mark.skipif(
    os.environ.get("ALTALIGN_KILLS_IN") != "all", reason="the long form of the test above: `make test-clusters-all`"
)
def test_a_python_worker_killed_in_every_step_changes_no_byte(
    embedded: Finished, tmp_path: Path, cluster: Cluster, struck_at: Path
) -> None:
    blows.want(struck_at, dict.fromkeys(STEPS, "SIGKILL"))
    folder = embedded.input_in(tmp_path)
    ended(begun(folder, cluster))
    assert blows.wanted(struck_at) == []
    check_same(folder, embedded)


def reached(run: "subprocess.Popen[str]", struck_at: Path, step: str) -> None:
    """Wait until a worker is in the middle of a unit of this step."""
    wait_for(
        f"a unit of {step}",
        lambda: blows.struck(struck_at, step) or run.poll() is not None,
        [],
        within_s=REACHED_WITHIN_S,
    )
    assert run.poll() is None, run.stderr and run.stderr.read()


def test_a_python_worker_of_the_only_executor_killed_changes_no_byte(
    embedded: Finished, tmp_path: Path, struck_at: Path
) -> None:
    folder = embedded.input_in(tmp_path / "here")
    blows.want(struck_at, dict.fromkeys(["tables/merged", "judge/units"], "SIGKILL"))
    with (
        clusters.worker_pool(tmp_path / "pool", blows.environ(struck_at)) as pool,
        clusters.spark(tmp_path / "cluster", pool, cores=[1]) as cluster,
    ):
        said = ended(begun(folder, cluster, "--until", "judge"))
    assert blows.wanted(struck_at) == []
    # Mostly all tries of a task meet the dead worker, and Spark gives the job up; at times a later one meets a new one.
    given_up = re.findall(r"([a-z/]+): Spark gave the job up \(RuntimeError: .+\); it is begun again\n", said)
    assert given_up in (["tables/units", "judge/units"], ["tables/units"], ["judge/units"], []), said
    done = altalign(folder, "curate", "config.toml")
    assert done.returncode == 0, done.stderr
    check_same(folder, embedded)


# Clusters on which no run can end well --------------------------------------------------------------------------------
