"""What the page of a trial shows: pipelines measure it, the audit lays it out."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Amount:
    """A number in words, and its interval; no interval where it is counted."""

    value: str
    interval: str = ""


@dataclass(frozen=True)
class Line:
    """A stage and reason (or `kept`, `received`) with the pairs and images of it."""

    stage: str
    reason: str
    pairs: Amount
    images: Amount | None


@dataclass(frozen=True)
class Sample:
    """A pair near to a threshold: what it has there, and a small picture, if it has one."""

    value: str
    caption: str
    image_url: str | None
    picture: bytes | None
    is_nsfw: bool


@dataclass(frozen=True)
class Threshold:
    """A setting and its value, with the nearest pairs on both sides of it."""

    setting: str
    at: str
    kept: Sequence[Sample]
    dropped: Sequence[Sample]


@dataclass(frozen=True)
class Page:
    """The whole page; tables are a head and rows of words."""

    path: str
    run: str
    lead: str
    lines: Sequence[Line]
    hosts: Sequence[Sequence[str]]
    machines: Sequence[Sequence[str]]
    notes: Sequence[str]
    thresholds: Sequence[Threshold]
