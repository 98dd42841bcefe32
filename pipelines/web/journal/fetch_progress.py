"""Shows the progress of fetching as a bar or lines, and writes `progress.json`, from the statistics in `log/fetch/`."""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from rich.console import Console, Group

from altalign import storage
from altalign.errors import AltalignError
from altalign.pipelines.run import progress
from altalign.pipelines.run.image_tables import FetchUnit
from altalign.pipelines.run.units import Run, Unit
from altalign.pipelines.web.journal.log import Statistics
from altalign.pipelines.web.policy import proxies
from altalign.terminal import bar_columns, shown

HOSTS_AT_MOST = 20
HOSTS_COUNTED = 100_000  # above this number, hosts with the fewest failures are forgotten
SECONDS_BETWEEN_LOOKS = 1.0


@dataclass
class Totals:
    """Totals over all units of a run: images that ended, that failed, and that do not decode.

    `hosts` sums each unit's worst hosts. `responses` also counts images that were asked for again or forgotten.
    """

    responses: int = 0
    ended: int = 0
    failed: int = 0
    no_images: int = 0
    bytes: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    hosts: Counter[str] = field(default_factory=Counter)

    def add(self, stats: Statistics, times: int = 1) -> None:
        """Adds the statistics of a unit, or removes them if `times` is -1."""
        self.responses += times * stats.get("responses", 0)
        self.ended += times * stats.get("count", 0)
        self.failed += times * stats.get("failed_to_download", 0)
        self.no_images += times * stats.get("failed_to_resize", 0)
        self.bytes += times * stats.get("bytes", 0)
        for counter, numbers in ((self.statuses, stats.get("status_dict", {})), (self.hosts, stats.get("hosts", {}))):
            for key, number in numbers.items():
                counter[key] += times * number
        if len(self.hosts) > 2 * HOSTS_COUNTED:
            self.hosts = Counter(dict(self.hosts.most_common(HOSTS_COUNTED)))

    def worst_hosts(self) -> dict[str, int]:
        """The hosts with the most failures."""
        return {host: number for host, number in self.hosts.most_common(HOSTS_AT_MOST) if number > 0}

    def reasons(self) -> dict[str, int]:
        """Why images could not be fetched, the most frequent reason first."""
        found = self.statuses.most_common()
        return {status: number for status, number in found if number > 0 and status.startswith("http_")}


class WebWatch(progress.Watch):
    """Counts images instead of units, for a unit waits long for its last images."""

    def __init__(self, run: Run, step: str, units: Sequence[Unit], console: Console):
        super().__init__(run, step, units, console)
        self._images = sum(cast(FetchUnit, unit)["images"] for unit in units)
        self._under_way, self._totals = {unit["name"] for unit in units}, Totals()
        self._statistics: dict[str, tuple[storage.Stamp | None, Statistics]] = {}
        self._read_statistics()
        self._before_this = self._totals.responses
        if line := proxies.unused():
            console.print(line, style="yellow", soft_wrap=True)

    def look(self) -> None:
        """Looks at the statistics until told to stop."""
        if self._console.is_terminal:
            self._bar()
            return
        line_at, is_over = self._begin + progress.LINE_EVERY_S, False
        while not is_over:
            is_over = self.stop.wait(min(SECONDS_BETWEEN_LOOKS, progress.LINE_EVERY_S))
            self._update()
            if is_over or time.monotonic() >= line_at:
                self._console.print(self._summary(), soft_wrap=True)
                line_at += progress.LINE_EVERY_S

    def _read_statistics(self) -> None:
        """Adds up the statistics of the units, which are rewritten as they go: those of the files that changed."""
        folder, names = self._run.path("log", "fetch"), list[str]()
        with suppress(OSError, AltalignError):
            names = storage.names(folder, "_stats.json")
        for unit in self._under_way.intersection(name.removesuffix("_stats.json") for name in names):
            with suppress(OSError, AltalignError):  # another process changes it: a log is no reason to stop
                path = storage.join(folder, f"{unit}_stats.json")
                seen, before = self._statistics.get(unit, (None, Statistics()))
                if (changed := storage.stamp(path)) == seen:
                    continue
                stats = cast(Statistics, storage.read_json(path))
                self._totals.add(before, -1)
                self._totals.add(stats)
                self._statistics[unit] = changed, stats
                if stats.get("count") == stats.get("images"):
                    self._under_way.remove(unit)
                    del self._statistics[unit]

    def _update(self) -> None:
        """Reads the statistics and writes `progress.json`."""
        self._read_statistics()
        totals = self._totals
        content = {
            "updated": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "units": len(self._rows),
            "units_finished": len(self._finished()),
            "images": self._images,
            "ended": totals.ended,
            "fetched": totals.ended - totals.failed,
            "no_images": totals.no_images,
            "bytes": totals.bytes,
            "seconds": round(time.monotonic() - self._begin, 1),
            "images_per_s": round(self._images_per_s(), 1),
            "seconds_left": self._seconds_left(),
            "reasons": totals.reasons(),
            "hosts": totals.worst_hosts(),
        }
        with suppress(OSError, AltalignError):  # a full disk is reported by what writes the data
            storage.write_json(self._run.path("log", "fetch", "progress.json"), content)

    def _images_per_s(self) -> float:
        """The speed of this attempt."""
        return (self._totals.responses - self._before_this) / max(1e-3, time.monotonic() - self._begin)

    def _seconds_left(self) -> int | None:
        speed = self._images_per_s()
        return round((self._images - self._totals.ended) / speed) if speed else None

    def _summary(self) -> str:
        units = f"{self._name}: {len(self._finished())} of {len(self._rows)} units"
        left = self._seconds_left()
        end = "time left unknown" if left is None else f"about {left} s left"
        if self.stop.is_set():
            end = f"{time.monotonic() - self._begin:.1f} s"
        images = f"{self._totals.ended:,} of {self._images:,} images, {self._images_per_s():,.0f} images/s"
        return ", ".join([units, images, self._outcomes(), end])

    def _outcomes(self) -> str:
        """The share of success, bytes, the most frequent reasons, and the hosts with the most failures."""
        totals = self._totals
        share = (totals.ended - totals.failed) / max(1, totals.ended)
        parts = [f"{share:.1%} fetched", f"{totals.bytes / 1e6:,.1f} MB"]
        parts += [f"{status} {number:,}" for status, number in list(totals.reasons().items())[:4]]
        worst = ", ".join(f"{shown(host)} {number:,}" for host, number in list(totals.worst_hosts().items())[:3])
        return ", ".join([*parts, *([f"most failures: {worst}"] if worst else [])])

    def _bar(self) -> None:
        from rich.live import Live
        from rich.progress import Progress
        from rich.text import Text

        bar, below = Progress(*bar_columns("images {task.fields[speed]}"), console=self._console), Text()
        task = bar.add_task(self._name, total=self._images, speed="")
        with Live(Group(bar, below), console=self._console):
            is_over = False
            while not is_over:
                is_over = self.stop.wait(SECONDS_BETWEEN_LOOKS)
                self._update()
                bar.update(task, completed=self._totals.ended, speed=f"{self._images_per_s():,.0f} images/s")
                below.plain = self._outcomes()
