"""`altalign audit RUN --reservations`: what rights holders said, of which domains, when, and what it means by purpose.

Counted are the pairs whose images were looked at: those in the shards, and those that `fetch` or a later stage dropped.
Of a pair that `fetch` dropped nobody knows what later rules would have said, nor what else its rights holder says: the
search ends with what opposes the purpose.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.audit import forms, rows
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import Stage
from altalign.filters import one_url
from altalign.filters.reservations import NOTATIONS, PURPOSES, Said, opposed, product_token
from altalign.machine import interrupts
from altalign.pipelines import card

_LOOKED_AT = (Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE, Stage.SELECT)
_COLUMNS = ("preferences", "image_url")
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
    counted, config = _Counted(product_token(run.config.fetch.user_agent_sent)), run.config
    for place, batch in _batches(run):
        counted.add(place, batch)
    fetch = run.facts["stages"].get("fetch", {})
    times = {name: fetch.get(name) for name in ("started", "finished")} if config.fetch.source == "web" else None
    return {
        "form": _FORM,
        "looked_for": {"places": card.looked_for(config), "notations": list(NOTATIONS), "purpose": config.fetch.purpose}
        | {"on_the_web": times},
        **counted.to_json(),
    }


def _batches(run: RunFolder) -> Iterator[tuple[str, pa.Table]]:
    """Yields the rows that are counted, and where they are: `kept`, `opted out`, or `dropped` for another reason."""
    for name in storage.names(run.path("shards"), ".parquet"):
        for group in rows.row_groups(run.path("shards", name), _COLUMNS):
            yield "kept", group
    for stage in _LOOKED_AT:
        for name in storage.names(run.path("dropped", stage.value), ".parquet"):
            for group in rows.row_groups(run.path("dropped", stage.value, name), (*_COLUMNS, "reason")):
                is_opt_out = pc.starts_with(group["reason"], "opt_out")
                yield "opted out", group.filter(is_opt_out)
                yield "dropped", group.filter(pc.invert(is_opt_out))


class _Counted:
    """Counts of pairs."""

    def __init__(self, token: str):
        self._opposed = lru_cache(maxsize=1 << 16)(
            lambda said: {purpose: opposed(said, purpose, token) for purpose in PURPOSES}
        )
        self._pairs, self._purposes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        self._notations, self._months = Counter[tuple[str, str, str]](), Counter[tuple[str, str]]()
        self._domains = dict[str, Counter[str]]()

    def add(self, place: str, batch: pa.Table) -> None:
        """Count the rows of a batch."""
        interrupts.check()
        said: Any = batch["preferences"].combine_chunks()
        lengths: Any = pc.list_value_length(said).fill_null(-1)
        found = lengths.to_numpy()
        self._pairs[place, "nobody looked"] += int((found < 0).sum())
        self._pairs[place, "nothing found"] += int((found == 0).sum())
        domains = [*map(one_url.domain_of, batch["image_url"].to_pylist())]
        for domain, count in Counter(domains).items():
            self._domains.setdefault(domain, Counter())["pairs"] += count
        numbers = np.flatnonzero(found > 0)
        for number, statements in zip(numbers.tolist(), said.take(numbers).to_pylist(), strict=True):
            self._pairs[place, "something said"] += 1
            self._count(place, self._domains[domains[number]], [Said(**each) for each in statements])

    def _count(self, place: str, domain: Counter[str], said: Sequence[Said]) -> None:
        by_purpose = self._opposed(tuple(each._replace(when=None) for each in said))
        domain["with_a_statement"] += 1
        for notation, where in {(each.notation, each.where) for each in said}:
            self._notations[notation, where, "pairs"] += 1
            for purpose, notations in by_purpose.items():
                self._notations[notation, where, purpose] += notation in notations
        for notation, month in {(each.notation, (each.when or "")[:7]) for each in said}:
            self._months[month, notation] += 1
        for purpose, notations in by_purpose.items():
            domain[purpose] += bool(notations)
            self._purposes[place, purpose] += bool(notations)
        self._purposes[place, "any"] += any(by_purpose.values())

    def to_json(self) -> dict[str, Any]:
        """The counts, by the sections of the form."""
        places = ("kept", "opted out", "dropped")
        outcomes = ("nobody looked", "nothing found", "something said")
        against = [purpose for purpose in PURPOSES if purpose != "keep all"]
        return {
            "pairs": {
                place.replace(" ", "_"): {each.replace(" ", "_"): self._pairs[place, each] for each in outcomes}
                for place in places
            },
            "by_purpose": [
                {
                    "purpose": purpose,
                    "kept_that_it_would_drop": self._purposes["kept", purpose],
                    "opted_out_that_it_would_not_drop": self._purposes["opted out", "any"]
                    - self._purposes["opted out", purpose],
                }
                for purpose in PURPOSES
            ],
            "by_notation": [
                {"notation": notation, "where": where, "pairs": count}
                | {f"against_{purpose}": self._notations[notation, where, purpose] for purpose in against}
                for (notation, where, what), count in sorted(
                    self._notations.items(), key=lambda each: (NOTATIONS.index(each[0][0]), each[0])
                )
                if what == "pairs"
            ],
            "by_month": [
                {"month": month or None, "notation": notation, "pairs": count}
                for (month, notation), count in sorted(self._months.items())
            ],
            "by_domain": [
                {"domain": domain or None, "pairs": of["pairs"], "with_a_statement": of["with_a_statement"]}
                | {f"against_{purpose}": of[purpose] for purpose in against}
                for domain, of in sorted(
                    self._domains.items(), key=lambda each: (-each[1]["with_a_statement"], -each[1]["pairs"], each[0])
                )
            ],
        }
