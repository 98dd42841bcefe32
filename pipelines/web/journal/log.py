"""The log of fetching in `log/fetch/`, for people and other programs. No result depends on it.

- `NAME.jsonl`: one line of JSON for each try of a unit, in the order in which images ended. It only grows, so that the
  history stays.
- `NAME_stats.json`: how far the unit is, in the form of img2dataset's `write_stats`, followed by keys of our own;
  rewritten while the unit is under way.
- `progress.json`: the progress of the whole run, `altalign.pipelines.web.journal.fetch_progress`.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypedDict, cast

import orjson

from altalign import storage
from altalign.data.reasons import DropReason
from altalign.data.schema import Try
from altalign.errors import UnreadableError
from altalign.filters import image, one_url
from altalign.pipelines.images.measuring import Outcome
from altalign.pipelines.run.units import Run
from altalign.pipelines.web.journal import outcomes
from altalign.pipelines.web.journal.gathered import Gathered
from altalign.pipelines.web.journal.outcomes import Response

SECONDS_BETWEEN_STATS = 1.0
HOSTS_AT_MOST = 20  # hosts in the statistics of a unit: those with the most failures


class Statistics(TypedDict, total=False):
    """How far a unit is: the counts of img2dataset, then our own. All of them are there but in logs of others."""

    count: int
    successes: int
    failed_to_download: int
    failed_to_resize: int
    status_dict: dict[str, int]
    images: int
    bytes: int
    hosts: dict[str, int]
    duration: float
    start_time: float
    end_time: float
    responses: int


class UnitLog:
    """The log of a unit under way."""

    def __init__(self, path: str, image_ids: Sequence[str], urls: Sequence[str | None], lines: storage.Growing):
        self._path, self._image_ids, self._urls, self._lines = path, image_ids, urls, Gathered(lines)
        self._before = _stats(path)
        self._begin_s, self._begin = time.time(), time.monotonic()
        self._written = self._begin - SECONDS_BETWEEN_STATS
        self._responses = self._before.get("responses", 0)

    def tries(self, number: int, response: Response) -> None:
        """Logs the tries of an image, or why it was not asked for; the lines are written with the next statistics."""
        self._responses += 1
        url, code, reason, detail = self._urls[number] or "", response.http_code, response.reason, response.detail
        for each in response.tries or [outcomes.Try(url, None, time.time(), 0.0, code, reason, detail, 0)]:
            line: Try = {
                "image_id": self._image_ids[number],
                "url": each.url,
                "address": each.address,
                "started": round(each.started_s, 3),
                "seconds": round(each.seconds, 3),
                "status": each.status,
                "reason": each.reason,
                "detail": each.detail,
                "bytes": each.bytes,
            }
            self._lines.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def stats(self, outcomes: Mapping[int, Outcome], *, is_last: bool = False) -> None:
        """Writes how far the unit is, at most once a second."""
        if is_last or time.monotonic() >= self._written + SECONDS_BETWEEN_STATS:
            self._written = time.monotonic()
            self.flush()
            times = {
                "duration": round(self._before.get("duration", 0.0) + self._written - self._begin, 3),
                "start_time": self._before.get("start_time", self._begin_s),
                "end_time": time.time(),
                "responses": self._responses,
            }
            storage.write_json(f"{self._path}_stats.json", {**statistics(outcomes, self._urls), **times})

    def flush(self) -> None:
        """Writes the lines that are not written yet."""
        self._lines.flush()


@contextmanager
def opened(run: Run, name: str, image_ids: Sequence[str], urls: Sequence[str | None]) -> Iterator[UnitLog]:
    """Opens the log of a unit; if a kill has cut its last line, ends that line first."""
    path = run.path("log", "fetch", name)
    with storage.growing(f"{path}.jsonl") as lines:
        if lines.bytes and storage.read_range(f"{path}.jsonl", lines.bytes - 1, 1) != b"\n":
            lines.write(b"\n")
        log = UnitLog(path, image_ids, urls, lines)
        try:
            yield log
        finally:
            log.flush()


def restate(run: Run, name: str, outcomes: Mapping[int, Outcome], urls: Sequence[str | None]) -> None:
    """Rewrites the statistics of a unit that is not under way, from its journal."""
    path = run.path("log", "fetch", name)
    storage.write_json(f"{path}_stats.json", {**_stats(path), **statistics(outcomes, urls)})


def _stats(path: str) -> Statistics:
    """The last statistics; empty if they are missing or not JSON, for a log is no reason to stop."""
    try:
        return cast(Statistics, storage.read_json(f"{path}_stats.json"))
    except UnreadableError:
        return {}


def statistics(outcomes: Mapping[int, Outcome], urls: Sequence[str | None]) -> Statistics:
    """The counts of img2dataset (without times), then images of the unit, bytes in hand, and the worst hosts."""
    statuses = Counter(map(status_of, outcomes.values()))
    hosts = Counter(host_of(urls[number]) for number, outcome in outcomes.items() if outcome.reason is not None)
    failed = sum(hosts.values())
    return {
        "count": len(outcomes),
        "successes": statuses["success"],
        "failed_to_download": failed,
        "failed_to_resize": len(outcomes) - failed - statuses["success"],
        "status_dict": dict(statuses.most_common()),
        "images": len(urls),
        "bytes": sum(outcome.bytes for outcome in outcomes.values()),
        "hosts": dict(sorted(hosts.items(), key=lambda host: (-host[1], host[0]))[:HOSTS_AT_MOST]),
    }


def status_of(outcome: Outcome) -> str:
    """`success`, the reason why fetching failed (with the status code), or why the bytes are not a whole image."""
    if outcome.reason is DropReason.HTTP_STATUS:
        return f"{outcome.reason} {outcome.http_code}"
    if outcome.reason is not None:
        return outcome.reason.value
    if outcome.measured.format is None:
        return image.image_undecodable.name
    return image.image_damaged.name if outcome.measured.damage is not None else "success"


def host_of(url: str | None) -> str:
    """The host of an absolute URL."""
    return one_url.host_of(url or "")
