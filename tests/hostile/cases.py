"""What a case of the corpus is: one bad file, and what a run makes of it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

NONE: Mapping[str, int] = {}
BROKEN: Mapping[str, int] = {"record_broken": 1}


@dataclass(frozen=True)
class Case:
    """A bad file and its outcome.

    Good records stand before and after what is bad in it: its neighbours, which are kept.

    Attributes:
        about: what is bad, in a few words; the name of the file and the `source` of its pairs follow from it.
        kind: of the input.
        suffix: of the file's name.
        build: the file's bytes from the name of the case, the same each time; of a folder, those of a tar of it.
        dropped: how many rows a run drops of the file, by reason. A file that cannot be read is one broken record where
        `skip_unreadable` is set.
        kept: captions that are kept beside those of the neighbours, one an image.
        before: whether a good record before what is bad is kept.
        after: the same of one after it.
        error: what is said of the broken record, of each of them, or of the file behind its name; `…` stands for
        anything.
        exit_code: of a run on the file alone without `skip_unreadable`; of 1 the run stops at this file, of 2 before
        any work.
        settings: more lines of the `[[input]]`.
    """

    about: str
    kind: Literal["warc", "wat", "table", "webdataset", "folder"]
    suffix: str
    build: Callable[[str], bytes]
    dropped: Mapping[str, int] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    before: bool = True
    after: bool = True
    error: str = ""
    exit_code: int = 0
    settings: str = ""

    @property
    def name(self) -> str:
        """Name of the case: what is bad, in lower-case letters, digits and hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.about.lower()).strip("-")

    @property
    def file(self) -> str:
        """Name of the file."""
        return self.name + self.suffix

    @property
    def captions(self) -> list[str]:
        """All captions that are kept, sorted."""
        neighbours = [
            caption
            for caption, is_kept in ((before(self.name), self.before), (after(self.name), self.after))
            if is_kept
        ]
        return sorted([*neighbours, *self.kept])

    @property
    def outcome(self) -> str:
        """In a few words, for the table."""
        if self.exit_code:
            return f"Exit code {self.exit_code}: `{self.error}`"
        said = f": {_code(self.error)}" if self.error else ""
        parts = [
            f"{rows:,} x `{reason}`" + (said if reason == "record_broken" else "")
            for reason, rows in self.dropped.items()
        ]
        parts += [
            "kept" if caption.startswith("a picture ") else f"kept: {_code(_shown(caption))}" for caption in self.kept
        ]
        return "; ".join(parts) or "nothing in it counts"


def before(name: str) -> str:
    """Caption of the good record before what is bad in a case."""
    return f"the neighbour before {name.replace('-', ' ')}"


def after(name: str) -> str:
    """Caption of the good record after it."""
    return f"the neighbour after {name.replace('-', ' ')}"


def message(case: Case) -> str:
    """What a run says that stops at the file."""
    what_to_do = "; repair or remove the file, or set skip_unreadable = true" if case.exit_code == 1 else ""
    return f"input/{case.file}: {case.error}{what_to_do}"


def matches(expected: str, said: str) -> bool:
    """Whether this was said, `…` standing for anything."""
    return re.fullmatch(".*".join(map(re.escape, expected.split("…"))), said, re.DOTALL) is not None


def _shown(caption: str) -> str:
    """A caption as ASCII where it would do something to the page it is shown on."""
    return (
        caption
        if caption.isprintable() and "`" not in caption and "|" not in caption
        else caption.encode("unicode_escape").decode()
    )


def _code(text: str) -> str:
    return f"`{text if len(text) <= 100 else text[:99] + '…'}`"
