"""What sites forbid in robots.txt (RFC 9309) and in the headers of their answers. Pure."""

import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protego import Protego

BYTES_AT_MOST = 512_000  # RFC 9309 section 2.5: at least 500 KiB must be read; we ignore the rest
REDIRECTS_AT_MOST = 5  # section 2.3.1.2
KEPT_S = 86_400.0  # section 2.4
RULES_KEPT = 20_000
RULES_BYTES_KEPT = 64_000_000
DELAY_S_AT_MOST = 30.0  # our choice: a longer Crawl-delay would be a ban, for which robots.txt has Disallow

SHORT = 16_384  # characters of rules; few sites have more

_AGENT = re.compile(r"user[- ]?agent[ \t]*(?::|[ \t])(?P<name>.*)", re.IGNORECASE)
_OF_SITE = re.compile(r"(?:sitemaps?|site-map|host)[ \t]*(?::|[ \t])", re.IGNORECASE)


@dataclass(frozen=True)
class Rules:
    """The rules of a robots.txt for one robot.

    Attributes:
        token: the robot's product token, in lower case.
        text: the lines that apply to it; empty if nothing is forbidden.
        delay_s: the Crawl-delay in seconds, at most `DELAY_S_AT_MOST`.
    """

    token: str = ""
    text: str = ""
    delay_s: float = 0.0

    @classmethod
    def parse(cls, body: bytes, token: str) -> "Rules":
        """Parses a robots.txt."""
        text = _of_robot(body[:BYTES_AT_MOST].decode("utf-8-sig", "replace"), token)
        return cls(token, text, min(_parsed(text).crawl_delay(token) or 0.0, DELAY_S_AT_MOST)) if text else cls()

    def allow(self, url: str) -> bool:
        """Whether a URL may be asked for."""
        return not self.text or _parsed(self.text).can_fetch(url, self.token)


class KeptRules:
    """The rules of sites, for a day; those that were used last, within `RULES_KEPT` and `RULES_BYTES_KEPT`."""

    def __init__(self) -> None:
        """Holds no rules yet."""
        self._kept: OrderedDict[str, tuple[float, Rules]] = OrderedDict()
        self._bytes = 0

    def of(self, origin: str, now: float) -> Rules | None:
        """The rules of an origin; None where they must be asked for."""
        kept_until_s, rules = self._kept.get(origin, (0.0, None))
        if rules is None or now >= kept_until_s:
            return None
        self._kept.move_to_end(origin)
        return rules

    def keep(self, origin: str, rules: Rules, now: float) -> None:
        """Keeps rules from now on, in place of earlier ones of this origin."""
        _, before = self._kept.pop(origin, (0.0, Rules()))
        self._kept[origin] = now + KEPT_S, rules
        self._bytes += len(rules.text) - len(before.text)
        while len(self._kept) > 1 and (len(self._kept) > RULES_KEPT or self._bytes > RULES_BYTES_KEPT):
            self._bytes -= len(self._kept.popitem(last=False)[1][1].text)


def _parsed(text: str) -> "Protego":
    """Parses rules. They take about ten times the memory of their text, so few are kept; many sites share theirs."""
    return _short(text) if len(text) <= SHORT else _long(text)


def _parse(text: str) -> "Protego":
    from protego import Protego

    return Protego.parse(text)


_short, _long = lru_cache(maxsize=1_000)(_parse), lru_cache(maxsize=16)(_parse)


def _of_robot(text: str, token: str) -> str:
    """The lines that apply to a robot: those of the groups that name it or, if none does, of the groups for all robots.

    The parser would give every rule to every name of its group, which takes for ever with thousands of both.
    """
    lines: dict[str, list[str]] = {}
    concerned: set[str] = set()
    is_begun = False  # whether the group has a rule, so that another name begins the next group
    for line in text.splitlines():
        entry = line.partition("#")[0].strip()
        agent = _AGENT.match(entry)
        if agent is not None:
            if is_begun:
                concerned, is_begun = set(), False
            name = agent["name"].strip().lower()
            short = name.partition("/")[0].strip().rstrip("*").rstrip()
            concerned |= {"*"} if name == "*" else {token} if short == token else set()
            for each in concerned:
                lines.setdefault(each, [])
        elif entry and not _OF_SITE.match(entry):
            is_begun = True
            for each in concerned:
                lines[each].append(entry)
    name = token if token in lines else "*"
    return "\n".join([f"User-agent: {name}", *lines[name]]) if name in lines else ""


def opt_out(x_robots_tag: Iterable[str], tdm_reservation: Iterable[str], token: str) -> str:
    """The header by which an answer opts out; empty if none does. X-Robots-Tag is read as img2dataset reads it.

    Args:
        x_robots_tag: values of the X-Robots-Tag headers.
        tdm_reservation: values of the header of the TDM Reservation Protocol; `1` reserves the rights to text and data
            mining.
        token: the robot's product token, lower case.
    """
    for value in x_robots_tag:
        before, colon, after = value.partition(":")
        directives = {part.strip().lower() for part in (after if colon else before).split(",")}
        if (not colon or before.lower() == token) and directives & OPPOSED:
            return f"X-Robots-Tag: {value.strip()}"
    return "tdm-reservation: 1" if any(value.strip() == "1" for value in tdm_reservation) else ""


OPPOSED = frozenset({"noai", "noimageai", "noindex", "noimageindex"})  # img2dataset refuses these by default


def product_token(user_agent: str) -> str:
    """The name by which sites address a robot: the first word of its user agent, without version, in lower case."""
    return user_agent.split(maxsplit=1)[0].partition("/")[0].lower()
