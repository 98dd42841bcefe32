"""What rights holders say about the use of their works: readers of every notation, and what opposes a purpose. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from altalign.data.preferences import Said
from altalign.data.purposes import PURPOSES
from altalign.data.reasons import DropReason
from altalign.filters.reservations import c2pa, containers, iptc, rsl, tags, tdmrep, usage
from altalign.filters.reservations.robots_txt import Robots
from altalign.filters.reservations.said import NOTATIONS, short
from altalign.filters.reservations.tdmrep import Reservations
from altalign.settings.curate import FetchSettings

__all__ = [
    "HEADERS",
    "NOTATIONS",
    "PURPOSES",
    "Listener",
    "Reservations",
    "Robots",
    "Said",
    "of_headers",
    "of_image",
    "of_metas",
    "opposed",
    "product_token",
    "reason",
]

HEADERS = ("x-robots-tag", *usage.YES_NO, *tdmrep.NAMES, "link")


def of_headers(headers: Mapping[str, Sequence[str]], token: str, where: str, when: str | None) -> list[Said]:
    """What the headers of an answer say.

    Args:
        headers: the values of each, by name in lower case; those of `HEADERS` are read.
        token: of the robot's product, in lower case; tags for other robots are left out.
        where: `image header` or `page header`.
        when: the time of the answer.
    """
    values = [value for value in headers.get("x-robots-tag", ()) if tags.directives(value, token)]
    found = [("x-robots-tag", short(value, tags.WORDS)) for value in values]
    for notation in usage.YES_NO:  # the lines of one header are one dictionary
        if values := headers.get(notation):
            found.append((notation, short(", ".join(values), usage.WORDS)))
    for name in tdmrep.NAMES:
        found += [("tdmrep", short(f"{name}: {value}")) for value in headers.get(name, ())]
    found += [("rsl", short(url)) for url in rsl.of_links(headers.get("link", ()))]
    return _said(found, where, when)


def of_metas(metas: Iterable[tuple[str, str]], token: str, when: str | None) -> list[Said]:
    """What the `<meta>` elements of a page say, given as pairs of name and content, to a product token."""
    found = list[tuple[str, str]]()
    for name, content in ((name.strip().lower(), content) for name, content in metas):
        if name in ("robots", token):
            found.append(("meta-robots", short(content, tags.WORDS)))
        elif name in tdmrep.NAMES:
            found.append(("tdmrep", short(f"{name}: {content}")))
    return _said(found, "page meta", when)


def of_image(data: bytes) -> list[Said]:
    """What the marks inside an image file say."""
    data = containers.without_picture(data)
    found = [("iptc", short(value)) for value in iptc.of_image(data)]
    found += [("c2pa", short(value)) for value in c2pa.of_image(data)]
    return _said(found, "image file", None)


def _said(found: Iterable[tuple[str, str]], where: str, when: str | None) -> list[Said]:
    return [Said(notation, value, where, when) for notation, value in dict.fromkeys(found)]


def opposed(said: Iterable[Said], purpose: str, token: str) -> tuple[str, ...]:
    """The notations that oppose a purpose, in the order of `NOTATIONS`; none opposes `keep all`."""
    if purpose == "keep all":
        return ()
    said = list(said)
    found = {each.notation for each in said if _opposes(each, purpose, token)}
    if purpose != "search" and tdmrep.opposes(each for each in said if each.notation == "tdmrep"):
        found.add("tdmrep")
    return tuple(notation for notation in NOTATIONS if notation in found)


def _opposes(said: Said, purpose: str, token: str) -> bool:
    """Whether one statement opposes a purpose by itself."""
    if said.notation in ("x-robots-tag", "meta-robots"):
        return tags.opposes(said.value, purpose, token)
    if said.notation in usage.YES_NO:
        return usage.opposes(said.notation, said.value, purpose)
    if said.notation == "iptc":
        return iptc.opposes(said.value, purpose)
    if said.notation == "c2pa":
        return c2pa.opposes(said.value, purpose)
    return said.notation in ("rsl", "robots.txt")  # terms that nobody has read, and a ban


class Listener(NamedTuple):
    """Whom statements are for: a purpose, and the name by which sites address this robot."""

    purpose: str
    token: str

    @classmethod
    def of(cls, settings: FetchSettings) -> "Listener":
        """The one that settings describe."""
        return cls(settings.purpose, product_token(settings.user_agent_sent))

    def reasons(self, said: Iterable[Said]) -> list[DropReason]:
        """Why statements drop what they are of, in the order of reasons."""
        return [reason(notation) for notation in opposed(said, *self)]


def reason(notation: str) -> DropReason:
    """The drop reason of a notation."""
    return {
        "x-robots-tag": DropReason.OPT_OUT_X_ROBOTS_TAG,
        "meta-robots": DropReason.OPT_OUT_META_ROBOTS,
        "content-usage": DropReason.OPT_OUT_CONTENT_USAGE,
        "content-signal": DropReason.OPT_OUT_CONTENT_SIGNAL,
        "tdmrep": DropReason.OPT_OUT_TDMREP,
        "rsl": DropReason.OPT_OUT_RSL,
        "iptc": DropReason.OPT_OUT_IPTC,
        "c2pa": DropReason.OPT_OUT_C2PA,
        "robots.txt": DropReason.OPT_OUT_ROBOTS_TXT,
    }[notation]


def product_token(user_agent: str) -> str:
    """The name by which sites address a robot: the first word of its user agent, without version, in lower case."""
    return user_agent.split(maxsplit=1)[0].partition("/")[0].lower()
