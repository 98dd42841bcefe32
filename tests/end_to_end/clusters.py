"""Real clusters on this machine.

Spark's master and two workers, Flink's job manager and a task manager, and a pool of Python workers.

All of them listen at free ports of loopback. Each is a session of its own, ends with us, and is stopped in the reverse
of the order in which it was started.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from altalign.errors import UsageError
from altalign.machine.children import ending_with_us
from altalign.pipelines.engine.options import jar_of
from tests.object_stores.servers import free_port
from tests.support.curations import environ
from tools import jars

STARTS_WITHIN_S = 180  # watchdogs, for machines that are busy
ENDS_WITHIN_S = 30

SLOTS = 2
_RESTARTS = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "20",
    "restart-strategy.fixed-delay.delay": "1 s",
}
_OPENED = [
    f"--add-opens={package}=ALL-UNNAMED"
    for package in re.findall(r"java\.base/[\w.]+", jars.POM.read_text(encoding="utf-8"))
]
# What a script of Flink would work out from taskmanager.memory.process.size; PyPI's package has no such script.
_MEMORY = {
    "taskmanager.cpu.cores": f"{SLOTS}.0",
    "taskmanager.memory.task.heap.size": "512mb",
    "taskmanager.memory.task.off-heap.size": "0b",
    "taskmanager.memory.managed.size": "256mb",
    "taskmanager.memory.network.max": "128mb",
    "taskmanager.memory.network.min": "128mb",
    "taskmanager.memory.framework.heap.size": "128mb",
    "taskmanager.memory.framework.off-heap.size": "128mb",
    "taskmanager.memory.jvm-metaspace.size": "256mb",
    "taskmanager.memory.jvm-overhead.max": "200mb",
    "taskmanager.memory.jvm-overhead.min": "200mb",
}


class Cluster(NamedTuple):
    """A cluster with Python for its workers, as a run names it."""

    runner: str
    flags: list[str]  # of Beam, after --
    kill: Callable[[list[str]], None]  # the JVM whose Python worker has these arguments; a new one comes


class Program(NamedTuple):
    """A running program, and the file of what it says."""

    process: "subprocess.Popen[bytes]"
    log: Path


# What has to be there -------------------------------------------------------------------------------------------------


def need_job_server(runner: str) -> None:
    """Skip the test where this engine cannot be had, and say what brings it."""
    if not shutil.which("java"):
        pytest.skip(f"no Java, on which {runner} runs: install Java 11 or 17 (and Maven), then `make jars`")
    try:
        jar_of(runner, PipelineOptions([]))
    except UsageError as error:
        pytest.skip(str(error))


def need_cluster(runner: str) -> Path:
    """The folder of an engine's own programs; skips the test where it cannot be had, and says what brings it."""
    need_job_server(runner)
    home = jars.home(runner)
    if not home.is_dir():
        pytest.skip(
            f"{home}: no such folder, and a cluster of {runner} is started from it: `make jars CLUSTERS=1` brings it"
        )
    return home


# Clusters -------------------------------------------------------------------------------------------------------------


@contextmanager
def spark(folder: Path, pool: int, *, cores: Sequence[int] = (1, 1)) -> Iterator[Cluster]:
    """A standalone cluster with workers of so many cores."""
    home = need_cluster("spark")
    port, web = free_port(), free_port()
    folder.mkdir(parents=True)
    environment = {
        **_java_environment(folder),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": str(folder / "temp"),
        "SPARK_DAEMON_MEMORY": "512m",
    }
    start = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy"]
    with ExitStack() as stack:
        master = [
            start[0],
            f"{start[1]}.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            str(web),
        ]
        watched = [stack.enter_context(running(master, folder / "master.log", environment))]
        for number, of_worker in enumerate(cores):
            worker = [
                start[0],
                f"{start[1]}.worker.Worker",
                "--host",
                "127.0.0.1",
                "--webui-port",
                "0",
                "--cores",
                str(of_worker),
                "--memory",
                "1g",
            ]
            watched.append(
                stack.enter_context(
                    running([*worker, f"spark://127.0.0.1:{port}"], folder / f"worker-{number}.log", environment)
                )
            )
        workers = [program.process.pid for program in watched[1:]]
        wait_for(
            "workers of Spark",
            lambda: (_answer(f"http://127.0.0.1:{web}/json/") or {}).get("aliveworkers") == len(cores),
            watched,
        )

        def kill(arguments: list[str]) -> None:
            executors = [pid for pid, parent in _parents().items() if parent in workers]
            os.kill(next(pid for pid in executors if _listens(pid, _port_of(arguments))), signal.SIGKILL)

        yield Cluster("spark", [f"--spark_master_url=spark://127.0.0.1:{port}", *_external(pool)], kill)


@contextmanager
def flink(folder: Path, pool: int) -> Iterator[Cluster]:
    """A job manager and a task manager of two slots, which is started anew when it is killed, as whoever keeps a real
    cluster does.
    """
    with flink_manager(folder, _RESTARTS) as (address, manager), ExitStack() as stack:
        command = [
            *_flink(folder, "-Xmx640m", "-XX:MaxDirectMemorySize=300m"),
            "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
        ]
        command += ["-c", str(folder), *(word for name, value in _MEMORY.items() for word in ("-D", f"{name}={value}"))]
        tasks: list[Program] = []

        def start() -> None:
            tasks.append(
                stack.enter_context(running(command, folder / f"tasks-{len(tasks)}.log", _java_environment(folder)))
            )

        def kill(_: list[str]) -> None:
            tasks[-1].process.kill()
            tasks[-1].process.wait()
            start()

        start()
        wait_for(
            "slots of Flink",
            lambda: (_answer(f"http://{address}/overview") or {}).get("slots-available") == SLOTS,
            [manager, tasks[-1]],
        )
        yield Cluster("flink", [f"--flink_master={address}", f"--parallelism={SLOTS}", *_external(pool)], kill)


