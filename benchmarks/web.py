"""Images over HTTP beside the img2dataset CLI: images a second from one server on this machine.

Memory is measured too, and how long a run goes on after its last byte.

    python -m benchmarks.web [--rounds 3]

Both ask `benchmarks.web_server` for the same images, with 64 connections a process: first at 80 hosts that answer, then
at these and 20 that never do. altalign (the stage `fetch` of `altalign curate`) has all its checks on, robots.txt of
every host among them, and tries again as it does by default; img2dataset reads no robots.txt and tries once, its own
default. Both give up a try after 3 seconds. Seconds are by the stage's and the shards' own clocks, start-up left out.
"""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import ALTALIGN, PEERS, ROOT, Program, Round, command, interleave, ratio, scratch
from benchmarks.images import generated
from benchmarks.processes import Figures, ProgramError, measure
from benchmarks.report import target, write

ROUNDS, IMAGES, IMAGES_HANGING, LARGE = 3, 1_500, 3_000, 96
HOSTS, HANGING, TIMEOUT_S, LARGE_TIMEOUT_S = 100, 20, 3, 10
PROCESSES, THREADS = 2, 64  # of img2dataset; altalign is one process
TIMES_AT_LEAST_HANGING, BYTES_AT_MOST = 2.0, 1.2e9
SLOW, FAST = "img2dataset", "img2dataset, skip_reencode"  # the first encodes every image anew, its default
HANG, LARGE_IMAGES = ", 20 % of hosts hang", ", images of 20 MB"
CONFIG = """
[run]
folder = "run"

[[input]]
name = "web"
kind = "table"
paths = ["{rows}"]

[fetch]
source = "web"
ports = [{port}]
allow_addresses = ["127.0.1.0/24"]
timeout_s = {timeout_s:.1f}
threads = {threads}
"""
PACKAGES = ("aiohttp", "apache-beam", "pillow", "simplejpeg", "img2dataset", "opencv-python-headless")


def compete(rounds: int, folder: Path) -> int | None:
    """All rounds of both programs; the peer's slow way once, and the large images once.

    The slow way starts for longer than it works.
    """
    if sys.platform != "linux":
        sys.stderr.write("benchmarks.web: its 100 hosts are addresses of 127.0.0.0/8, which only Linux has; left out\n")
        return 1
    tar = generated("web", 300, folder) / "web-000.tar"
    with scratch(folder) as place, serving(tar) as server:
        answering, rows = server.hosts[: HOSTS - HANGING], {}
        for suffix, hosts, count in (("", answering, IMAGES), (HANG, server.hosts, IMAGES_HANGING)):
            rows[suffix] = write_rows(place / f"rows{len(hosts)}.parquet", server.port, hosts, count, "/{}.jpg")
        pairs = [
            [ours(server, table, place, suffix), peer(server, table, place, FAST, suffix)]
            for suffix, table in rows.items()
        ]
        done = [
            before | now
            for before, now in zip(*(interleave(pair, rounds, warm_up=False) for pair in pairs), strict=True)
        ]
        large = write_rows(place / "large.parquet", server.port, answering, LARGE, "/large/{}.bmp")
        once = [
            peer(server, rows[""], place, SLOW, ""),
            ours(server, large, place, LARGE_IMAGES, timeout_s=LARGE_TIMEOUT_S),
        ]
        done[0] |= interleave(once, 1, warm_up=False)[0]
    facts: dict[str, Any] = {"images": IMAGES, "images_hanging": IMAGES_HANGING, "hosts": HOSTS}
    facts |= {"timeout_s": TIMEOUT_S, "threads": THREADS}
    print(write("web", done, targets(done), packages=PACKAGES, is_full=rounds >= ROUNDS, **facts))
    return None


def targets(done: Sequence[Round]) -> list[Figures]:
    """The targets."""
    found = []
    for way, suffix, least, rounds in (
        (FAST, "", 1.0, done),
        (SLOW, "", 1.0, done[:1]),
        (FAST, HANG, TIMES_AT_LEAST_HANGING, done),
    ):
        times = ratio(rounds, "images_per_s", f"altalign{suffix}", f"{way}{suffix}")["median"]
        found.append(target(f"images/s, times those of {way}{suffix}", times, at_least=least))
    for suffix in ("", HANG):
        found.append(
            target(
                f"seconds from the last image to the end{suffix}",
                max(r[f"altalign{suffix}"]["tail_s"] for r in done),
                at_most=TIMEOUT_S,
            )
        )
    large = done[0][f"altalign{LARGE_IMAGES}"]
    if large["peak_bytes"]:
        found.append(
            target(
                f"peak memory in GB, {THREADS} connections{LARGE_IMAGES}",
                large["peak_bytes"] / 1e9,
                at_most=BYTES_AT_MOST / 1e9,
            )
        )
    return found


