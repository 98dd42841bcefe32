"""`altalign audit RUN_A RUN_B`: settings that differ, counts side by side, and pairs whose verdict changed.

DuckDB joins verdicts by key. `dropped/extract` is only a sample, and `pair_repeated` repeats a pair: neither is read.
"""

import io
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Column, Table

from altalign import storage, terminal
from altalign.audit import rows
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import KEPT, REASONS, DropReason, Stage
from altalign.data.stages import own_files
from altalign.errors import AltalignError
from altalign.machine import interrupts
from altalign.settings.common import flatten
from altalign.terminal import many, shown

CAPTION_AT_MOST = 100  # characters of a caption that are printed
EXAMPLES = 6  # pairs of each change
_TABLES = {
    "settings": ("name", "a", "b"),
    "counts": ("stage", "reason", "a", "b"),
    "verdicts": ("from", "to", "pairs"),
    "examples": ("from", "to", "key", "caption", "image_url"),
}

# A pair may be dropped more than once: the smallest verdict counts. KEPT is the smallest of those that a run gives.
_CHANGES = """
    with pairs as (
        select key,
            coalesce(min(verdict) filter (run = 0), 0) as before,
            coalesce(min(verdict) filter (run = 1), 0) as after
        from verdicts group by key
    )
    select before, after, count(*), min(key, ?) from pairs group by before, after
    order by before = after, count(*) desc, before, after
"""

# The file of the smallest verdict: where a run kept the pair, it has its image, too.
_FILES = """
    select arg_min(file, (verdict, run, file)), key from verdicts where key in (select unnest(?::uuid[])) group by key
"""


