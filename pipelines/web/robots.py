"""What sites forbid in robots.txt (RFC 9309) and in the headers of their answers. Pure."""

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote_from_bytes

if TYPE_CHECKING:
    from protego import Protego

BYTES_AT_MOST = 512_000  # RFC 9309 section 2.5: at least 500 KiB must be read; we ignore the rest
REDIRECTS_AT_MOST = 5  # section 2.3.1.2
KEPT_S = 86_400.0  # section 2.4
RULES_KEPT = 20_000
RULES_BYTES_KEPT = 64_000_000
DELAY_S_AT_MOST = 30.0  # our choice: a longer Crawl-delay would be a ban, for which robots.txt has Disallow

SHORT = 16_384  # characters of rules; few sites have more

_LINE_END = re.compile(rb"\r\n?|\n")
# Keys begin so, and are misspelt so, in Google's parser.
_KEY = re.compile(
    rb"(?P<agent>user[- ]?agent)|(?P<Disallow>disallow|diss?alow|dissallow|diasllow|disallaw)|(?P<Allow>allow)"
    rb"|(?P<delay>crawl[- ]delay\Z)|(?P<usage>content-usage\Z)|(?P<signal>content-signal\Z)",
    re.IGNORECASE,
)
_KEPT_AS_IS = "\t" + "".join(map(chr, range(0x20, 0x7F)))  # what else a value has is compared as URLs spell it
_TOKEN = re.compile(rb"[A-Za-z_-]*")
_PREFERENCE = re.compile(r"(?:(?P<path>/\S*)[ \t]+)?(?P<values>.*)")
_RULES = {"Disallow": "Disallow", "Allow": "Allow", "delay": "Crawl-delay"}  # as the parser of rules knows them


@dataclass(frozen=True)
class Rules:
    """The rules of a robots.txt for one robot.

    `texts` has the lines that apply to it, by the name of what they are; those of preferences are written as `Disallow`
    where they oppose training, and as `Allow` where they allow it. Empty if nothing is forbidden.
    """

    token: str = ""  # of the robot's product, in lower case
    texts: tuple[tuple[str, str], ...] = ()
    delay_s: float = 0.0  # the Crawl-delay, at most `DELAY_S_AT_MOST`

    @classmethod
    def parse(cls, body: bytes, token: str) -> "Rules":
        """Parses a robots.txt."""
        entries = _of_robot(body[:BYTES_AT_MOST], token)
        lines = {"Disallow": [f"{_RULES[kind]}: {value}" for kind, value in entries if kind in _RULES]}
        for name in PREFERENCES:
            lines[name] = _preferences(name, [value for kind, value in entries if name.lower().endswith(kind)])
        texts = {name: "\n".join(["User-agent: *", *of_name]) for name, of_name in lines.items() if of_name}
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

    def get(self, origin: str, now: float) -> Rules | None:
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


def _of_robot(body: bytes, token: str) -> list[tuple[str, str]]:
    """What the groups that apply to a robot say, in pairs of the kind of line (a name in `_KEY`) and its value.

    They are the groups that name it or, if none does, those for all robots. Only a rule makes the next name begin
    another group (RFC 9309, 2.2.1). Names are compared here and whole, for the parser of rules knows parts of them too,
    and would give every rule to every name of its group, which takes for ever with thousands of both.
    """
    groups: list[tuple[set[str], list[tuple[str, str]]]] = []
    is_begun = True  # whether another name begins the next group; what stands above the first is of none
    for line in _LINE_END.split(body.removeprefix(b"\xef\xbb\xbf")):
        kind, value = _entry(line)
        if kind == "agent":
            if is_begun:
                groups.append((set(), []))
            is_begun = False
            groups[-1][0].add(_robot(value, token))
        elif kind and groups:
            is_begun |= kind in ("Allow", "Disallow")
            groups[-1][1].append((kind, quote_from_bytes(value, safe=_KEPT_AS_IS)))
    named = token if any(token in names for names, _ in groups) else "*"
    return [entry for names, entries in groups if named in names for entry in entries]


def _entry(line: bytes) -> tuple[str, bytes]:
    """The kind of a line and its value, as Google's parser takes them: a rule of two words needs no colon."""
    text = line.partition(b"#")[0].strip()
    key, colon, value = text.partition(b":")
    if not colon:
        key, _, value = text.replace(b"\t", b" ").partition(b" ")
    match = _KEY.match(key.strip())
    kind = (match and match.lastgroup) or ""
    is_rule = kind in ("agent", *_RULES) and len(value.split()) == 1
    return (kind, value.strip()) if colon or is_rule else ("", b"")


