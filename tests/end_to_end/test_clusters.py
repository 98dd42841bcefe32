"""Clusters of Spark and Flink: the same bytes as the embedded run, whichever of their processes are killed, and nothing of them left in the run.

`make test-clusters-all` kills a Python worker in every step, where `make test-clusters` kills one in a mapping and one in a grouping step.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.servers import free_port
from tests.end_to_end import blows, clusters
from tests.end_to_end.clusters import Cluster, of_environment, wait_for
from tests.end_to_end.runs import Finished, command, environ, listed, tree

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.cluster]

MAPPING = ["extract", "judge/units", "fetch/units"]
GROUPING = ["tables/merged", "judge/grouped"]
OTHERS = ["tables/units", "test_images", "fetch/gathered", "lessons", "decontaminate/learned", "decontaminate/index", "decontaminate/found"]
OTHERS += ["decontaminate/units", "write"]
KILLS_IN = [*MAPPING, *GROUPING, *OTHERS] if os.environ.get("ALTALIGN_KILLS_IN") == "all" else ["judge/units", "tables/merged"]

TAKES_AT_MOST_S = 420 if len(KILLS_IN) == 2 else 1_200  # watchdogs
REACHED_WITHIN_S = 240


@pytest.fixture(scope="module")
def struck_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tests say what Python workers are to meet."""
    return tmp_path_factory.mktemp("blows")


@pytest.fixture(scope="module", params=["spark", "flink"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, struck_at: Path) -> Iterator[Cluster]:
    clusters.need_cluster(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    start = clusters.spark if request.param == "spark" else clusters.flink
    with clusters.worker_pool(folder / "pool", blows.environ(struck_at)) as pool, start(folder / "cluster", pool) as cluster:
        yield cluster
    wait_for("the end of all workers", lambda: not of_environment(f"TMPDIR={folder / 'pool'}"), [], within_s=60)


def begun(folder: Path, cluster: Cluster, *args: str) -> "subprocess.Popen[str]":
    """The command, begun in a folder."""
    (folder / "temp").mkdir(exist_ok=True)
    wanted = command("curate", "config.toml", "--set", f"engine.runner={cluster.runner}", *args, "--", *cluster.flags)
    environment = environ({"TMPDIR": str(folder / "temp"), "SPARK_LOCAL_IP": "127.0.0.1"})  # at which Spark's driver listens
    return subprocess.Popen(wanted, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


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
    wait_for("the end of all of the command's processes", lambda: not of_environment(f"TMPDIR={folder / 'temp'}"), [], within_s=60)


def test_a_cluster_changes_no_byte_with_its_own_shuffle(embedded: Finished, tmp_path: Path, cluster: Cluster, struck_at: Path) -> None:
    blows.want(struck_at, {})
    folder = embedded.input_in(tmp_path)
    said = ended(begun(folder, cluster, "--set", "engine.shuffle=beam"))
    assert re.fullmatch(r"([a-z_/]+: \d+ of \d+ units.*\n)+", said)
    check_same(folder, embedded)


def test_python_workers_killed_in_the_middle_of_units_change_no_byte(embedded: Finished, tmp_path: Path, cluster: Cluster, struck_at: Path) -> None:
    blows.want(struck_at, dict.fromkeys(KILLS_IN, "SIGKILL"))
    folder = embedded.input_in(tmp_path)
    ended(begun(folder, cluster))
    assert blows.wanted(struck_at) == []
    check_same(folder, embedded)


def test_a_jvm_of_the_engine_killed_and_then_the_command_change_no_byte(embedded: Finished, tmp_path: Path, cluster: Cluster, struck_at: Path) -> None:
    folder = embedded.input_in(tmp_path)
    blows.want(struck_at, {"judge/units": blows.HOLD})
    with begun(folder, cluster) as run:
        try:
            reached(run, struck_at, "judge/units")
            cluster.kill(blows.struck(struck_at, "judge/units"))
            blows.release(struck_at)  # its worker goes on with the unit, while another one does it too
            wait_for("the stage after it", lambda: (folder / "run" / "work" / "judge" / "done.json").exists() or run.poll(), [], within_s=REACHED_WITHIN_S)
            blows.want(struck_at, {"fetch/units": blows.HOLD})
            reached(run, struck_at, "fetch/units")
        finally:
            run.kill()
    blows.release(struck_at)
    ended(begun(folder, cluster))
    check_same(folder, embedded)


def reached(run: "subprocess.Popen[str]", struck_at: Path, step: str) -> None:
    """Wait until a worker is in the middle of a unit of this step."""
    wait_for(f"a unit of {step}", lambda: blows.struck(struck_at, step) or run.poll() is not None, [], within_s=REACHED_WITHIN_S)
    assert run.poll() is None, run.stderr and run.stderr.read()


# Clusters on which no run can end well --------------------------------------------------------------------------------------


def test_a_flink_cluster_without_a_restart_strategy_is_refused_before_any_work(embedded: Finished, tmp_path: Path) -> None:
    folder = embedded.input_in(tmp_path / "here")
    with clusters.flink_manager(tmp_path / "cluster", {}) as (address, _):
        cluster = Cluster("flink", [f"--flink_master={address}", "--environment_type=EXTERNAL", "--environment_config=127.0.0.1:1"], lambda _: None)
        with begun(folder, cluster) as run:
            _, said = run.communicate(timeout=TAKES_AT_MOST_S)
    assert run.returncode == 2
    assert re.fullmatch(r'altalign: -- --flink_master=\S+: the cluster has no restart strategy.*"restart-strategy.type: fixed-delay".*\n', said)
    assert not (folder / "run").exists()


# The command, but that it does not wait so long.
_IMPATIENT = """
import logging, sys
logging.getLogger().setLevel(logging.CRITICAL)  # as the command does before it imports Beam
from pipelines import engines
from altalign.cli import main
engines.WORKER_BEGINS_WITHIN_S = 15.0
sys.exit(main(sys.argv[1:]))
"""


def test_a_pool_of_workers_that_is_not_there_ends_the_run_in_one_line(embedded: Finished, tmp_path: Path, cluster: Cluster, struck_at: Path) -> None:
    folder = embedded.input_in(tmp_path)
    (folder / "temp").mkdir()
    flags = [flag for flag in cluster.flags if not flag.startswith("--environment_config")]
    wanted = ["curate", "config.toml", "--set", f"engine.runner={cluster.runner}", "--", *flags, f"--environment_config=127.0.0.1:{free_port()}"]
    environment = environ({"TMPDIR": str(folder / "temp"), "SPARK_LOCAL_IP": "127.0.0.1"})
    with subprocess.Popen([sys.executable, "-c", _IMPATIENT, *wanted], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as run:
        try:
            _, said = run.communicate(timeout=TAKES_AT_MOST_S)
        finally:
            run.send_signal(signal.SIGKILL)
    assert run.returncode == 1, said
    *progress, line = said.splitlines()
    assert [more for more in progress if not more.startswith("extract: 0 of 3 units")] == []
    assert re.fullmatch(r"altalign: run: no worker has begun within 15 s; look whether \w+ has free machines, .*; run/log has what the job server said", line)
    assert list((folder / "temp").iterdir()) == []