# The server ----------------------------------------------------------------------------------------------------------


class Server:
    """The server of images, in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]"):
        self._process = process
        facts = self._line()
        self.port: int = facts["port"]
        self.hosts: list[str] = facts["hosts"]

    def report(self) -> Figures:
        """The server's counts since its last report."""
        assert self._process.stdin is not None
        self._process.stdin.write("report\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> Figures:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ProgramError("benchmarks.web_server ended")
        return json.loads(line)


@contextlib.contextmanager
def serving(tar: Path) -> Iterator[Server]:
    """A server of the images of a tar, for as long as the context is open."""
    argv = [str(PEERS), "-m", "benchmarks.web_server", str(tar), "--hosts", str(HOSTS), "--hanging", str(HANGING)]
    process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Server(process)
    finally:
        process.communicate()  # its standard input ends, and so does it


def write_rows(path: Path, port: int, hosts: Sequence[str], count: int, form: str) -> Path:
    """A table of URLs, each once, hosts in turn, with captions that all rules keep."""
    urls = [f"http://{hosts[number % len(hosts)]}:{port}{form.format(number)}" for number in range(count)]
    pq.write_table(
        pa.table({"url": urls, "caption": [f"the picture of number {number}" for number in range(count)]}), path
    )
    return path


# The programs --------------------------------------------------------------------------------------------------------


def ours(server: Server, rows: Path, place: Path, suffix: str, *, timeout_s: int = TIMEOUT_S) -> Program:
    """`altalign curate`, stage `fetch`; what is before it is done once, and copied."""
    config, judged, run = place / f"{rows.stem}.toml", place / f"{rows.stem}-judged", place / "run"
    config.write_text(
        CONFIG.format(rows=rows, port=server.port, timeout_s=timeout_s, threads=THREADS), encoding="utf-8"
    )
    command = [*ALTALIGN, "curate", str(config), "--set", f"run.folder={run}"]

    def prepare() -> None:
        shutil.rmtree(run, ignore_errors=True)
        if not judged.is_dir():
            measure([*command, "--until", "judge"], place)
            run.rename(judged)
        shutil.copytree(judged, run)
        server.report()

    def says(_: str) -> Figures:
        tail_s = time.time() - max(path.stat().st_mtime for path in run.glob("work/fetch/units/*.images"))
        served, seconds = (
            server.report(),
            json.loads((run / "run.json").read_text(encoding="utf-8"))["stages"]["fetch"]["seconds"],
        )
        return figures(served, served["images"], seconds) | {"tail_s": tail_s}

    return Program(f"altalign{suffix}", [*command, "--until", "fetch"], place, prepare, says)


def peer(server: Server, rows: Path, place: Path, way: str, suffix: str) -> Program:
    """The img2dataset CLI, with ALIGN's limits of size and shape; two shards, one a process."""
    output = place / "img2dataset"
    options: dict[str, Any] = {
        "url_list": rows, "input_format": "parquet", "url_col": "url", "caption_col": "caption",
        "output_folder": output, "output_format": "webdataset",
        "processes_count": PROCESSES, "thread_count": THREADS,
        "number_sample_per_shard": pq.read_metadata(rows).num_rows // PROCESSES, "timeout": TIMEOUT_S,
        "resize_mode": "no", "skip_reencode": way == FAST, "extract_exif": False, "min_image_size": 201,
        "max_aspect_ratio": 3.0, "max_image_area": 178_956_970,
    }  # fmt: skip

    def prepare() -> None:
        shutil.rmtree(output, ignore_errors=True)
        server.report()

    def says(_: str) -> Figures:
        shards = [json.loads(path.read_text(encoding="utf-8")) for path in output.glob("*_stats.json")]
        seconds = max(shard["end_time"] for shard in shards) - min(shard["start_time"] for shard in shards)
        return figures(server.report(), sum(shard["successes"] for shard in shards), seconds)

    argv = [str(PEERS.with_name("img2dataset")), *(f"--{name}={value}" for name, value in options.items())]
    return Program(f"{way}{suffix}", argv, place, prepare, says)


def figures(served: Figures, images: int, seconds: float) -> Figures:
    """The figures of a run."""
    return {
        "fetched": images,
        "work_s": seconds,
        "images_per_s": images / seconds,
        **{f"server_{name}": value for name, value in served.items()},
    }


if __name__ == "__main__":
    sys.exit(command(__doc__, compete, rounds=ROUNDS))