def _robot(value: bytes, token: str) -> str:
    """Whom a User-agent line names: all (`*`), this robot, by its leading token (RFC 9309) or its word, or nobody."""
    first = (value.split() or [b""])[0]
    names = {_TOKEN.match(first)[0], first.partition(b"/")[0]}  # pyright: ignore[reportOptionalSubscript]
    return "*" if first == b"*" else token if token.encode() in {name.lower() for name in names} else ""


# Preferences about the use of what is fetched ---------------------------------------------------------------------

# What says yes and no in each: draft-ietf-aipref-vocab-08 of the IETF, and contentsignals.org.
PREFERENCES = {"Content-Usage": ("y", "n"), "Content-Signal": ("yes", "no")}


def allows_training(name: str, values: Iterable[str]) -> bool | None:
    """Whether the values of a header or line allow training of models with what is fetched; None: they do not say.

    Values of one of `PREFERENCES` are dictionaries of structured fields (RFC 9651), such as `train-ai=n, search=y`. A
    member that cannot be read says nothing, and of several with the same key the last counts.
    """
    yes, no = PREFERENCES[name]
    choices = dict[str, bool]()
    for member in (member for value in values for member in value.split(",")):
        key, _, choice = (part.strip() for part in member.partition(";")[0].lower().partition("="))
        choices.pop(key, None)
        if choice in (yes, no):
            choices[key] = choice == yes
    if name == "Content-Signal":
        return choices.get("ai-train")
    # Drafts 02 and 03 also had `bots` for every use, and `train-genai` for a part of training.
    return False if choices.get("train-genai") is False else choices.get("train-ai", choices.get("bots"))


def _preferences(name: str, values: Sequence[str]) -> list[str]:
    """The lines of a preference as `Allow` and `Disallow`; of the same path the opposing ones alone, as the draft says.

    A line that says nothing of training leaves what another says of a shorter path.
    """
    paths = dict[str, bool]()
    for match in filter(None, map(_PREFERENCE.fullmatch, values)):
        allows = allows_training(name, [match["values"]])
        if allows is not None:
            path = match["path"] or "/"
            paths[path] = allows and paths.get(path, True)
    return [f"{'Allow' if allows else 'Disallow'}: {path}" for path, allows in paths.items()]


# Headers ------------------------------------------------------------------------------------------------------------

OPT_OUTS = ("x-robots-tag", "tdm-reservation", *map(str.lower, PREFERENCES))  # headers
# img2dataset refuses these by default; `none` is noindex and nofollow
OPPOSED = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})
# Those that have a value. What else stands before a colon is the name of a robot, unless it is a part of a date.
_VALUED = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
_ROBOT = re.compile(r"[a-z_][\w.-]*|\*")


def opt_out(headers: Mapping[str, Sequence[str]], token: str) -> str:
    """The header by which an answer opts out; empty if none does.

    `headers` has the values of each in `OPT_OUTS`. X-Robots-Tag is read as Google documents it, for a product token in
    lower case. `1` reserves the rights in the TDM Reservation Protocol.
    """
    for value in headers["x-robots-tag"]:
        if _directives(value.lower(), token) & OPPOSED:
            return f"X-Robots-Tag: {value.strip()}"
    if any("1" in map(str.strip, value.split(",")) for value in headers["tdm-reservation"]):
        return "tdm-reservation: 1"
    for name in PREFERENCES:
        values = headers[name.lower()]
        if allows_training(name, values) is False:
            return f"{name}: {', '.join(values).strip()}"
    return ""


def _directives(value: str, token: str) -> set[str]:
    """The directives of a tag for a robot: those before any name, and those after its own up to the next name."""
    directives, is_meant = set[str](), True
    for part in value.split(","):
        before, colon, after = part.partition(":")
        name, *others = before.partition("/")[0].split() or [""]
        if colon and name not in _VALUED and (name == token or (not others and _ROBOT.fullmatch(name))):
            is_meant = name in (token, "*")
            part = after
        if is_meant:
            directives.add(part.strip())
    return directives


def product_token(user_agent: str) -> str:
    """The name by which sites address a robot: the first word of its user agent, without version, in lower case."""
    return user_agent.split(maxsplit=1)[0].partition("/")[0].lower()
