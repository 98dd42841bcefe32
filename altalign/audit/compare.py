"""`altalign audit RUN_A RUN_B`: settings that differ, counts side by side, and pairs whose verdict changed.

DuckDB joins verdicts by key. `dropped/extract` is only a sample, and `pair_repeated` repeats a pair: neither is read.
"""

import io
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Column, Table

from altalign import storage, terminal
from altalign.audit import rows
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import KEPT, REASONS, DropReason, Stage
from altalign.data.stages import own_files
from altalign.errors import UnreadableError
from altalign.machine import interrupts
from altalign.settings.common import flatten
from altalign.terminal import many, shown

ABSENT = "absent"  # the verdict of a pair that a run does not have
CAPTION_AT_MOST = 100  # characters of a caption that are printed
EXAMPLES, EXAMPLES_OF_PAGE = 3, 12  # pairs of each change: printed, and on the page
_TEXT, _NUMBER = pa.string(), pa.int64()
_TABLES = {
    "settings": pa.schema([("name", _TEXT), ("a", _TEXT), ("b", _TEXT)]),
    "counts": pa.schema([("stage", _TEXT), ("reason", _TEXT), ("a", _NUMBER), ("b", _NUMBER)]),
    "verdicts": pa.schema([("from", _TEXT), ("to", _TEXT), ("pairs", _NUMBER)]),
    "examples": pa.schema([(name, _TEXT) for name in ("from", "to", "key", "caption", "image_url")]),
}

# A pair may be dropped more than once: the smallest verdict counts. KEPT is the smallest of those that a run gives.
_CHANGES = """
    with pairs as (
        select key,
            coalesce(min(verdict) filter (run = 0), 0) as before,
            coalesce(min(verdict) filter (run = 1), 0) as after
        from verdicts group by key
    )
    select before, after, count(*), min(key, ?) from pairs group by before, after order by before, after
"""

# The file of the smallest verdict: where a run kept the pair, it has its image, too.
_FILES = """
    select arg_min(file, (verdict, run, file)), key from verdicts where key in (select unnest(?)) group by key
"""


@dataclass(frozen=True)
class Side:
    """What a comparison needs of a run. Read without the settings class, for another version may have made it."""

    run: RunFolder
    settings: dict[str, Any]  # by dotted name, versions among them
    counts: Counter[tuple[str, str]]  # rows by stage and reason
    summary: dict[str, Any]

    @classmethod
    def open(cls, folder: str) -> "Side":
        """Opens a run.

        Raises UsageError: it is not a run, or is not finished; DamagedError: a file of the run cannot be read.
        """
        with own_files(folder):
            run = RunFolder.open(folder)
            run.check_finished("there is nothing to compare yet")
            manifest, settings = run.json("manifest.json"), dict(flatten(run.settings))
            versions = {name: manifest.get(name) for name in ("rules_version", "schema_version")}
            settings = {"altalign": run.facts.get("altalign"), **versions, **settings}
            return cls(run, settings, rows.by_reason(rows.counts(run)), run.json("summary.json"))

    @property
    def keeps_dropped(self) -> bool:
        """Whether the run kept its dropped rows."""
        return self.settings.get("audit.keep_dropped") is not False

    def verdict(self, name: str) -> str:
        """A verdict in words: of a pair that is in no file of the run, what that means."""
        absent = "not in its pool" if self.keeps_dropped else "dropped, or not in its pool"
        return absent if name == ABSENT else name

    def setting(self, name: str) -> str:
        """A setting as JSON, or "absent"."""
        return json.dumps(self.settings[name], ensure_ascii=False, default=str) if name in self.settings else "absent"


class Example(NamedTuple):
    """A pair that changed its verdict."""

    before: str
    after: str
    key: str
    caption: str
    image_url: str | None
    image: tuple[str, int, int] | None  # tar, offset and length, where a run that kept the pair has it


