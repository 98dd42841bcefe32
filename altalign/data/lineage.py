"""Where a finished run is from: what its manifest says of the operation and the runs before it, back to a curation."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from altalign import storage
from altalign.errors import AltalignError, UsageError
from altalign.storage import atomic_change

_DIGITS = 12  # of a run's number that are shown


@dataclass(frozen=True)
class Made:
    """A run, by its number (SHA-256 of the list of its files), and how it was made of the runs before it."""

    number: str
    operation: str
    settings: Mapping[str, object]
    parents: "tuple[Made, ...]" = ()

    def to_json(self) -> dict[str, object]:
        """The same as JSON."""
        facts: dict[str, object] = {"number": self.number, "operation": self.operation, "settings": dict(self.settings)}
        return facts | {"of": [each.to_json() for each in self.parents]}

    def respected(self, purpose: str) -> set[str]:
        """The purposes that it respects: its curation's, and those of selections; of several runs, what all respect."""
        of_parents = [each.respected(purpose) for each in self.parents]
        found = set.intersection(*of_parents) if of_parents else {purpose} - {"keep all"}
        return found | {str(self.settings["respect"])} if self.settings.get("respect") else found


def of_run(folder: str) -> Made:
    """The lineage of a finished run; UsageError where it is not finished, or no run."""
    atomic_change.settle(folder)
    manifest = storage.read_sealed(storage.join(folder, "manifest.json"))
    if not manifest:
        raise UsageError(f"{folder}: no finished run (it has no manifest.json); give the folder of a run")
    return from_facts(str(manifest.get("files", {}).get("sha256", "")), manifest.get("lineage"))


def from_facts(number: str, facts: Mapping[str, Any] | None) -> Made:
    """The lineage of a run of this number, of what its manifest says of it (None: of nothing, it was curated)."""
    if facts is None:
        return Made(number, "curate", {})
    numbers = facts.get("parents", [])
    before = facts.get("before") or [None] * len(numbers)
    parents = tuple(from_facts(parent, lineage) for parent, lineage in zip(numbers, before, strict=True))
    return Made(number, str(facts.get("operation", "")), facts.get("settings", {}), parents)


def is_merged(folder: str) -> bool:
    """Whether a finished run, or one that it was made of, was merged of several."""
    return has(folder, "merge")


def has(folder: str, operation: str) -> bool:
    """Whether a finished run, or one that it was made of, was made by an operation, such as `add`."""
    with suppress(AltalignError, OSError):  # whoever looks at the manifest says what is wrong with it
        runs = [of_run(folder)]
        while runs:
            if (made := runs.pop()).operation == operation:
                return True
            runs += made.parents
    return False


def drawn(made: Made, name: str = "") -> Iterator[str]:
    """The lineage as lines: the run, then what it was made of, further to the right."""
    settings = json.dumps(dict(made.settings), ensure_ascii=False) if made.settings else ""
    yield " ".join(filter(None, [name, made.number[:_DIGITS], made.operation, settings]))
    for place, each in enumerate(made.parents, start=1):
        begin, further = ("├─ ", "│  ") if place < len(made.parents) else ("└─ ", "   ")
        for number, line in enumerate(drawn(each)):
            yield f"{further if number else begin}{line}"
