"""What rights holders said of images and of the pages that show them, and which rows that drops.

An image has what its answer and the bytes themselves say and, of a web archive, what robots.txt and tdmrep.json of its
origin say as archived. A row also has what its page says: that alone may differ between the rows of an image.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data.preferences import STATEMENTS_AT_MOST, from_text
from altalign.data.reasons import REASONS, DropReason, Stage
from altalign.filters import identity
from altalign.filters.reservations import Listener, Said, of_image
from altalign.filters.reservations.robots_txt import BYTES_AT_MOST, Robots
from altalign.filters.reservations.tdmrep import Reservations
from altalign.machine import interrupts
from altalign.pipelines import read
from altalign.pipelines.images.judging import BY_PURPOSE, Outcome
from altalign.pipelines.read.pages.warc import NOTICES
from altalign.pipelines.run import pool, text_tables
from altalign.pipelines.run.image_places import Kind, Places, as_bytes, first_of_each
from altalign.pipelines.run.units import Run

_ORDER = {name: at for at, name in enumerate(REASONS[Stage.FETCH])}


def look(listener: Listener, data: bytes, said: Sequence[Said]) -> tuple[tuple[Said, ...], list[DropReason]]:
    """All that was said of an image, by itself too, and why that drops it."""
    marks = of_image(data)
    if not (marks or said):  # as of most
        return (), []
    return distinct(said, marks), listener.reasons((*said, *marks))  # also by what is beyond those that are kept


def distinct(*said: Iterable[Said]) -> tuple[Said, ...]:
    """The distinct statements of several sources; of too many the first of each notation."""
    every, seen = dict.fromkeys(each for of_source in said for each in of_source), Counter[str]()

    def place(each: Said) -> int:
        seen[each.notation] += 1
        return seen[each.notation]

    return tuple(every if len(every) <= STATEMENTS_AT_MOST else sorted(every, key=place)[:STATEMENTS_AT_MOST])


def of_pages(texts: Iterable[str | None]) -> list[list[Said] | None]:
    """What the pages of n rows say, by their texts in the pool; None where nobody looked."""
    known = cache(from_text)
    return [None if text is None else known(text) for text in texts]


class Heard(NamedTuple):
    """Of n rows every reason of `fetch` that holds, in order, and all that was said (None: nobody looked)."""

    failed: list[list[str]]
    said: list[tuple[Said, ...] | None]


def excluded(
    listener: Listener, pages: Sequence[Sequence[Said] | None], image_of: npt.NDArray[np.int64]
) -> dict[int, Outcome]:
    """The images that no row has whose page does not oppose: nobody looks at them. `image_of`: of each row."""
    reasons = [listener.reasons(said) if said else [] for said in pages]
    stays = np.bincount(image_of, weights=[not each for each in reasons], minlength=1)
    first = dict(reversed([*zip(image_of.tolist(), reasons, strict=True)]))
    return {image: Outcome(first[image][0]) for image in np.flatnonzero(stays == 0).tolist() if image in first}


def of_rows(
    listener: Listener,
    pages: Sequence[Sequence[Said] | None],
    outcomes: Sequence[Outcome],
    image_of: npt.NDArray[np.int64],
) -> Heard:
    """What was said of n rows, and what that drops beside the reasons of their images."""
    heard = Heard([], [])
    for page, image in zip(pages, image_of.tolist(), strict=True):
        outcome = outcomes[image]
        said = None if page is None and outcome.said is None else distinct(page or (), outcome.said or ())
        reasons: set[str] = set(listener.reasons(said)) if said else set()
        if outcome.reason is not None and not (reasons and outcome.reason in BY_PURPOSE):
            reasons.add(outcome.reason)
        heard.failed.append(sorted(map(str, reasons), key=_ORDER.__getitem__))
        heard.said.append(said)
    return heard


# What origins say in archives -----------------------------------------------------------------------------------------


def of_origins(run: Run, urls: Sequence[str | None]) -> list[Sequence[Said] | None]:
    """What the origins of n images say of them, in robots.txt and tdmrep.json of archives; None: no archive has one."""
    found: list[Sequence[Said] | None] = [None] * len(urls)
    if not storage.exists(text_tables.ALL_NOTICES.path(run)):
        return found
    places, token = text_tables.ALL_NOTICES.array(run, mapped=True), Listener.of(run.config.fetch).token
    origins = [("/".join(url.split("/", 3)[:3]), number) for number, url in enumerate(urls) if url]
    for origin, numbers in groupby(sorted(origins), key=lambda pair: pair[0]):
        interrupts.check()
        rules, rights = (_notice(run, places, origin + path) for path in NOTICES)
        of_robots, of_tdmrep = Robots.parse(rules.data, token), Reservations.parse(rights.data)
        for _, number in numbers if rules.data or rights.data else ():
            url = str(urls[number])
            found[number] = distinct(of_robots.archived(url, rules.when), of_tdmrep.said(url, rights.when))
    return found


def _notice(run: Run, places: Places, url: str) -> read.Captured:
    """What an archive has under this URL of an origin; nothing where none has it."""
    (place,), (is_there,) = first_of_each(places, as_bytes(identity.image_ids(pa.array([url], pa.string()))))
    if not is_there:
        return read.Captured(b"")
    number, offset, length = (int(place[name]) for name in ("file", "offset", "length"))
    file = run.files[number]
    if place["kind"] == Kind.COPIED:
        copied = storage.read_range(text_tables.COPIED_IMAGES.path(run, file.name), offset, length)
        found = read.Captured.of_copy(copied)
    else:
        with pool.reading(run, [number]):
            found = read.captured(file.path, offset) or read.Captured(b"")
    return found._replace(data=found.data[:BYTES_AT_MOST])
