"""`altalign audit RUN_A RUN_B`: settings that differ, counts side by side, and pairs whose verdict changed.

It prints all that, or writes it as a page with pictures, too.
"""

import io
import json
import sys
from dataclasses import dataclass
from typing import Any, TypedDict

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from altalign import storage, terminal
from altalign.audit import compare_pairs, run_parquet
from altalign.audit.compare_pairs import ABSENT_NAME, Example, Joined
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import KEPT, REASONS, Stage
from altalign.data.schema import COUNTS
from altalign.data.stages import own_files
from altalign.settings.common import flatten
from altalign.terminal import shown

CAPTION_AT_MOST = 100  # characters of a caption that are printed
EXAMPLES, EXAMPLES_OF_PAGE = 3, 12  # pairs of each change: printed, and on the page


@dataclass(frozen=True)
class Side:
    """What a comparison needs of a run. Read without the settings class, for another version may have made it."""

    run: RunFolder
    settings: dict[str, Any]  # by dotted name, versions among them
    counts: dict[tuple[str, str], int]  # rows by stage and reason
    summary: dict[str, Any]

    @classmethod
    def of(cls, folder: str) -> "Side":
        """Opens a run.

        Raises:
            UsageError: it is not a run, or is not finished.
            DamagedError: a file of the run cannot be read.
        """
        with own_files(folder):
            run = RunFolder.open(folder)
            run.check_finished("there is nothing to compare yet")
            manifest, settings = storage.read_json(run.path("manifest.json")), dict(flatten(run.settings))
            versions = {
                "altalign": run.facts.get("altalign"),
                **{name: manifest.get(name) for name in ("rules_version", "schema_version")},
            }
            counts: dict[tuple[str, str], int] = {}
            for rows in run_parquet.row_groups(run.path("counts.parquet"), COUNTS.names):
                for row in rows.to_pylist():
                    name = row["stage"], row["reason"]
                    counts[name] = counts.get(name, 0) + row["rows"]
            return cls(run, {**versions, **settings}, counts, storage.read_json(run.path("summary.json")))

    @property
    def keeps_dropped(self) -> bool:
        """Whether the run kept its dropped rows."""
        return self.settings.get("audit.keep_dropped") is not False

    @property
    def absent(self) -> str:
        """How to describe a pair that is in no file of the run."""
        return "not in its pool" if self.keeps_dropped else "dropped, or not in its pool"


_SETTINGS = pa.schema([(name, pa.string()) for name in ("name", "a", "b")])
_COUNTS = pa.schema([("stage", pa.string()), ("reason", pa.string()), ("a", pa.int64()), ("b", pa.int64())])
_VERDICTS = pa.schema([("from", pa.string()), ("to", pa.string()), ("pairs", pa.int64())])
_EXAMPLES = pa.schema([(name, pa.string()) for name in ("from", "to", "key", "caption", "image_url")])


class AsJson(TypedDict):
    """A comparison as `altalign audit RUN_A RUN_B --json` prints it; what two runs have is a list of two."""

    runs: list[str]
    settings: list[dict[str, str]]
    counts: list[dict[str, str | int]]
    totals: dict[str, list[int | None]]
    verdicts: list[dict[str, str | int]]
    examples: list[dict[str, str | None]]
    notes: list[str]


@dataclass(frozen=True, repr=False)
class Comparison:
    """What differs between two runs."""

    a: Side
    b: Side
    joined: Joined

    @classmethod
    def of(cls, run_a: str, run_b: str, *, examples: int = EXAMPLES) -> "Comparison":
        """Compares two finished runs; `examples` is how many pairs of each change are looked up.

        Raises:
            UsageError: a folder is not a finished run.
            DamagedError: a file of a run cannot be read.
        """
        sides = Side.of(run_a), Side.of(run_b)
        with own_files(run_a), own_files(run_b):
            return cls(*sides, compare_pairs.join([side.run for side in sides], examples))

    @property
    def settings(self) -> pa.Table:
        """Settings and versions that differ: name, and both values as JSON."""
        return pa.Table.from_pylist(self.to_json()["settings"], _SETTINGS)

    @property
    def counts(self) -> pa.Table:
        """Rows of both runs by stage and reason."""
        return pa.Table.from_pylist(self.to_json()["counts"], _COUNTS)

    @property
    def verdicts(self) -> pa.Table:
        """Number of pairs by their verdict in both runs; changes first, largest first."""
        return pa.Table.from_pylist(self.to_json()["verdicts"], _VERDICTS)

    @property
    def examples(self) -> pa.Table:
        """Some pairs of each change of verdict."""
        return pa.Table.from_pylist(self.to_json()["examples"], _EXAMPLES)

    def write_page(self, path: str) -> None:
        """Writes all of it with pictures, as one HTML file."""
        with own_files(self.a.run.folder), own_files(self.b.run.folder):
            storage.write_bytes(path, _page(self.a, self.b, self.joined))

    def to_json(self) -> AsJson:
        """All of it, as `altalign audit RUN_A RUN_B --json` prints it."""
        return _as_json(self.a, self.b, self.joined)

    def show(self, out: Console) -> None:
        """Prints all of it."""
        _print(self.a, self.b, self.joined, out)

    def __repr__(self) -> str:
        text = io.StringIO()
        self.show(terminal.into(text))
        return text.getvalue().rstrip()


