"""What rights holders say about the use of their works: readers of every notation, and what opposes a purpose. Pure."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from altalign.data.preferences import Said, short
from altalign.data.reasons import DropReason
from altalign.filters.reservations import c2pa, containers, iptc, rsl, tags, tdmrep, usage
from altalign.settings.curate import FetchSettings

HEADERS = ("x-robots-tag", *usage.YES_NO, *tdmrep.NAMES, "link")
# Whether statements of a notation oppose a purpose, for the product token of a robot; in the order in which they are
# reported. docs/reference/reservations.md has the document of each.
_OPPOSE: Mapping[str, Callable[[Sequence[Said], str, str], bool]] = {
    "x-robots-tag": tags.oppose,
    "meta-robots": tags.oppose,
    "content-usage": usage.oppose,
    "content-signal": usage.oppose,
    "tdmrep": tdmrep.oppose,
    "rsl": lambda *_: True,  # terms that nobody has read
    "iptc": iptc.oppose,
    "c2pa": c2pa.oppose,
    "robots.txt": lambda *_: True,  # a ban
}
NOTATIONS = tuple(_OPPOSE)


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
    found = defaultdict[str, list[Said]](list)
    for each in said:
        found[each.notation].append(each)
    return tuple(name for name, oppose in _OPPOSE.items() if name in found and oppose(found[name], purpose, token))


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
    return DropReason("opt_out_" + re.sub(r"\W", "_", notation))


def product_token(user_agent: str) -> str:
    """The name by which sites address a robot: the first word of its user agent, without version, in lower case."""
    return user_agent.split(maxsplit=1)[0].partition("/")[0].lower()