@dataclass(frozen=True, repr=False)
class Comparison:
    """What differs between two runs."""

    a: Side
    b: Side
    pairs: dict[tuple[str, str], int]  # by both verdicts: `kept`, `STAGE: REASON` or `ABSENT`
    pairs_shown: list[Example]

    @classmethod
    def of_runs(cls, run_a: str, run_b: str, *, examples: int = EXAMPLES) -> "Comparison":
        """Compares two finished runs; `examples` is how many pairs of each change are looked up.

        Raises:
            UsageError: a folder is not a finished run.
            DamagedError: a file of a run cannot be read.
        """
        sides = Side.open(run_a), Side.open(run_b)
        with own_files(run_a), own_files(run_b):
            return cls(*sides, *_joined([side.run for side in sides], examples))

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
        return pa.Table.from_pylist(self._all[name], _TABLES[name])

    def to_json(self) -> dict[str, Any]:
        """All of it, as `altalign audit RUN_A RUN_B --json` prints it; what two runs have is a list of two."""
        return self._all

    def write_page(self, path: str) -> None:
        """Writes all of it with pictures, as one HTML file."""
        # templates and decoders, which a terminal need not wait for
        from altalign.audit.report import FOLDER
        from altalign.audit.report.galleries import thumbnail
        from altalign.filters import image
        from altalign.pages import frame

        pixels_at_most = max(int(side.settings.get("image.pixels_at_most", 0)) for side in (self.a, self.b))
        cards: dict[tuple[str, str], list[dict[str, Any]]] = {}
        with own_files(self.a.run.folder), own_files(self.b.run.folder):
            for each in self.pairs_shown:
                interrupts.check()
                verdicts = self.a.verdict(each.before), self.b.verdict(each.after)
                picture = thumbnail(*each.image, pixels_at_most=pixels_at_most) if each.image else None
                is_nsfw = any(verdict.endswith(f": {image.image_nsfw.name}") for verdict in verdicts)
                cards.setdefault(verdicts, []).append({"pair": each, "picture": picture, "is_nsfw": is_nsfw})
            values = {"comparison": self._all, "cards": cards}
            storage.write_bytes(path, frame.rendered(FOLDER, "comparison.html", scripts=("cards.js",), **values))

    def show(self, out: Console) -> None:
        """Prints all of it."""
        _print(self._all, out)

    def __repr__(self) -> str:
        text = io.StringIO()
        self.show(terminal.into(text))
        return text.getvalue().rstrip()

    @cached_property
    def _all(self) -> dict[str, Any]:
        a, b = sides = self.a, self.b
        cells = sorted(self.pairs.items(), key=lambda cell: (cell[0][0] == cell[0][1], -cell[1], cell[0]))
        number, examples = Counter[tuple[str, str]](), list[dict[str, str | None]]()
        for each in self.pairs_shown:
            number[each.before, each.after] += 1
            if number[each.before, each.after] <= EXAMPLES:
                verdicts = {"from": a.verdict(each.before), "to": b.verdict(each.after)}
                examples.append({**verdicts, "key": each.key, "caption": each.caption, "image_url": each.image_url})
        names = [name for name in dict.fromkeys((*a.settings, *b.settings)) if a.setting(name) != b.setting(name)]
        return {
            "runs": [side.run.folder for side in sides],
            "settings": [{"name": name, "a": a.setting(name), "b": b.setting(name)} for name in names],
            "counts": _counts(a.counts, b.counts),
            "totals": {name: [side.summary.get(name) for side in sides] for name in ("pairs", "images", "bytes")},
            "verdicts": [{"from": a.verdict(x), "to": b.verdict(y), "pairs": pairs} for (x, y), pairs in cells],
            "examples": examples,
            "notes": _notes(a, b),
        }


def main(run_a: str, run_b: str, *, as_json: bool = False, page: str | None = None) -> int:
    """Compares two finished runs and prints what differs; returns 0 whatever that is. Raises as `Comparison.of_runs`.

    `page` is where it writes the same with pictures, as one HTML file.
    """
    comparison = Comparison.of_runs(run_a, run_b, examples=EXAMPLES_OF_PAGE if page else EXAMPLES)
    if page:
        comparison.write_page(page)
    if as_json:
        json.dump(comparison.to_json(), sys.stdout, indent=2)  # ASCII, so it is safe on a terminal
        sys.stdout.write("\n")
    else:
        comparison.show(terminal.stdout())
    if page and not as_json:
        sys.stdout.write(f"page: {shown(page)}\n")
    return 0


# What differs ---------------------------------------------------------------------------------------------------------


