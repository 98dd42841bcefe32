"""`altalign audit RUN --reservations`: what rights holders said, of which domains, when, and what it means by purpose.

Counted are the pairs whose images were looked at: those in the shards, and those that `fetch` or a later stage dropped.
Of a pair that `fetch` dropped nobody knows what later rules would have said, nor what else its rights holder says: the
search ends with what opposes the purpose.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from altalign import storage
from altalign.audit import forms, rows
from altalign.audit.run_folder import RunFolder
from altalign.data.purposes import OPPOSABLE, PURPOSES
from altalign.data.reasons import Stage
from altalign.filters import one_url
from altalign.filters.reservations import NOTATIONS, Said, opposed, product_token
from altalign.machine import interrupts
from altalign.pipelines import card

_LOOKED_AT = (Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE, Stage.SELECT)
_COLUMNS = ("preferences", "image_url")
_FOLDERS = {"shards": _COLUMNS} | {storage.join("dropped", stage): (*_COLUMNS, "reason") for stage in _LOOKED_AT}
_OUTCOMES = ("nobody_looked", "nothing_found", "something_said")
_SECTIONS = {
    "looked_for": "1. What was looked for",
    "pairs": "2. Pairs",
    "by_purpose": "3. What each purpose keeps",
    "by_notation": "4. By notation",
    "by_month": "5. By month",
    "by_domain": "6. By registered domain",
}
_FORM = "What rights holders said of the use of their works"


def write(run: RunFolder, folder: str) -> list[str]:
    """Write `reservations.md` and `reservations.json`; returns the paths. UnreadableError: there is no such column."""
    return forms.write(folder, "reservations", "Reservations of rights", _SECTIONS, gathered(run))


def gathered(run: RunFolder) -> dict[str, Any]:
    """What was said in a run, by the sections of the form."""
    counted, config, fetch = _Counted(run), run.config, run.facts["stages"].get("fetch", {})
    for folder, columns in _FOLDERS.items():
        for name in storage.names(run.path(folder), ".parquet"):
            for group in rows.row_groups(run.path(folder, name), columns):
                counted.add(group)
    looked_for: dict[str, Any] = {
        "places": card.looked_for(config),
        "notations": list(card.notations_looked_for(config)),
        "purpose": config.fetch.purpose,
    }
    if config.fetch.source == "web":
        looked_for["on_the_web"] = {name: fetch.get(name) for name in ("started", "finished")}
    return {"form": _FORM, "looked_for": looked_for, **counted.to_json()}


class _Counted:
    """Counts of pairs: by section of the form, then by row, then by column."""

    def __init__(self, run: RunFolder):
        token = product_token(run.config.fetch.user_agent_sent)
        self._opposed = lru_cache(maxsize=1 << 16)(
            lambda said: {purpose: opposed(said, purpose, token) for purpose in PURPOSES}
        )
        self._places = {place: Counter[str]() for place in ("kept", "opted_out", "dropped")}
        self._notations = defaultdict[tuple[str, str], Counter[str]](Counter)
        self._months, self._domains = Counter[tuple[str, str]](), defaultdict[str, Counter[str]](Counter)

    def add(self, batch: pa.Table) -> None:
        """Count the rows of a batch; those without a reason were kept."""
        interrupts.check()
        for row in batch.to_pylist():
            said, reason = row["preferences"], row.get("reason")
            dropped = reason and ("opted_out" if reason.startswith("opt_out") else "dropped")
            place, domain = self._places[dropped or "kept"], self._domains[one_url.domain_of(row["image_url"])]
            place["nobody_looked" if said is None else "something_said" if said else "nothing_found"] += 1
            domain["pairs"] += 1
            if said:
                self._count(place, domain, [Said(**each) for each in said])

    def _count(self, place: Counter[str], domain: Counter[str], said: Sequence[Said]) -> None:
        by_purpose = self._opposed(tuple(each._replace(when=None) for each in said))
        against = [purpose for purpose, notations in by_purpose.items() if notations]
        domain.update(["with_a_statement", *against])
        place.update([*against, *["any"] * bool(against)])
        for notation, where in {(each.notation, each.where) for each in said}:
            columns = [purpose for purpose, notations in by_purpose.items() if notation in notations]
            self._notations[notation, where].update(["pairs", *columns])
        self._months.update({((each.when or "")[:7], each.notation) for each in said})

    def to_json(self) -> dict[str, Any]:
        """The counts, by the sections of the form."""

        def against(of: Counter[str]) -> dict[str, int]:
            return {f"against_{purpose}": of[purpose] for purpose in OPPOSABLE}

        kept, opted_out = self._places["kept"], self._places["opted_out"]
        notations = sorted(self._notations.items(), key=lambda each: (NOTATIONS.index(each[0][0]), each[0]))
        names = ("with_a_statement", "pairs")
        domains = sorted(self._domains.items(), key=lambda each: (*(-each[1][name] for name in names), each[0]))
        return {
            "pairs": {place: {each: of[each] for each in _OUTCOMES} for place, of in self._places.items()},
            "by_purpose": [
                {"purpose": purpose, "kept_that_it_would_drop": kept[purpose]}
                | {"opted_out_that_it_would_not_drop": opted_out["any"] - opted_out[purpose]}
                for purpose in PURPOSES
            ],
            "by_notation": [
                {"notation": notation, "where": where, "pairs": of["pairs"], **against(of)}
                for (notation, where), of in notations
            ],
            "by_month": [
                {"month": month or None, "notation": notation, "pairs": count}
                for (month, notation), count in sorted(self._months.items())
            ],
            "by_domain": [
                {"domain": domain or None, **{name: of[name] for name in names}, **against(of)}
                for domain, of in domains
            ],
        }
