"""`altalign audit RUN_A RUN_B`: settings that differ, counts side by side, and pairs whose verdict changed.

It prints all that, or writes it as a page with pictures, too.
"""

import io
import json
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from altalign import storage, terminal
from altalign.audit import compare_pairs, run_parquet
from altalign.audit.compare_pairs import ABSENT_NAME, Joined
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import KEPT, REASONS, Stage
from altalign.data.schema import COUNTS
from altalign.data.stages import own_files
from altalign.settings.common import flatten
from altalign.terminal import many, shown

CAPTION_AT_MOST = 100  # characters of a caption that are printed
EXAMPLES, EXAMPLES_OF_PAGE = 3, 12  # pairs of each change: printed, and on the page
_TEXT, _NUMBER = pa.string(), pa.int64()
_TABLES = {
    "settings": pa.schema([("name", _TEXT), ("a", _TEXT), ("b", _TEXT)]),
    "counts": pa.schema([("stage", _TEXT), ("reason", _TEXT), ("a", _NUMBER), ("b", _NUMBER)]),
    "verdicts": pa.schema([("from", _TEXT), ("to", _TEXT), ("pairs", _NUMBER)]),
    "examples": pa.schema([(name, _TEXT) for name in ("from", "to", "key", "caption", "image_url")]),
}


@dataclass(frozen=True)
class Side:
    """What a comparison needs of a run. Read without the settings class, for another version may have made it."""

    run: RunFolder
    settings: dict[str, Any]  # by dotted name, versions among them
    counts: Counter[tuple[str, str]]  # rows by stage and reason
    summary: dict[str, Any]

    @classmethod
    def of(cls, folder: str) -> "Side":
        """Opens a run.

        Raises UsageError: it is not a run, or is not finished; DamagedError: a file of the run cannot be read.
        """
        with own_files(folder):
            run = RunFolder.open(folder)
            run.check_finished("there is nothing to compare yet")
            manifest, settings = storage.read_json(run.path("manifest.json")), dict(flatten(run.settings))
            versions = {name: manifest.get(name) for name in ("rules_version", "schema_version")}
            counts = Counter[tuple[str, str]]()
            for rows in run_parquet.row_groups(run.path("counts.parquet"), COUNTS.names):
                for row in rows.to_pylist():
                    counts[row["stage"], row["reason"]] += row["rows"]
            settings = {"altalign": run.facts.get("altalign"), **versions, **settings}
            return cls(run, settings, counts, storage.read_json(run.path("summary.json")))

    @property
    def keeps_dropped(self) -> bool:
        """Whether the run kept its dropped rows."""
        return self.settings.get("audit.keep_dropped") is not False

    def verdict(self, name: str) -> str:
        """A verdict in words: of a pair that is in no file of the run, what that means."""
        absent = "not in its pool" if self.keeps_dropped else "dropped, or not in its pool"
        return absent if name == ABSENT_NAME else name

    def setting(self, name: str) -> str:
        """A setting as JSON, or "absent"."""
        return json.dumps(self.settings[name], ensure_ascii=False, default=str) if name in self.settings else "absent"


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
        return self._table("settings")

    @property
    def counts(self) -> pa.Table:
        """Rows of both runs by stage and reason."""
        return self._table("counts")

    @property
    def verdicts(self) -> pa.Table:
        """Number of pairs by their verdict in both runs; changes first, largest first."""
        return self._table("verdicts")

    @property
    def examples(self) -> pa.Table:
        """Some pairs of each change of verdict."""
        return self._table("examples")

    def _table(self, name: str) -> pa.Table:
        return pa.Table.from_pylist(self._found[name], _TABLES[name])

    def to_json(self) -> dict[str, Any]:
        """All of it, as `altalign audit RUN_A RUN_B --json` prints it; what two runs have is a list of two."""
        return self._found

    def write_page(self, path: str) -> None:
        """Writes all of it with pictures, as one HTML file."""
        from altalign.audit.report import comparison  # templates and decoders, which a terminal need not wait for

        pixels_at_most = max(int(side.settings.get("image.pixels_at_most", 0)) for side in (self.a, self.b))
        pairs = [(self.a.verdict(each.before), self.b.verdict(each.after), each) for each in self.joined.examples]
        with own_files(self.a.run.folder), own_files(self.b.run.folder):
            storage.write_bytes(path, comparison.html(self._found, pairs, pixels_at_most))

    def show(self, out: Console) -> None:
        """Prints all of it."""
        _print(self._found, out)

    def __repr__(self) -> str:
        text = io.StringIO()
        self.show(terminal.into(text))
        return text.getvalue().rstrip()

    @cached_property
    def _found(self) -> dict[str, Any]:
        a, b = sides = self.a, self.b
        cells = sorted(self.joined.pairs.items(), key=lambda cell: (cell[0][0] == cell[0][1], -cell[1], cell[0]))
        number, examples = Counter[tuple[str, str]](), list[dict[str, str | None]]()
        for each in self.joined.examples:
            number[each.before, each.after] += 1
            if number[each.before, each.after] <= EXAMPLES:
                verdicts = {"from": a.verdict(each.before), "to": b.verdict(each.after)}
                examples.append({**verdicts, "key": each.key, "caption": each.caption, "image_url": each.image_url})
        return {
            "runs": [side.run.folder for side in sides],
            "settings": [
                {"name": name, "a": a.setting(name), "b": b.setting(name)}
                for name in dict.fromkeys((*a.settings, *b.settings))
                if a.setting(name) != b.setting(name)
            ],
            "counts": _counts(a.counts, b.counts),
            "totals": {name: [side.summary.get(name) for side in sides] for name in ("pairs", "images", "bytes")},
            "verdicts": [{"from": a.verdict(x), "to": b.verdict(y), "pairs": pairs} for (x, y), pairs in cells],
            "examples": examples,
            "notes": _notes(a, b),
        }


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