def _counts(a: Counter[tuple[str, str]], b: Counter[tuple[str, str]]) -> list[dict[str, str | int | None]]:
    """Rows of both runs by stage and reason (or "received", "kept"), in the order of stages and rules.

    Reasons that this version does not know come last in their stage. A number is None of a run without the stage: of a
    curation, beside a selection.
    """
    counted = []
    for stage in dict.fromkeys([*rows.STAGES, *(stage for stage, _ in (*a, *b))]):
        known = REASONS[Stage(stage)] if stage in rows.STAGES else ()
        others = sorted({reason for name, reason in (*a, *b) if name == stage} - {*known, KEPT})
        received = [sum(number for (name, _), number in counts.items() if name == stage) for counts in (a, b)]
        if not any(received):
            continue
        lines = [("received", *received)]
        lines += [(reason, a[stage, reason], b[stage, reason]) for reason in (*known, *others)]
        lines += [(KEPT, a[stage, KEPT], b[stage, KEPT])]
        has_a, has_b = (bool(number) or stage != Stage.SELECT for number in received)
        for reason, x, y in lines:
            if x or y or reason in ("received", KEPT):
                counted.append({"stage": stage, "reason": reason, "a": x if has_a else None, "b": y if has_b else None})
    return counted


def _notes(a: Side, b: Side) -> list[str]:
    """What a reader needs to know, and what this comparison cannot tell."""
    notes = [
        "pairs are joined by key (image and cleaned caption); "
        "what extract drops (no alt-text, no URL) is left out, for only a sample of it is kept",
    ]
    if a.settings["rules_version"] != b.settings["rules_version"]:
        notes.append(
            "the runs have different versions of the rules: if these clean a caption or read a URL differently, "
            "a pair counts twice, once in each pool"
        )
    notes += [
        f"{name} has [audit] keep_dropped = false, so it is unknown why it dropped a pair or if it saw it; "
        "its counts are exact"
        for name, side in (("A", a), ("B", b))
        if not side.keeps_dropped
    ]
    return notes


# Pairs of both runs ---------------------------------------------------------------------------------------------------


def _joined(runs: Sequence[RunFolder], examples: int) -> tuple[dict[tuple[str, str], int], list[Example]]:
    """Number of pairs by both verdicts; of each change so many pairs, those with the smallest keys."""
    numbers, files = {ABSENT: 0, KEPT: 1}, list[str]()
    with rows.database() as connection:
        connection.execute("create table verdicts (run utinyint, key uuid, verdict usmallint, file uinteger)")
        for run_number, run in enumerate(runs):
            for path, verdicts in _verdicts(run, numbers):
                interrupts.check()
                if files[-1:] != [path]:
                    files.append(path)
                insert = "insert into verdicts select ?, key::uuid, verdict, ? from arrow_rows"
                rows.execute_on(connection, verdicts, insert, [run_number, len(files) - 1])
        cells = rows.rows_of_query(connection, _CHANGES, [examples])
        changed = {key: (before, after) for before, after, _, keys in cells if before != after for key in keys}
        places = rows.rows_of_query(connection, _FILES, [list(changed)])
    names, looked_up = list(numbers), _looked_up((files[file], key.hex) for file, key in places)
    shown_pairs = [
        Example(names[before], names[after], key.hex, *looked_up[key.hex])
        for key, (before, after) in changed.items()
        if key.hex in looked_up
    ]
    return {(names[before], names[after]): pairs for before, after, pairs, _ in cells}, shown_pairs


def _verdicts(run: RunFolder, numbers: dict[str, int]) -> Iterator[tuple[str, pa.Table]]:
    """Key and number of the verdict of each row, a row group at a time, with its file. Numbers new verdicts."""
    folders = {run.path("dropped", stage): stage for stage in rows.STAGES if stage != Stage.EXTRACT}
    for folder, stage in {run.path("shards"): "", **folders}.items():
        for path in (storage.join(folder, name) for name in storage.names(folder, ".parquet")):
            for group in rows.row_groups(path, ["key", "reason"] if stage else ["key"]):
                known: Any = pa.repeat(pa.scalar(numbers[KEPT], pa.uint16()), len(group))
                if stage:
                    is_other: Any = pc.not_equal(group["reason"], pa.scalar(DropReason.PAIR_REPEATED.value))
                    group = group.filter(pc.fill_null(is_other, pa.scalar(value=True)))
                    reasons: Any = group["reason"].cast(pa.string()).combine_chunks().fill_null("").dictionary_encode()
                    verdicts = [f"{stage}: {reason}" for reason in reasons.dictionary.to_pylist()]
                    of_verdicts = [numbers.setdefault(each, len(numbers)) for each in verdicts]
                    known = pa.array(of_verdicts, pa.uint16()).take(reasons.indices)
                is_key: Any = pc.match_substring_regex(group["key"], "^[0-9a-f]{32}$")
                if group["key"].null_count or not pc.all(is_key, min_count=0).as_py():
                    raise UnreadableError(f"{path}: keys that are not 32 hex digits")
                yield path, pa.table({"key": group["key"], "verdict": known})