@dataclass(frozen=True, repr=False)
class Comparison:
    """What differs between two runs; `tables` are rows by the names of the properties."""

    runs: list[str]
    totals: dict[str, list[int]]  # pairs, images and bytes of both
    tables: Mapping[str, list[dict[str, Any]]]
    places: Mapping[str, tuple[str, int, int]]  # tar, offset and length of images, by key, where a run kept the pair
    pixels_at_most: int

    @classmethod
    def of_runs(cls, run_a: str, run_b: str) -> "Comparison":
        """Compares two finished runs.

        Raises:
            UsageError: a folder is not a finished run.
            DamagedError: a file of a run cannot be read.
        """
        with own_files(run_a), own_files(run_b):
            runs = [RunFolder.open(folder) for folder in (run_a, run_b)]
            for run in runs:
                run.check_finished("there is nothing to compare yet")
            a, b = settings = [_settings(run) for run in runs]
            of_settings = [(name, a.get(name, "absent"), b.get(name, "absent")) for name in dict.fromkeys((*a, *b))]
            verdicts, examples, places = _joined(runs, settings)
            tables = {
                "settings": [each for each in of_settings if each[1] != each[2]],
                "counts": _counts(*(rows.by_reason(rows.counts(run)) for run in runs)),
                "verdicts": verdicts,
                "examples": examples,
            }
            summaries = [run.json("summary.json") for run in runs]
        named = {
            name: [dict(zip(columns, row, strict=True)) for row in tables[name]] for name, columns in _TABLES.items()
        }
        totals = {name: [int(each.get(name, 0)) for each in summaries] for name in ("pairs", "images", "bytes")}
        pixels = max(int(each.get("image.pixels_at_most", 0)) for each in settings)
        return cls([run.folder for run in runs], totals, named, places, pixels)

    @property
    def settings(self) -> pa.Table:
        """Settings and versions that differ: name, and both values as JSON."""
        return self._table("settings")

    @property
    def counts(self) -> pa.Table:
        """Rows of both runs by stage and reason; null where a run does not have the stage."""
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
        numbers = {"counts": ("a", "b"), "verdicts": ("pairs",)}.get(name, ())
        kinds = [(column, pa.int64() if column in numbers else pa.string()) for column in _TABLES[name]]
        return pa.Table.from_pylist(self.tables[name], pa.schema(kinds))

    def to_json(self) -> dict[str, Any]:
        """All of it, as `altalign audit RUN_A RUN_B --json` prints it; what two runs have is a list of two."""
        return {"runs": self.runs, "totals": self.totals, **self.tables}

    def write_page(self, path: str) -> None:
        """Writes all of it with pictures, as one HTML file."""
        # templates and decoders, which a terminal need not wait for
        from altalign.audit.report import FOLDER
        from altalign.filters import image
        from altalign.pages import frame
        from altalign.pipelines.figures.image_figures import picture

        cards: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for each in self.tables["examples"]:
            interrupts.check()
            data = None
            if place := self.places.get(each["key"]):
                with suppress(AltalignError):  # no memory for it: a page without this picture
                    data = picture(storage.read_range(*place), pixels_at_most=self.pixels_at_most)
            is_nsfw = any(each[side].endswith(f": {image.image_nsfw.name}") for side in ("from", "to"))
            card = {"pair": each, "picture": frame.data_uri(data) if data else None, "is_nsfw": is_nsfw}
            cards.setdefault((each["from"], each["to"]), []).append(card)
        values = {"comparison": self.to_json(), "cards": cards}
        storage.write_bytes(path, frame.rendered(FOLDER, "comparison.html", scripts=("cards.js",), **values))

    def show(self, out: Console) -> None:
        """Prints all of it."""
        for name, folder in zip("AB", self.runs, strict=True):
            out.print(f"{name}: {shown(folder)}", soft_wrap=True)
        if self.tables["settings"]:
            table = Table(*(Column(name, overflow="fold") for name in ("setting", "A", "B")))
            for row in self.tables["settings"]:
                table.add_row(*map(shown, row.values()))
            out.print(table)
        else:
            out.print("settings and versions are the same")
        table = Table("stage", "", *(Column(name, justify="right") for name in ("A", "B", "B - A")))
        for stage, reason, before, after in map(dict.values, self.tables["counts"]):
            is_first, is_last = reason == "received", reason == KEPT
            numbers = ["" if rows is None else f"{rows:,}" for rows in (before, after)]
            numbers.append(f"{after - before:+,}" if None not in (before, after) and after != before else "")
            style = "bold" if is_first else "green" if is_last else None
            table.add_row(shown(stage) if is_first else "", shown(reason), *numbers, style=style, end_section=is_last)
        out.print(table)
        totals = (f"{before:,} {name}, then {after:,}" for name, (before, after) in self.totals.items())
        out.print("; ".join(totals), soft_wrap=True)
        changes = [each for each in self.tables["verdicts"] if each["from"] != each["to"]]
        if not changes:
            out.print("no pair changed its verdict")
        for before, after, pairs in map(dict.values, changes):  # the largest first, each with some pairs
            out.print(f"{many(pairs, 'pair')}: {shown(f'{before} -> {after}')}", style="bold", soft_wrap=True)
            for each in self.tables["examples"]:
                if (each["from"], each["to"]) == (before, after):
                    cut = each["caption"][:CAPTION_AT_MOST] + "…" * (len(each["caption"]) > CAPTION_AT_MOST)
                    out.print(f"  {each['key']} {shown(cut)}", soft_wrap=True)

    def __repr__(self) -> str:
        text = io.StringIO()
        self.show(terminal.into(text))
        return text.getvalue().rstrip()


def main(run_a: str, run_b: str, *, as_json: bool = False, page: str | None = None) -> int:
    """Compares two finished runs and prints what differs; returns 0 whatever that is. Raises as `Comparison.of_runs`.

    `page` is where it writes the same with pictures, as one HTML file.
    """
    comparison = Comparison.of_runs(run_a, run_b)
    if page:
        comparison.write_page(page)
    if as_json:
        json.dump(comparison.to_json(), sys.stdout, indent=2)  # ASCII, so it is safe on a terminal
        sys.stdout.write("\n")
    else:
        comparison.show(terminal.stdout())
        sys.stdout.write(f"page: {shown(page)}\n" if page else "")
    return 0


def _settings(run: RunFolder) -> dict[str, str]:
    """Settings by dotted name, as JSON, and versions. Not by the settings class: another version may have made them."""
    manifest = run.json("manifest.json")
    versions = {name: manifest.get(name) for name in ("rules_version", "schema_version")}
    settings = {"altalign": run.facts.get("altalign"), **versions, **dict(flatten(run.settings))}
    return {name: json.dumps(value, ensure_ascii=False, default=str) for name, value in settings.items()}


