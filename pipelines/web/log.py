"""The log of fetching in `log/fetch/`, for people and other programs, and its progress. No result depends on it.

- `NAME.jsonl`: one line of JSON for each try of a unit, in the order in which images ended. It only grows, so that the
  history stays.
- `NAME_stats.json`: how far the unit is, in the form of img2dataset's `write_stats`, followed by keys of our own;
  rewritten while the unit is under way.
- `progress.json`: the progress of the whole run, from the statistics of its units; a bar or lines show it too.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, cast

import orjson
from rich.console import Console, Group

from altalign import storage
from altalign.data import schema
from altalign.data.reasons import DropReason
from altalign.errors import AltalignError, UnreadableError
from altalign.filters import image, one_url
from altalign.pipelines.images.judging import Outcome
from altalign.pipelines.run import progress
from altalign.pipelines.run.image_tables import FetchUnit
from altalign.pipelines.run.units import Run, Unit
from altalign.pipelines.web import addresses
from altalign.pipelines.web.calls import Response, Try
from altalign.terminal import bar_columns, shown

SECONDS_BETWEEN_STATS = SECONDS_BETWEEN_LOOKS = 1.0  # of statistics, and at them
HOSTS_AT_MOST = 20  # in statistics and progress: those with the most failures
HOSTS_COUNTED = 100_000  # above this number, hosts with the fewest failures are forgotten


class UnitLog:
    """The log of a unit under way."""

    def __init__(self, path: str, image_ids: Sequence[str], urls: Sequence[str | None], lines: storage.Growing):
        self._path, self._image_ids, self._urls, self._lines = path, image_ids, urls, lines
        self._waiting = list[bytes]()  # lines that are not written yet
        self._before = _stats(path)
        self._begin_s, self._begin = time.time(), time.monotonic()
        self._written = self._begin - SECONDS_BETWEEN_STATS
        self._responses = self._before.get("responses", 0)

    def tries(self, number: int, response: Response) -> None:
        """Logs the tries of an image, or why it was not asked for; the lines are written with the next statistics."""
        self._responses += 1
        url, code, reason, detail = self._urls[number] or "", response.http_code, response.reason, response.detail
        for each in response.tries or [Try(url, None, time.time(), 0.0, code, reason, detail, 0)]:
            line: schema.Try = {
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
            self._waiting.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

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
        lines, self._waiting = self._waiting, []
        if lines:
            self._lines.write(b"".join(lines))


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


def _stats(path: str) -> dict[str, Any]:
    """The last statistics; empty if they are missing or not JSON, for a log is no reason to stop."""
    try:
        return storage.read_json(f"{path}_stats.json")
    except UnreadableError:
        return {}


def statistics(outcomes: Mapping[int, Outcome], urls: Sequence[str | None]) -> dict[str, Any]:
    """The counts of img2dataset (without times), then images of the unit, bytes in hand, and the worst hosts."""
    statuses = Counter(map(status_of, outcomes.values()))
    failures = [number for number, outcome in outcomes.items() if outcome.reason is not None]
    hosts, failed = Counter(one_url.host_of(urls[number] or "") for number in failures), len(failures)
    return {
        "count": len(outcomes),
        "successes": statuses["success"],
        "failed_to_download": failed,
        "failed_to_resize": len(outcomes) - failed - statuses["success"],
        "status_dict": dict(statuses.most_common()),
        "images": len(urls),
        "bytes": sum(outcome.found_bytes for outcome in outcomes.values()),
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


# Progress -------------------------------------------------------------------------------------------------------------


class WebWatch(progress.Watch):
    """Counts images instead of units, for a unit waits long for its last images."""

    def __init__(self, run: Run, step: str, units: Sequence[Unit], console: Console):
        super().__init__(run, step, units, console)
        self._images = sum(cast(FetchUnit, unit)["images"] for unit in units)
        self._under_way = {unit["name"] for unit in units}
        self._of_finished = Counter[str](), Counter[str]()
        self._before_this = self._totals()[0]["responses"]  # also of images that were asked for again or forgotten
        if line := addresses.unused_proxies():
            console.print(line, style="yellow", soft_wrap=True)

    def look(self) -> None:
        """Looks at the statistics until told to stop; shows them as a bar on a terminal, else as lines."""
        from rich.live import Live
        from rich.progress import Progress
        from rich.text import Text

        is_bar, line_at, is_over = self._console.is_terminal, self._begin + progress.LINE_EVERY_S, False
        bar, below = Progress(*bar_columns("images {task.fields[speed]}"), console=self._console), Text()
        task = bar.add_task(self._name, total=self._images, speed="")
        with Live(Group(bar, below), console=self._console) if is_bar else nullcontext():
            while not is_over:
                is_over = self.stop.wait(min(SECONDS_BETWEEN_LOOKS, progress.LINE_EVERY_S))
                content, outcomes = self._update()
                ended, left = content["ended"], content["seconds_left"]
                speed = f"{content['images_per_s']:,.0f} images/s"
                if is_bar:
                    bar.update(task, completed=ended, speed=speed)
                    below.plain = outcomes
                elif is_over or time.monotonic() >= line_at:
                    end = "time left unknown" if left is None else f"about {left} s left"
                    if is_over:
                        end = f"{time.monotonic() - self._begin:.1f} s"
                    units = f"{self._name}: {content['units_finished']} of {len(self._rows)} units"
                    line = f"{units}, {ended:,} of {self._images:,} images, {speed}, {outcomes}, {end}"
                    self._console.print(line, soft_wrap=True)
                    line_at += progress.LINE_EVERY_S

    def _totals(self) -> tuple[Counter[str], Counter[str]]:
        """Adds up numbers and images by status, and failures of hosts, of all units; a finished one is read once."""
        folder, names, of_others = self._run.path("log", "fetch"), list[str](), (Counter[str](), Counter[str]())
        with suppress(OSError, AltalignError):
            names = storage.names(folder, "_stats.json")
        for unit in self._under_way.intersection(name.removesuffix("_stats.json") for name in names):
            with suppress(OSError, AltalignError):  # another process changes it: a log is no reason to stop
                stats = storage.read_json(storage.join(folder, f"{unit}_stats.json"))
                is_over = stats.get("count") == stats.get("images")
                counts = {name: value for name, value in stats.items() if isinstance(value, int)}
                totals, hosts = self._of_finished if is_over else of_others
                totals.update(counts | stats.get("status_dict", {}))
                hosts.update(stats.get("hosts", {}))
                self._under_way -= {unit} if is_over else set()
        totals, hosts = self._of_finished
        if len(hosts) > 2 * HOSTS_COUNTED:
            self._of_finished = totals, Counter(dict(hosts.most_common(HOSTS_COUNTED)))
        return totals + of_others[0], hosts + of_others[1]

    def _update(self) -> tuple[dict[str, Any], str]:
        """Writes `progress.json`; returns what it says, and a line on what became of the images."""
        (totals, hosts), seconds = self._totals(), time.monotonic() - self._begin
        ended, fetched = totals["count"], totals["count"] - totals["failed_to_download"]
        speed = (totals["responses"] - self._before_this) / max(1e-3, seconds)
        # why images could not be fetched, the most frequent reason first
        reasons = {name: number for name, number in totals.most_common() if name.startswith(("http_", "opt_out_"))}
        content: dict[str, Any] = {
            "updated": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "units": len(self._rows),
            "units_finished": len(self._finished()),
            "images": self._images,
            "ended": ended,
            "fetched": fetched,
            "no_images": totals["failed_to_resize"],
            "bytes": totals["bytes"],
            "seconds": round(seconds, 1),
            "images_per_s": round(speed, 1),
            "seconds_left": round((self._images - ended) / speed) if speed else None,
            "reasons": reasons,
            "hosts": dict(hosts.most_common(HOSTS_AT_MOST)),
        }
        with suppress(OSError, AltalignError):  # a full disk is reported by what writes the data
            storage.write_json(self._run.path("log", "fetch", "progress.json"), content)
        outcomes = [f"{fetched / max(1, ended):.1%} fetched", f"{totals['bytes'] / 1e6:,.1f} MB"]
        outcomes += [f"{status} {number:,}" for status, number in list(reasons.items())[:4]]
        worst = ", ".join(f"{shown(host)} {number:,}" for host, number in hosts.most_common(3))
        return content, ", ".join(outcomes + ([f"most failures: {worst}"] if worst else []))