def _looked_up(places: Iterable[tuple[str, str]]) -> dict[str, tuple[str, str | None, tuple[str, int, int] | None]]:
    """Caption, URL and stored image of each key, read from the file beside it."""
    keys_of_files, values = dict[str, list[str]](), dict[str, Any]()
    for path, key in places:
        keys_of_files.setdefault(path, []).append(key)
    for path, keys in keys_of_files.items():
        is_side_car, tar = path.split("/")[-2] == "shards", f"{path.removesuffix('.parquet')}.tar"
        columns = ["key", "caption", "image_url", *(["tar_offset", "tar_bytes"] if is_side_car else [])]
        for group in rows.row_groups(path, columns):
            for row in group.filter(pc.is_in(group["key"], value_set=pa.array(keys))).to_pylist():
                image = (tar, row["tar_offset"], row["tar_bytes"]) if is_side_car else None
                values[row["key"]] = row["caption"] or "", row["image_url"], image
    return values


# For people -----------------------------------------------------------------------------------------------------------


def _print(comparison: dict[str, Any], out: Console) -> None:
    for name, folder in zip("AB", comparison["runs"], strict=True):
        out.print(f"{name}: {shown(folder)}", soft_wrap=True)
    if comparison["settings"]:
        table = _table("setting", "A", "B")
        for row in comparison["settings"]:
            table.add_row(*map(shown, row.values()))
        out.print(table)
    else:
        out.print("settings and versions are the same")
    table = _table("stage", "", numbers=("A", "B", "B - A"))
    for stage, reason, before, after in map(dict.values, comparison["counts"]):
        is_first, is_last = reason == "received", reason == KEPT
        numbers = ["" if number is None else f"{number:,}" for number in (before, after)]
        more = f"{after - before:+,}" if all(numbers) and after != before else ""
        style = "bold" if is_first else "green" if is_last else None
        cells = shown(stage) if is_first else "", shown(reason), *numbers, more
        table.add_row(*cells, style=style, end_section=is_last)
    out.print(table)
    totals = ((name, before or 0, after or 0) for name, (before, after) in comparison["totals"].items())
    out.print("; ".join(f"{before:,} {name}, then {after:,}" for name, before, after in totals), soft_wrap=True)
    out.print("pairs by the stage that drops them (or kept), in A (rows) and in B (columns)")
    out.print(_by_stage(comparison["verdicts"]))
    changes = [each for each in comparison["verdicts"] if each["from"] != each["to"]]
    if not changes:
        out.print("no pair changed its verdict")
    for change in changes:  # the largest first, each with some pairs
        names = change["from"], change["to"]
        out.print(f"{many(change['pairs'], 'pair')}: {shown(' -> '.join(names))}", style="bold", soft_wrap=True)
        for each in comparison["examples"]:
            if (each["from"], each["to"]) == names:
                caption = each["caption"]
                cut = caption[:CAPTION_AT_MOST] + ("…" if len(caption) > CAPTION_AT_MOST else "")
                out.print(f"  {each['key']} {shown(cut)}", soft_wrap=True)
    for note in comparison["notes"]:
        out.print(note, soft_wrap=True)


def _by_stage(verdicts: list[dict[str, Any]]) -> Table:
    """A matrix of pairs by the stage that drops them: in A (rows) and in B (columns)."""
    pairs = Counter[tuple[str, str]]()
    for each in verdicts:
        pairs[each["from"].partition(":")[0], each["to"].partition(":")[0]] += each["pairs"]
    order = [KEPT, *reversed(rows.STAGES)]

    def place(name: str) -> tuple[int, str]:  # those that this version does not know, then what is not in a run
        return (order.index(name) if name in order else len(order) + (" " in name), name)

    lines, columns = (sorted({names[side] for names in pairs}, key=place) for side in range(2))
    table = _table("A \\ B", numbers=tuple(map(shown, columns)))
    for before in lines:
        cells = (pairs.get((before, after)) for after in columns)
        table.add_row(shown(before), *("" if number is None else f"{number:,}" for number in cells))
    return table


def _table(*texts: str, numbers: tuple[str, ...] = ()) -> Table:
    """A table with columns of text, then of numbers."""
    return Table(
        *(Column(name, overflow="fold") for name in texts), *(Column(name, justify="right") for name in numbers)
    )
