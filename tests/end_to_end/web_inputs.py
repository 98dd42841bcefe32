"""Tables of URLs that the web server of tests answers, and settings with which it may be asked."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from altalign.data.key import image_id
from altalign.pipelines.web import journal
from tests.web_server.running import WebServer

CONFIG = """
[run]
folder = "run"

[[input]]
name = "pairs"
kind = "table"
paths = ["input/*.parquet"]

[fetch]
source = "web"
timeout_s = 60
retries = 0
bytes_at_most = 200_000
ports = [{port}, {refused_port}]
allow_addresses = ["127.0.0.0/8"]
requests_per_host_s = 100_000

[shards]
samples_per_shard = 20
"""


class Asked(NamedTuple):
    """A URL, and what has to come of it: the stage and reason of its drop, or none, and the status."""

    url: str
    reason: str | None = None
    http_code: int | None = None


OF_SITES = ("/robots.txt", "/.well-known/tdmrep.json")  # asked for once an origin

# Whatever a server may answer: what comes of it at once, in all of these to the same. A header that opts out is kept
# with its time, by which runs would differ.
ANSWERS: Sequence[tuple[str, str | None, int | None]] = (
    ("/redirect/3", None, None),
    ("/chunked/a", None, None),
    ("/status/404", "http_status", 404),
    ("/status/503", "http_status", 503),
    ("/loop", "http_status", 302),
    ("/raw/cut", "http_broken", 200),
    ("/reset", "http_broken", None),
    ("/large?bytes=300000", "http_too_large", 200),
    ("/png/a?mining=DMI-PROHIBITED", "opt_out_iptc", 200),
    ("/html", "image_undecodable", None),
)


def pictures(server: WebServer, count: int, *, hosts: int = 4) -> list[Asked]:
    """Pictures, no two alike, of several hosts."""
    return [Asked(server.url(f"/png/{number}", f"127.0.0.{1 + number % hosts}")) for number in range(count)]


def answers(server: WebServer) -> list[Asked]:
    """One URL of each kind of answer."""
    found = [
        Asked(server.url(f"{target}{'&' if '?' in target else '?'}n=1"), reason, code)
        for target, reason, code in ANSWERS
    ]
    found.append(Asked(f"http://127.0.0.1:{server.refused_port}/x", "http_unreachable"))
    return [
        *found,
        Asked("http://127.0.0.1:1/x", "http_refused"),
        Asked(f"http://10.1.2.3:{server.port}/x", "http_refused"),
    ]


def write_web_input(folder: Path, server: WebServer, asked: Sequence[Asked], *, more: str = "") -> None:
    """A config and a table of two captions for every third URL and one for the others, in `folder`."""
    rows = [(each.url, f"a picture of the number {number}") for number, each in enumerate(asked)]
    rows += [(each.url, f"once more the number {number}") for number, each in enumerate(asked) if number % 3 == 0]
    (folder / "input").mkdir(parents=True, exist_ok=True)
    (folder / "text").mkdir(exist_ok=True)
    pq.write_table(
        pa.table({"url": [url for url, _ in rows], "caption": [caption for _, caption in rows]}),
        folder / "input" / "pairs.parquet",
    )
    (folder / "config.toml").write_text(
        CONFIG.format(port=server.port, refused_port=server.refused_port) + more, encoding="utf-8"
    )


def asked_for(server: WebServer, *, since: int = 0) -> list[str]:
    """URLs of the images that were asked for, but for the first so many requests."""
    requests = server.requests()[since:]
    return [
        f"http://{event.facts['headers']['host']}{event.target}" for event in requests if event.target not in OF_SITES
    ]


def requests(of_server: Path) -> Counter[str]:
    """How often each URL was asked for so far.

    One over a kept connection that ends without a byte of an answer is left out: the client cannot know that it was
    read, and asks over a new one.
    """
    events = [json.loads(line) for line in of_server.read_text(encoding="utf-8").splitlines()]
    unanswered = {event["number"] for event in events if event["event"] == "end" and not event["bytes"]}
    found, used = Counter[str](), set[int]()
    for event in events:
        if event["event"] == "request":
            is_lost = event["connection"] in used and event["number"] in unanswered
            found[f"http://{event['headers']['host']}{event['target']}"] += not is_lost
            used.add(event["connection"])
    return found


def in_journals(run: Path) -> set[str]:
    """image_id of every image that some journal of the run has."""
    found = set()
    for path in sorted((run / "work" / "fetch" / "units").glob("*.journal")):
        ids = ids_of_unit(run, path.stem)
        found |= {ids[number] for number in journal.read(str(path.with_suffix(""))).outcomes}
    return found


def ids_of_unit(run: Path, name: str) -> list[str]:
    """image_id of each image of a fetch unit, in order."""
    partition, _, group = name.partition("-")
    rows = pq.ParquetFile(run / "work" / "judge" / "grouped" / f"{partition}.parquet").read_row_group(
        int(group), columns=["image_id"]
    )
    return list(dict.fromkeys(each.hex() for each in rows["image_id"].to_pylist()))


def tries(run: Path) -> list[dict]:
    """All whole lines of the log of fetching."""
    paths = sorted((run / "log" / "fetch").glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def dropped(run: Path) -> dict[str, tuple[str, int | None]]:
    """Reason and status of each dropped image of `fetch` and `image`, by URL."""
    paths = [path for stage in ("fetch", "image") for path in sorted((run / "dropped" / stage).glob("*.parquet"))]
    return {
        row["image_url"]: (row["reason"], row["http_code"]) for path in paths for row in pq.read_table(path).to_pylist()
    }


def kept(run: Path) -> set[str]:
    """URLs of the images in the shards."""
    return {
        row["image_url"]
        for path in sorted((run / "shards").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    }


def ids(urls: Sequence[str]) -> set[str]:
    """image_id of each URL."""
    return set(map(image_id, urls))


def sockets() -> int:
    """Sockets that this process has open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names alone
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")  # noqa: PTH115
        except FileNotFoundError:  # the folder itself
            continue
    return found
