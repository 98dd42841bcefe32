"""Images from the web: asks for the images that no earlier try has fetched, measures them and notes their outcomes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data.reasons import DropReason
from altalign.data.schema import RULES_VERSION
from altalign.filters import identity
from altalign.machine import interrupts, memory
from altalign.pipelines.images import measuring
from altalign.pipelines.images.measuring import Measured, Outcome
from altalign.pipelines.run import pool
from altalign.pipelines.run.image_tables import FETCHED, FetchUnit
from altalign.pipelines.run.units import Run, digest
from altalign.pipelines.stages import fetch_from_files
from altalign.pipelines.web import client
from altalign.pipelines.web.journal import journal, log, reuse
from altalign.settings.curate import FetchSettings
from altalign.storage import arrays

# A unit waits for its last images longer than it works; meanwhile others ask. Measured with two cores and 12,000 images
# of 72 kB, a fifth of them at hosts that hang: 368 images/s with two units at once, 563 with eight; 534 and 631 where
# all hosts answer.
UNITS_AT_ONCE_AT_LEAST, WITH_LITTLE_MEMORY = 8, 4
IN_FLIGHT_AT_LEAST = 64 * memory.MB


def threads(run: Run) -> dict[str, Any]:
    """Arguments for `MapUnits`: enough units at once to keep the client and all cores busy, and the process's client.

    The client stays open as long as there may be units.
    """
    at_least = UNITS_AT_ONCE_AT_LEAST if memory.is_ample() else WITH_LITTLE_MEMORY
    return {"at_once": max(at_least, 2 * run.config.engine.threads), "held": partial(opened, run.config.fetch)}


def opened(settings: FetchSettings) -> AbstractContextManager[client.Client]:
    """The client of this process; bodies in flight get at most half of the memory that images may take."""
    at_most = min(client.BYTES_IN_FLIGHT_AT_MOST, max(IN_FLIGHT_AT_LEAST, memory.spare().bytes // 2))
    return client.opened(settings, bytes_in_flight_at_most=at_most)


def fetch_images(run: Run, unit: FetchUnit, rows: pa.Table, blocked: Mapping[int, Outcome]) -> list[Outcome]:
    """Fetch and measure the images of a unit, each a row of `PLACED_SURVIVOR`, but for those that are `blocked`.

    Images of tars, tables and folders are read there.

    Raises:
        FullDiskError: no space is left for the images.
        UnreadableError: an image in hand is in a file that cannot be read.
    """
    urls: list[Any] = rows["image_url"].to_pylist()  # null where there is none
    image_ids: list[Any] = identity.hexed(arrays.ids_of(rows["image_id"])).to_pylist()
    hooks = measuring.hooks_of(run.config)

    def measure(number: int, data: bytes) -> Measured:
        return measuring.measure(data, url=urls[number], config=run.config.image, hooks=hooks)

    path = run.work(FETCHED.step, unit["name"])
    in_hand = fetch_from_files.in_hand(run, rows)
    reuse.adopt(run, path, image_ids, np.flatnonzero(~in_hand).tolist(), partial(grounds, run))
    with (
        journal.opened(path, grounds(run, image_ids), measure) as kept,
        log.opened(run, unit["name"], image_ids, urls) as told,
    ):
        kept.outcomes.update(blocked)  # no journal has them: with another list they may be asked for
        told.stats(kept.outcomes)
        missing = np.array([number not in kept.outcomes for number in range(len(urls))], bool)
        for number, data in _in_place(run, rows, np.flatnonzero(missing & in_hand)):
            if isinstance(data, DropReason):
                kept.failed(number, data, None)
            else:
                kept.in_hand(number, data, measure(number, data))
        wanted = np.flatnonzero(missing & ~in_hand).tolist()

        def write() -> None:
            kept.flush()
            told.flush()

        with opened(run.config.fetch) as web:
            for response in web.fetch([urls[number] for number in wanted], on_quiet=write):
                interrupts.check()
                number = wanted[response.number]
                told.tries(number, response)
                if response.reason is not None:
                    kept.failed(number, response.reason, response.http_code)
                elif response.body is not None:
                    kept.in_hand(number, response.body, measure(number, response.body))
                told.stats(kept.outcomes)
                del response  # so its bytes no longer count when the next is asked for
        told.stats(kept.outcomes, is_last=True)
        return [kept.outcomes[number] for number in range(len(urls))]


def known(run: Run, unit: FetchUnit, rows: pa.Table, wanted: Sequence[int]) -> int:
    """How many of the wanted images of a unit nobody will be asked for: earlier tries have fetched them, or failed."""
    image_ids: list[Any] = identity.hexed(arrays.ids_of(rows["image_id"])).to_pylist()
    return len(reuse.known(run, run.work(FETCHED.step, unit["name"]), image_ids, wanted, partial(grounds, run)))


def _in_place(run: Run, rows: pa.Table, numbers: npt.NDArray[np.int64]) -> Iterator[tuple[int, bytes | DropReason]]:
    """Yields number and bytes of these images, read from the input, or the reason for one that is too large."""
    own = rows.take(numbers)
    with pool.reading(run, fetch_from_files.whole_files(run, own)):
        yield from zip(numbers.tolist(), fetch_from_files.image_bytes(run, own), strict=True)


def grounds(run: Run, image_ids: Sequence[str]) -> journal.JournalGrounds:
    """What the journal of a unit rests on: the images and what may be fetched of them; and how they are measured."""
    reads = storage.read_json(run.path("run.json")).get("stages", {}).get("fetch", {}).get("reads", {})
    settings = run.config.fetch
    domains, urls = ({f"file {name}" for name in names} for names in (settings.blocked_domains, settings.blocked_urls))
    urls |= {"fetch.blocked_urls"}  # of no journal: an image in hand whose URL is listed now need not be asked for
    of_web = {name for name in reads if name in domains or name.startswith("fetch.")} - urls
    of_images = reads.keys() - of_web - urls
    asked, measured = ({name: reads[name] for name in names} for names in (of_web, of_images))
    return journal.JournalGrounds(
        asked=digest({"images": list(image_ids), **asked}), measured=digest({"rules": RULES_VERSION, **measured})
    )