@contextmanager
def flink_manager(folder: Path, more: Mapping[str, str]) -> Iterator[tuple[str, Program]]:
    """Flink's job manager alone, with more settings; its web address HOST:PORT."""
    need_cluster("flink")
    web = free_port()
    folder.mkdir(parents=True)
    settings = {
        **{f"jobmanager.{name}": "127.0.0.1" for name in ("rpc.address", "bind-host")},
        **{f"taskmanager.{name}": "127.0.0.1" for name in ("host", "bind-host")},
        **{f"rest.{name}": "127.0.0.1" for name in ("address", "bind-address")},
        "jobmanager.rpc.port": str(free_port()),
        "jobmanager.memory.process.size": "1200m",
        "taskmanager.memory.process.size": "2000m",
        "taskmanager.numberOfTaskSlots": str(SLOTS),
        "rest.port": str(web),
        "io.tmp.dirs": str(folder / "temp"),
        "heartbeat.interval": "2000",
        "heartbeat.timeout": "20000",  # a task manager that is killed is missed sooner than after 50 s
        **more,
    }
    (folder / "config.yaml").write_text(
        "".join(f"{name}: {value}\n" for name, value in settings.items()), encoding="utf-8"
    )
    command = [
        *_flink(folder, "-Xmx800m"),
        "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
        "-c",
        str(folder),
    ]
    with running(command, folder / "jobs.log", _java_environment(folder)) as manager:
        wait_for("Flink's job manager", lambda: _answer(f"http://127.0.0.1:{web}/overview") is not None, [manager])
        yield f"127.0.0.1:{web}", manager


@contextmanager
def worker_pool(folder: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """A pool of Python workers; its port."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "altalign.pipelines.engine.worker_pool", "--port", "0"]
    with running(command, folder / "pool.log", environ({"TMPDIR": str(folder), **environment})) as program:
        wait_for("the worker pool", lambda: "listening" in program.log.read_text(encoding="utf-8"), [program])
        line = next(
            line for line in program.log.read_text(encoding="utf-8").splitlines() if line.startswith("listening")
        )
        yield int(line.split()[2].rsplit(":", 1)[1])


def _external(pool: int) -> list[str]:
    return ["--environment_type=EXTERNAL", f"--environment_config=127.0.0.1:{pool}"]


def _flink(folder: Path, *memory: str) -> list[str]:
    return ["java", *memory, *_OPENED, "-cp", str(jars.home("flink") / "lib" / "*")]


def _java_environment(folder: Path) -> dict[str, str]:
    """Temporary files of Java below this folder: also those of the processes that it starts."""
    (folder / "temp").mkdir(exist_ok=True)
    return {"JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={folder / 'temp'} -XX:-UsePerfData"}


# Programs -------------------------------------------------------------------------------------------------------------


@contextmanager
def running(command: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[Program]:
    """A program for as long as the block; what it has started itself ends with it."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            ending_with_us(command),
            cwd=log.parent,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield Program(process, log)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_WITHIN_S)
        with suppress(ProcessLookupError):  # the rest of its session, which is ours
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(
    what: str, is_there: Callable[[], Any], programs: list[Program], *, within_s: float = STARTS_WITHIN_S
) -> None:
    """Ask until it is there; a program that ends meanwhile, or a time that is over, is an error with the last words of
    all.
    """
    end = time.monotonic() + within_s
    while not is_there():
        ended = [program for program in programs if program.process.poll() is not None]
        if ended or time.monotonic() > end:
            said = "\n".join(
                f"{program.log}:\n" + program.log.read_text(encoding="utf-8", errors="replace")[-2_000:]
                for program in ended or programs
            )
            raise RuntimeError(f"{what}: {'ended' if ended else f'not there after {within_s:.0f} s'}\n{said}")
        time.sleep(0.1)


def _answer(address: str) -> dict[str, Any] | None:
    """What a web interface answers; None as long as it does not."""
    with suppress(OSError, ValueError), urllib.request.urlopen(address, timeout=5) as answer:
        return json.load(answer)
    return None


# Processes ------------------------------------------------------------------------------------------------------------


def _parents() -> dict[int, int]:
    """The parent of every process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found


def of_environment(word: str) -> dict[int, str]:
    """The processes that have this in their environment, but those that have ended and wait for their parent; with
    their commands.
    """
    found = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if word.encode() in path.read_bytes() and (command := (path.parent / "cmdline").read_text()):
                found[int(path.parent.name)] = command.replace("\0", " ")
    return found


def _port_of(arguments: list[str]) -> int:
    """The port of the engine's process that a Python worker was started for."""
    return next(
        int(word.rsplit(":", 1)[1]) for word in arguments if word.rpartition(":")[2].isdecimal() and ":" in word
    )


def _listens(pid: int, port: int) -> bool:
    """Whether a process listens at a port."""
    sockets = set()
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == "0A":
                sockets.add(f"socket:[{fields[9]}]")
    with suppress(OSError):
        return any(str(file.readlink()) in sockets for file in Path(f"/proc/{pid}/fd").iterdir())
    return False


def is_open(port: int) -> bool:
    """Whether anybody listens at a port of loopback."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