def _counts(a: Counter[tuple[str, str]], b: Counter[tuple[str, str]]) -> list[tuple[str, str, int | None, int | None]]:
    """Rows of both runs by stage and reason (or "received", "kept"), in the order of stages and rules.

    Reasons that this version does not know come last in their stage. A run that has no such stage has None.
    """
    lines = []
    for stage in rows.STAGES:
        reasons = {reason for name, reason in (*a, *b) if name == stage}
        if not reasons:
            continue
        known = [*REASONS[Stage(stage)]]
        ordered = [*filter(reasons.__contains__, known), *sorted(reasons - {*known, KEPT}), KEPT]
        of_stage = [counts if any(name == stage for name, _ in counts) else None for counts in (a, b)]
        received = (counts and sum(counts[stage, reason] for reason in ordered) for counts in of_stage)
        lines.append((stage, "received", *received))
        lines += [(stage, reason, *(counts and counts[stage, reason] for counts in of_stage)) for reason in ordered]
    return lines


# Pairs of both runs ---------------------------------------------------------------------------------------------------


def _joined(
    runs: list[RunFolder], settings: list[dict[str, str]]
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], dict[str, tuple[str, int, int]]]:
    """Pairs by both verdicts; of each change those with the smallest keys; and where the images of these are."""
    absent = [
        "dropped, or not in its pool" if of_run.get("audit.keep_dropped") == "false" else "not in its pool"
        for of_run in settings
    ]
    numbers, files = {"": 0, KEPT: 1}, list[str]()
    with rows.database() as connection:
        connection.execute("create table verdicts (run utinyint, key uuid, verdict usmallint, file uinteger)")
        for run_number, run in enumerate(runs):
            for path, verdicts in _verdicts(run, numbers):
                interrupts.check()
                if files[-1:] != [path]:
                    files.append(path)
                insert = "insert into verdicts select ?, key::uuid, verdict, ? from arrow_rows"
                rows.execute_on(connection, verdicts, insert, [run_number, len(files) - 1])
        cells = rows.rows_of_query(connection, _CHANGES, [EXAMPLES])
        changed = {key.hex: cell for cell in cells if cell[0] != cell[1] for key in cell[3]}
        keys_of_files = dict[str, list[str]]()
        for file, key in rows.rows_of_query(connection, _FILES, [list(changed)]):
            keys_of_files.setdefault(files[file], []).append(key.hex)
    strings, places = dict[str, tuple[str, str | None]](), dict[str, tuple[str, int, int]]()
    for path, keys in keys_of_files.items():
        is_side_car = path.split("/")[-2] == "shards"
        columns = ["key", "caption", "image_url", *(["tar_offset", "tar_bytes"] if is_side_car else [])]
        for group in rows.row_groups(path, columns):
            some = group.filter(pc.is_in(group["key"], value_set=pa.array(keys)))
            for key, caption, url, *place in map(dict.values, some.to_pylist()):
                strings[key] = caption or "", url
                if is_side_car:
                    places[key] = (f"{path.removesuffix('.parquet')}.tar", *place)
    names = list(numbers)

    def named(before: int, after: int) -> tuple[str, str]:
        return names[before] or absent[0], names[after] or absent[1]

    of_pairs = [(*named(before, after), pairs) for before, after, pairs, _ in cells]
    examples = [(*named(*cell[:2]), key, *strings[key]) for key, cell in changed.items() if key in strings]
    return of_pairs, examples, places


def _verdicts(run: RunFolder, numbers: dict[str, int]) -> Iterator[tuple[str, pa.Table]]:
    """Key and number of the verdict of each row, a row group at a time, with its file. Numbers new verdicts."""
    folders = {run.path("dropped", stage): stage for stage in rows.STAGES if stage != Stage.EXTRACT}
    of_stages = {run.path("shards"): "", **folders}.items()
    files = [
        (storage.join(folder, name), stage) for folder, stage in of_stages for name in storage.names(folder, ".parquet")
    ]
    with terminal.progress_bar("reading verdicts", len(files), "files") as advance:
        for path, stage in files:
            for group in rows.row_groups(path, ["key", "reason"] if stage else ["key"]):
                known: Any = pa.repeat(pa.scalar(numbers[KEPT], pa.uint16()), len(group))
                if stage:
                    group = group.filter(pc.field("reason") != DropReason.PAIR_REPEATED.value)
                    reasons: Any = group["reason"].cast(pa.string()).combine_chunks().dictionary_encode()
                    names = [f"{stage}: {reason}" for reason in reasons.dictionary.to_pylist()]
                    of_names = [numbers.setdefault(name, len(numbers)) for name in names]
                    known = pa.array(of_names, pa.uint16()).take(reasons.indices)
                yield path, pa.table({"key": group["key"], "verdict": known})
            advance()
