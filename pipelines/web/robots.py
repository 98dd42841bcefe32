"""What the files of a site say of its images, robots.txt (RFC 9309) and tdmrep.json, as they are kept for a day."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from altalign.filters.reservations import Listener, Said, opposed, reason
from altalign.filters.reservations.robots_txt import Robots
from altalign.filters.reservations.tdmrep import Reservations
from altalign.pipelines.web.calls import Trouble

REDIRECTS_AT_MOST = 5  # RFC 9309, section 2.3.1.2
KEPT_S = 86_400.0  # section 2.4
RULES_KEPT = 20_000
RULES_BYTES_KEPT = 64_000_000


class Rules(NamedTuple):
    """The files of an origin, and when they were read (UTC). Empty ones forbid nothing, and say nothing."""

    robots: Robots = Robots()
    reservations: Reservations = Reservations()
    when: str = ""

    def said(self, url: str) -> list[Said]:
        """What they say of a URL of the origin."""
        return self.robots.said(url, self.when) + self.reservations.said(url, self.when)

    @property
    def bytes(self) -> int:
        """About how much memory they take."""
        return len(repr(self))


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


def objection(said: Sequence[Said], listener: Listener) -> Trouble | None:
    """Why an image is not used for a purpose, by the first notation that opposes it; None where none does."""
    for notation in opposed(said, *listener):
        of_notation = [each for each in said if each.notation == notation]
        first = next((each for each in of_notation if opposed([each], *listener)), of_notation[0])
        return Trouble(reason(notation), f"{notation}: {first.value} ({first.where})", is_final=True)
    return None