def main(run_a: str, run_b: str, *, as_json: bool = False, page: str | None = None) -> int:
    """Compares two finished runs and prints what differs; returns 0 whatever that is. Raises as `Comparison.of`.

    `page` is where it writes the same with pictures, as one HTML file.
    """
    found = Comparison.of(run_a, run_b, examples=EXAMPLES_OF_PAGE if page else EXAMPLES)
    if page:
        found.write_page(page)
    if as_json:
        json.dump(found.to_json(), sys.stdout, indent=2)  # ASCII, so it is safe on a terminal
        sys.stdout.write("\n")
    else:
        found.show(terminal.stdout())
    if page and not as_json:
        sys.stdout.write(f"page: {shown(page)}\n")
    return 0


# What differs ---------------------------------------------------------------------------------------------------------


def settings_that_differ(a: Side, b: Side) -> list[tuple[str, str, str]]:
    """The name and both values (as JSON) of each setting that differs; "absent" if a run has no such setting."""
    names = [*a.settings, *(name for name in b.settings if name not in a.settings)]
    return [(name, _value(a, name), _value(b, name)) for name in names if _value(a, name) != _value(b, name)]


def _value(side: Side, name: str) -> str:
    return json.dumps(side.settings[name], ensure_ascii=False, default=str) if name in side.settings else "absent"


def counts_side_by_side(a: Side, b: Side) -> list[tuple[str, str, int, int]]:
    """Rows of both runs by stage and reason (or "received", "kept"), in the order of stages and rules.

    Reasons that this version does not know come last in their stage.
    """
    rows = []
    names = [*dict.fromkeys([*map(str, Stage), *(stage for stage, _ in [*a.counts, *b.counts])])]
    for stage in names:
        known = [str(reason) for reason in REASONS[Stage(stage)]] if stage in {*map(str, Stage)} else []
        others = sorted({reason for of, reason in [*a.counts, *b.counts] if of == stage} - {*known, KEPT})
        received = [sum(number for (of, _), number in side.counts.items() if of == stage) for side in (a, b)]
        if any(received):
            rows.append((stage, "received", *received))
        for reason in [*known, *others, KEPT]:
            both = [side.counts.get((stage, reason), 0) for side in (a, b)]
            if any(both) or (reason == KEPT and any(received)):
                rows.append((stage, reason, *both))
    return rows


def notes(a: Side, b: Side) -> list[str]:
    """What a reader needs to know, and what this comparison cannot tell."""
    found = [
        "pairs are joined by key (image and cleaned caption); "
        "what extract drops (no alt-text, no URL) is left out, for only a sample of it is kept",
    ]
    if a.settings["rules_version"] != b.settings["rules_version"]:
        found.append(
            "the runs have different versions of the rules: if these clean a caption or read a URL differently, "
            "a pair counts twice, once in each pool"
        )
    for name, side in (("A", a), ("B", b)):
        if not side.keeps_dropped:
            found.append(
                f"{name} has [audit] keep_dropped = false, so it is unknown why it dropped a pair or if it saw it; "
                "its counts are exact"
            )
    return found


def _named(joined: Joined, a: Side, b: Side) -> list[tuple[str, str, int]]:
    """Both verdicts and the number of pairs, with absence described for each run; changes first, largest first."""
    cells = sorted(joined.pairs.items(), key=lambda cell: (cell[0][0] == cell[0][1], -cell[1], cell[0]))
    return [(_verdict(before, a), _verdict(after, b), number) for (before, after), number in cells]


def _verdict(name: str, side: Side) -> str:
    return side.absent if name == ABSENT_NAME else name


# As JSON, and for people ----------------------------------------------------------------------------------------------


def _as_json(a: Side, b: Side, joined: Joined) -> AsJson:
    return {
        "runs": [a.run.folder, b.run.folder],
        "settings": [{"name": name, "a": before, "b": after} for name, before, after in settings_that_differ(a, b)],
        "counts": [
            {"stage": stage, "reason": reason, "a": before, "b": after}
            for stage, reason, before, after in counts_side_by_side(a, b)
        ],
        "totals": {name: [side.summary.get(name) for side in (a, b)] for name in ("pairs", "images", "bytes")},
        "verdicts": [{"from": before, "to": after, "pairs": number} for before, after, number in _named(joined, a, b)],
        "examples": [
            {"from": _verdict(each.before, a), "to": _verdict(each.after, b)}
            | {"key": each.key, "caption": each.caption, "image_url": each.image_url}
            for each in _first(joined.examples)
        ],
        "notes": notes(a, b),
    }


