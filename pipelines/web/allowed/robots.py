"""What sites forbid in robots.txt (RFC 9309) and in the headers of their answers. Pure."""

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
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
_PREFERENCE = re.compile(
    r"(?P<name>content-(?:usage|signal))[ \t]*:[ \t]*(?:(?P<path>/\S*)[ \t]+)?(?P<said>.*)", re.IGNORECASE
)


@dataclass(frozen=True)
class Rules:
    """The rules of a robots.txt for one robot.

    Attributes:
        token: the robot's product token, in lower case.
        texts: the lines that apply to it, by the name of what they are; those of preferences are written as `Disallow`
            where they oppose training, and as `Allow` where they allow it. Empty if nothing is forbidden.
        delay_s: the Crawl-delay in seconds, at most `DELAY_S_AT_MOST`.
    """

    token: str = ""
    texts: tuple[tuple[str, str], ...] = ()
    delay_s: float = 0.0

    @classmethod
    def parse(cls, body: bytes, token: str) -> "Rules":
        """Parses a robots.txt."""
        first, lines = _of_robot(body[:BYTES_AT_MOST].decode("utf-8-sig", "replace"), token)
        found = {"Disallow": [line for line in lines if not _PREFERENCE.match(line)]}
        found |= {name: _preferences(name, lines) for name in PREFERENCES}
        texts = {name: "\n".join([first, *of_name]) for name, of_name in found.items() if of_name}
        if not texts:
            return cls()
        delay_s = _parsed(texts["Disallow"]).crawl_delay(token) if "Disallow" in texts else None
        return cls(token, tuple(texts.items()), min(delay_s or 0.0, DELAY_S_AT_MOST))

    def against(self, url: str) -> str:
        """The name of the first rule that forbids a URL: Disallow, or a preference; empty if it may be asked for."""
        return next((name for name, text in self.texts if not _parsed(text).can_fetch(url, self.token)), "")

    @property
    def bytes(self) -> int:
        """About how much memory they take."""
        return sum(len(text) for _, text in self.texts)


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
        self._bytes += rules.bytes - before.bytes
        while len(self._kept) > 1 and (len(self._kept) > RULES_KEPT or self._bytes > RULES_BYTES_KEPT):
            self._bytes -= self._kept.popitem(last=False)[1][1].bytes


def _parsed(text: str) -> "Protego":
    """Parses rules. They take about ten times the memory of their text, so few are kept; many sites share theirs."""
    return _short(text) if len(text) <= SHORT else _long(text)


def _parse(text: str) -> "Protego":
    from protego import Protego

    return Protego.parse(text)


_short, _long = lru_cache(maxsize=1_000)(_parse), lru_cache(maxsize=16)(_parse)


def _of_robot(text: str, token: str) -> tuple[str, list[str]]:
    """The first line of the groups that apply to a robot, and their rules.

    They are the groups that name it or, if none does, those for all robots.

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
    return f"User-agent: {name}", lines.get(name, [])


# Preferences about the use of what is fetched ---------------------------------------------------------------------

# What says yes and no in each: draft-ietf-aipref-vocab-08 of the IETF, and contentsignals.org.
PREFERENCES = {"Content-Usage": ("y", "n"), "Content-Signal": ("yes", "no")}


def allows_training(name: str, values: Iterable[str]) -> bool | None:
    """Whether the values of a header or line allow training of models with what is fetched; None: they do not say.

    A member that cannot be read says nothing, and of several with the same key the last counts.

    Args:
        name: one of `PREFERENCES`.
        values: dictionaries of structured fields (RFC 9651), such as `train-ai=n, search=y`.
    """
    yes, no = PREFERENCES[name]
    said = dict[str, bool]()
    for member in (member for value in values for member in value.split(",")):
        key, _, choice = (part.strip() for part in member.partition(";")[0].lower().partition("="))
        said.pop(key, None)
        if choice in (yes, no):
            said[key] = choice == yes
    if name == "Content-Signal":
        return said.get("ai-train")
    # Drafts 02 and 03 also had `bots` for every use, and `train-genai` for a part of training.
    return False if said.get("train-genai") is False else said.get("train-ai", said.get("bots"))


def _preferences(name: str, lines: Sequence[str]) -> list[str]:
    """The lines of a preference as `Allow` and `Disallow`; of the same path the opposing ones alone, as the draft says.

    A line that says nothing of training leaves what another says of a shorter path.
    """
    found = dict[str, bool]()
    for match in filter(None, map(_PREFERENCE.fullmatch, lines)):
        allows = allows_training(name, [match["said"]]) if match["name"].lower() == name.lower() else None
        if allows is not None:
            path = match["path"] or "/"
            found[path] = allows and found.get(path, True)
    return [f"{'Allow' if allows else 'Disallow'}: {path}" for path, allows in found.items()]


# Headers ------------------------------------------------------------------------------------------------------------

OPT_OUTS = ("x-robots-tag", "tdm-reservation", *map(str.lower, PREFERENCES))  # headers
OPPOSED = frozenset({"noai", "noimageai", "noindex", "noimageindex"})  # img2dataset refuses these by default


def opt_out(headers: Mapping[str, Sequence[str]], token: str) -> str:
    """The header by which an answer opts out; empty if none does.

    X-Robots-Tag is read as img2dataset reads it. `1` reserves the rights in the TDM Reservation Protocol.

    Args:
        headers: the values of each header in `OPT_OUTS`.
        token: the robot's product token, lower case.
    """
    for value in headers["x-robots-tag"]:
        before, colon, after = value.partition(":")
        directives = {part.strip().lower() for part in (after if colon else before).split(",")}
        if (not colon or before.lower() == token) and directives & OPPOSED:
            return f"X-Robots-Tag: {value.strip()}"
    if any(value.strip() == "1" for value in headers["tdm-reservation"]):
        return "tdm-reservation: 1"
    for name in PREFERENCES:
        values = headers[name.lower()]
        if allows_training(name, values) is False:
            return f"{name}: {', '.join(values).strip()}"
    return ""


def product_token(user_agent: str) -> str:
    """The name by which sites address a robot: the first word of its user agent, without version, in lower case."""
    return user_agent.split(maxsplit=1)[0].partition("/")[0].lower()
