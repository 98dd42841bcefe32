"""Concepts of a selection that balances: in how many captions each was before, and is after."""

from dataclasses import dataclass

from altalign.audit.report import files
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import BALANCED

SHOWN_AT_MOST = 40


@dataclass(frozen=True)
class Entry:
    """A concept, and the captions that have it."""

    entry: str
    before: int
    after: int


def of_run(run: RunFolder) -> list[Entry]:
    """The entries in most captions, those first; empty of a run that is not balanced."""
    rows = files.table(run, BALANCED)
    return [] if rows is None else [Entry(**row) for row in rows.slice(0, SHOWN_AT_MOST).to_pylist()]