def _counts(a: Counter[tuple[str, str]], b: Counter[tuple[str, str]]) -> list[dict[str, str | int]]:
    """Rows of both runs by stage and reason (or "received", "kept"), in the order of stages and rules."""
    rows = []
    for stage in dict.fromkeys([*map(str, Stage), *(stage for stage, _ in (*a, *b))]):
        known = REASONS[Stage(stage)] if stage in {*map(str, Stage)} else ()
        others = sorted({reason for of, reason in (*a, *b) if of == stage} - {*known, KEPT})
        received = [sum(number for (of, _), number in counts.items() if of == stage) for counts in (a, b)]
        if any(received):
            of_reasons = [(reason, [a[stage, reason], b[stage, reason]]) for reason in (*known, *others)]
            of_reasons = [(reason, both) for reason, both in of_reasons if any(both)]
            of_reasons = [("received", received), *of_reasons, (KEPT, [a[stage, KEPT], b[stage, KEPT]])]
            rows += [{"stage": stage, "reason": reason, "a": x, "b": y} for reason, (x, y) in of_reasons]
    return rows


def _notes(a: Side, b: Side) -> list[str]:
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


# For people -----------------------------------------------------------------------------------------------------------


def _print(found: dict[str, Any], out: Console) -> None:
    for name, folder in zip("AB", found["runs"], strict=True):
        out.print(f"{name}: {shown(folder)}", soft_wrap=True)
    if found["settings"]:
        table = _table("setting", "A", "B")
        for row in found["settings"]:
            table.add_row(*map(shown, row.values()))
        out.print(table)
    else:
        out.print("settings and versions are the same")
    table = _table("stage", "", numbers=("A", "B", "B - A"))
    for stage, reason, before, after in map(dict.values, found["counts"]):
        is_first, is_last = reason == "received", reason == KEPT
        more = f"{after - before:+,}" if after != before else ""
        style = "bold" if is_first else "green" if is_last else None
        cells = shown(stage) if is_first else "", shown(reason), f"{before:,}", f"{after:,}", more
        table.add_row(*cells, style=style, end_section=is_last)
    out.print(table)
    totals = ((name, before or 0, after or 0) for name, (before, after) in found["totals"].items())
    out.print("; ".join(f"{before:,} {name}, then {after:,}" for name, before, after in totals), soft_wrap=True)
    _print_stages(found["verdicts"], out)
    _print_changes(found, out)
    for note in found["notes"]:
        out.print(note, soft_wrap=True)


def _table(*texts: str, numbers: tuple[str, ...] = ()) -> Table:
    table = Table()
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _print_stages(verdicts: list[dict[str, Any]], out: Console) -> None:
    """Prints a matrix of pairs by the stage that drops them: in A (rows) and in B (columns)."""
    pairs = Counter[tuple[str, str]]()
    for each in verdicts:
        pairs[each["from"].partition(":")[0], each["to"].partition(":")[0]] += each["pairs"]
    order = [KEPT, *reversed([str(stage) for stage in Stage])]

    def place(name: str) -> tuple[int, str]:  # those that this version does not know, then what is not in a run
        return (order.index(name) if name in order else len(order) + (" " in name), name)

    rows, columns = (sorted({names[side] for names in pairs}, key=place) for side in range(2))
    table = _table("A \\ B", numbers=tuple(map(shown, columns)))
    for before in rows:
        cells = (pairs.get((before, after)) for after in columns)
        table.add_row(shown(before), *("" if number is None else f"{number:,}" for number in cells))
    out.print("pairs by the stage that drops them (or kept), in A (rows) and in B (columns)")
    out.print(table)


def _print_changes(found: dict[str, Any], out: Console) -> None:
    """Prints every change of verdict, largest first, each with some pairs."""
    changes = [each for each in found["verdicts"] if each["from"] != each["to"]]
    if not changes:
        out.print("no pair changed its verdict")
    for change in changes:
        names = change["from"], change["to"]
        out.print(f"{many(change['pairs'], 'pair')}: {shown(' -> '.join(names))}", style="bold", soft_wrap=True)
        for each in found["examples"]:
            if (each["from"], each["to"]) == names:
                caption = each["caption"]
                cut = caption[:CAPTION_AT_MOST] + ("…" if len(caption) > CAPTION_AT_MOST else "")
                out.print(f"  {each['key']} {shown(cut)}", soft_wrap=True)