def _page(a: Side, b: Side, joined: Joined) -> bytes:
    from altalign.audit.report import comparison  # templates and decoders, which a terminal need not wait for

    return comparison.html(
        comparison.Compared(
            folders=[side.run.folder for side in (a, b)],
            settings=settings_that_differ(a, b),
            counts=counts_side_by_side(a, b),
            totals={name: (a.summary.get(name, 0), b.summary.get(name, 0)) for name in ("pairs", "images", "bytes")},
            changes=[change for change in _named(joined, a, b) if change[0] != change[1]],
            examples=[(_verdict(each.before, a), _verdict(each.after, b), each) for each in joined.examples],
            notes=notes(a, b),
            pixels_at_most=max(int(side.settings.get("image.pixels_at_most", 0)) for side in (a, b)),
        )
    )


def _print(a: Side, b: Side, joined: Joined, out: Console) -> None:
    for name, side in (("A", a), ("B", b)):
        out.print(f"{name}: {shown(side.run.folder)}", soft_wrap=True)
    differ = settings_that_differ(a, b)
    if differ:
        table = _table("setting", "A", "B")
        for row in differ:
            table.add_row(*map(shown, row))
        out.print(table)
    else:
        out.print("settings and versions are the same")
    table = _table("stage", "", numbers=("A", "B", "B - A"))
    for stage, reason, before, after in counts_side_by_side(a, b):
        is_first, is_last = reason == "received", reason == KEPT
        more = f"{after - before:+,}" if after != before else ""
        style = "bold" if is_first else "green" if is_last else None
        cells = shown(stage) if is_first else "", shown(reason), f"{before:,}", f"{after:,}", more
        table.add_row(*cells, style=style, end_section=is_last)
    out.print(table)
    totals = ((name, a.summary.get(name, 0), b.summary.get(name, 0)) for name in ("pairs", "images", "bytes"))
    out.print("; ".join(f"{before:,} {name}, then {after:,}" for name, before, after in totals), soft_wrap=True)
    _print_stages(a, b, joined, out)
    _print_changes(a, b, joined, out)
    for note in notes(a, b):
        out.print(note, soft_wrap=True)


def _table(*texts: str, numbers: tuple[str, ...] = ()) -> Table:
    table = Table()
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _print_stages(a: Side, b: Side, joined: Joined, out: Console) -> None:
    """Prints a matrix of pairs by the stage that drops them: in A (rows) and in B (columns)."""
    order = [KEPT, *reversed([str(stage) for stage in Stage]), ABSENT_NAME]
    met = {name.partition(":")[0] for names in joined.pairs for name in names}
    stages = [*(name for name in order if name in met), *sorted(met - {*order})]
    pairs: dict[tuple[str, str], int] = {}
    for names, number in joined.pairs.items():
        before, after = (name.partition(":")[0] for name in names)
        pairs[before, after] = pairs.get((before, after), 0) + number
    columns = [name for name in stages if any(after == name for _, after in pairs)]
    table = _table("A \\ B", numbers=tuple(shown(_verdict(name, b)) for name in columns))
    for before in stages:
        cells = [pairs.get((before, after)) for after in columns]
        if any(cells):
            table.add_row(shown(_verdict(before, a)), *("" if number is None else f"{number:,}" for number in cells))
    out.print("pairs by the stage that drops them (or kept), in A (rows) and in B (columns)")
    out.print(table)


def _print_changes(a: Side, b: Side, joined: Joined, out: Console) -> None:
    """Prints every change of verdict, largest first, each with some pairs."""
    changes = [(names, number) for names, number in joined.pairs.items() if names[0] != names[1]]
    if not changes:
        out.print("no pair changed its verdict")
        return
    for (before, after), number in sorted(changes, key=lambda change: (-change[1], change[0])):
        pairs, change = "pair" if number == 1 else "pairs", f"{_verdict(before, a)} -> {_verdict(after, b)}"
        out.print(f"{number:,} {pairs}: {shown(change)}", style="bold", soft_wrap=True)
        for each in _first([each for each in joined.examples if (each.before, each.after) == (before, after)]):
            cut = each.caption[:CAPTION_AT_MOST] + ("…" if len(each.caption) > CAPTION_AT_MOST else "")
            out.print(f"  {each.key} {shown(cut)}", soft_wrap=True)


def _first(examples: list[Example]) -> list[Example]:
    """The first `EXAMPLES` of each change."""
    by_change: dict[tuple[str, str], list[Example]] = {}
    for each in examples:
        by_change.setdefault((each.before, each.after), []).append(each)
    return [each for of_change in by_change.values() for each in of_change[:EXAMPLES]]
