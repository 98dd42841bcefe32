"""`robots.txt` (RFC 9309): what it forbids a robot, and its lines Content-Usage, Content-Signal and License."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote_from_bytes

from altalign.data.preferences import VALUE_AT_MOST, Said, short
from altalign.data.purposes import PURPOSES
from altalign.filters.reservations import usage
from altalign.filters.reservations.paths import Pattern, path_of

if TYPE_CHECKING:
    from protego import Protego

BYTES_AT_MOST = 512_000  # section 2.5: at least 500 KiB must be read; we ignore the rest
DELAY_S_AT_MOST = 30.0  # our choice: a longer Crawl-delay would be a ban, for which robots.txt has Disallow
SHORT = 16_384  # characters of rules; few sites have more
LICENSES_AT_MOST = 8

_LINE_END = re.compile(rb"\r\n?|\n")
# Keys begin so, and are misspelt so, in Google's parser.
_KEY = re.compile(
    rb"(?P<agent>user[- ]?agent)|(?P<Disallow>disallow|diss?alow|dissallow|diasllow|disallaw)|(?P<Allow>allow)"
    rb"|(?P<delay>crawl[- ]delay\Z)|(?P<usage>content-usage\Z)|(?P<signal>content-signal\Z)|(?P<license>license\Z)",
    re.IGNORECASE,
)
_KEPT_AS_IS = "\t" + "".join(map(chr, range(0x20, 0x7F)))  # what else a value has is compared as URLs spell it
_TOKEN = re.compile(rb"[A-Za-z_-]*")
_RULES = {"Disallow": "Disallow", "Allow": "Allow", "delay": "Crawl-delay"}  # as the parser of rules knows them
_NOTATIONS = {"usage": "content-usage", "signal": "content-signal"}


class Line(NamedTuple):
    """A line of Content-Usage or Content-Signal."""

    notation: str
    text: str
    path: str
    pattern: Pattern
    allows: tuple[bool | None, ...]  # each of `PURPOSES`; None: it does not say

    @classmethod
    def of(cls, notation: str, text: str) -> "Line":
        """Reads a line."""
        path, values = usage.parted(text)
        allows = tuple(usage.says(notation, values, purpose) for purpose in PURPOSES)
        return cls(notation, text, path, Pattern.of(path), allows)


@dataclass(frozen=True)
class Robots:
    """What a robots.txt says to one robot. Nothing is forbidden by an empty one."""

    token: str = ""  # of the robot's product, in lower case
    rules: str = ""  # Allow and Disallow, as lines of a file
    lines: tuple[Line, ...] = ()
    licenses: tuple[str, ...] = ()
    delay_s: float = 0.0  # the Crawl-delay, at most `DELAY_S_AT_MOST`

    @classmethod
    def parse(cls, body: bytes, token: str) -> "Robots":
        """Reads a file, for a product token in lower case."""
        ours, of_all = _of_robot(body[:BYTES_AT_MOST], token)
        rules = [f"{_RULES[kind]}: {value}" for kind, value in ours if kind in _RULES]
        text = "\n".join(["User-agent: *", *rules]) if rules else ""
        lines = [Line.of(_NOTATIONS[kind], value) for kind, value in ours if kind in _NOTATIONS and value]
        distinct = {(line.notation, line.path, line.allows): line for line in reversed(lines)}
        # RSL 1.0, section 4.4: those of the group stand in place of those of all
        licenses = [value for kind, value in ours if kind == "license"] or of_all
        return cls(
            token,
            text,
            tuple(distinct.values()),
            tuple(dict.fromkeys(map(short, filter(None, licenses))))[:LICENSES_AT_MOST],
            min((text and _parsed(text).crawl_delay(token)) or 0.0, DELAY_S_AT_MOST),
        )

    def allows(self, url: str) -> bool:
        """Whether the robot may ask for a URL of the file's origin."""
        return not self.rules or _parsed(self.rules).can_fetch(url, self.token)

    def said(self, url: str, when: str | None) -> list[Said]:
        """What the lines of preferences and licences say of a URL."""
        found = list[Said]()
        path = path_of(url) if self.lines else b""
        for notation in _NOTATIONS.values():
            lines = [line for line in self.lines if line.notation == notation and line.pattern.matches(path)]
            if lines:
                found.append(Said(notation, _deciding(lines), "robots.txt", when))
        return found + [Said("rsl", url, "robots.txt", when) for url in self.licenses]

    def archived(self, url: str, when: str | None) -> list[Said]:
        """The same of a file that an archive holds, a ban of the robot included."""
        ban = [] if self.allows(url) else [Said("robots.txt", "Disallow", "robots.txt", when)]
        return self.said(url, when) + ban


def _deciding(lines: list[Line]) -> str:
    """Those of the lines that decide on a purpose, or the one with the longest path."""
    chosen = list[Line]()
    for at in range(len(PURPOSES)):
        saying = [line for line in lines if line.allows[at] is not None]
        chosen += [max(saying, key=lambda line: (len(line.path), line.allows[at] is False))] if saying else []
    chosen = list(dict.fromkeys(chosen)) or [max(lines, key=lambda line: len(line.path))]
    text = "\n".join(short(line.text, usage.WORDS) for line in chosen)
    if len(text) <= VALUE_AT_MOST:
        return text
    against = [line for line in chosen if False in line.allows] or chosen  # without their paths, and in any doubt
    return short(", ".join(usage.parted(line.text)[1] for line in against), usage.WORDS)


def _parsed(text: str) -> "Protego":
    """Parses rules. They take about ten times the memory of their text, so few are kept; many sites share theirs."""
    return _short(text) if len(text) <= SHORT else _long(text)


def _parse(text: str) -> "Protego":
    from protego import Protego

    return Protego.parse(text)


_short, _long = lru_cache(maxsize=1_000)(_parse), lru_cache(maxsize=16)(_parse)


def _of_robot(body: bytes, token: str) -> tuple[list[tuple[str, str]], list[str]]:
    """What the groups that apply to a robot say, in pairs of the kind of line (a name in `_KEY`) and its value.

    They are the groups that name it or, if none does, those for all robots. Only a rule makes the next name begin
    another group (RFC 9309, 2.2.1). Names are compared here and whole, for the parser of rules knows parts of them too,
    and would give every rule to every name of its group, which takes for ever with thousands of both.

    The second list has the licences that stand above all groups.
    """
    groups: list[tuple[set[str], list[tuple[str, str]]]] = []
    of_all = list[str]()
    is_begun = True  # whether another name begins the next group; what stands above the first is of none
    for line in _LINE_END.split(body.removeprefix(b"\xef\xbb\xbf")):
        kind, value = _entry(line)
        text = quote_from_bytes(value, safe=_KEPT_AS_IS)
        if kind == "agent":
            if is_begun:
                groups.append((set(), []))
            is_begun = False
            groups[-1][0].add(_robot(value, token))
        elif kind and groups:
            is_begun |= kind in ("Allow", "Disallow")
            groups[-1][1].append((kind, text))
        elif kind == "license":
            of_all.append(text)
    named = token if any(token in names for names, _ in groups) else "*"
    return [entry for names, entries in groups if named in names for entry in entries], of_all


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
