"""What rights holders say about the use of their works: readers of every notation, and what opposes a purpose. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from altalign.filters.reservations import tags, usage
from altalign.filters.reservations.said import NOTATIONS, PURPOSES, Said, short

__all__ = ["HEADERS", "NOTATIONS", "PURPOSES", "Said", "of_headers", "of_image", "of_metas", "of_robots", "of_tdmrep"]

HEADERS = ("x-robots-tag", "content-usage", "content-signal", "tdm-reservation", "tdm-policy")


def of_headers(headers: Mapping[str, Sequence[str]], token: str, where: str, when: str | None) -> list[Said]:  # noqa: ARG001
    """What the headers of an answer say.

    Args:
        headers: the values of each, by name in lower case; those of `HEADERS` are read.
        token: the product token of the robot, in lower case.
        where: `image header` or `page header`.
        when: the time of the answer.
    """
    found = [Said("x-robots-tag", short(value, tags.WORDS), where, when) for value in headers.get("x-robots-tag", ())]
    for notation in ("content-usage", "content-signal"):  # the lines of one header are one dictionary
        if values := headers.get(notation):
            found.append(Said(notation, short(", ".join(values), usage.WORDS), where, when))
    for name in ("tdm-reservation", "tdm-policy"):
        found += [Said("tdmrep", short(f"{name}: {value}", ()), where, when) for value in headers.get(name, ())]
    return found


def of_metas(metas: Sequence[tuple[str, str]], token: str, when: str | None) -> list[Said]:
    """What the `<meta>` elements of a page say, given as pairs of name and content."""
    found = list[Said]()
    for name, content in ((name.strip().lower(), content) for name, content in metas):
        if name in ("robots", token):
            found.append(Said("meta-robots", short(content, tags.WORDS), "page meta", when))
        elif name in ("tdm-reservation", "tdm-policy"):
            found.append(Said("tdmrep", short(f"{name}: {content}", ()), "page meta", when))
    return found


def of_robots(body: bytes, url: str, token: str, when: str | None) -> list[Said]:
    """What a robots.txt says of a URL of its origin."""
    raise NotImplementedError


def of_tdmrep(body: bytes, url: str, when: str | None) -> list[Said]:
    """What a `/.well-known/tdmrep.json` says of a URL of its origin."""
    raise NotImplementedError


def of_image(data: bytes) -> list[Said]:
    """What the marks inside an image file say."""
    raise NotImplementedError


def opposed(said: Iterable[Said], purpose: str, token: str) -> tuple[str, ...]:
    """The notations that oppose a purpose, in the order of `NOTATIONS`; none opposes `keep all`."""
    if purpose == "keep all":
        return ()
    found = set[str]()
    for notation, value, _, _ in said:
        is_no = False
        if notation in ("x-robots-tag", "meta-robots"):
            is_no = tags.opposes(value, purpose, token)
        elif notation in usage.YES_NO:
            is_no = usage.opposes(notation, [value], purpose)
        elif notation == "tdmrep":
            is_no = purpose != "search" and "1" in map(str.strip, value.removeprefix("tdm-reservation:").split(","))
        if is_no:
            found.add(notation)
    return tuple(notation for notation in NOTATIONS if notation in found)
