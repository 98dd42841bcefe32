"""Whatever is done to runs, they hold the samples that the plain loops of `tests/reference` hold over their input.

A state machine adds input, exactly and with frozen tables, removes pairs and images, selects, merges, scores, cleans,
writes anew and retries.
"""

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, chdir
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as budget
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from altalign.cli import main
from altalign.data import scores
from altalign.data.reasons import DropReason, Stage
from tests.end_to_end.inputs import IMAGE_LIMITS, Part, drawn, pictures, placed, write_parts
from tests.end_to_end.oracle import KEPT_COLUMNS, assert_same, curate, read_sidecars
from tests.reference import curation
from tests.reference.curation import Candidate, Outcome, Settings
from tests.strategies import pools

EXAMPLES = int(os.environ.get("ALTALIGN_SEQUENCES", "2"))
STEPS = 6
PARTS, OTHER = 6, 5  # input files; the last is that of the other run
SETTINGS = Settings(
    words_at_least=1, words_at_most=6, images_per_text_at_most=6, texts_per_image_at_most=30, **IMAGE_LIMITS
)
SCORER = '[[score]]\nname = "text"\nkind = "text"\n'
SAME_IN_MERGED = ("image_id", "key", "caption")  # of a pair of two runs either one's page may be there


@cache
def candidates() -> list[Candidate]:
    """Some hundred rows of tables with their image, the same one for a URL, whose texts and images occur again."""
    digests = [picture.sha256 for picture in pictures().values()]
    rows = [row for pool in drawn(pools(max_size=40), 150) for row in pool]
    return [
        replace(
            row,
            decode_entities=False,
            page_url=row.page_url or "https://p.example/",
            image_sha256=digests[crc32((row.identity or str(number)).encode()) % len(digests)],
        )
        for number, row in enumerate(rows)
    ]


@dataclass
class Expected:
    """What is known of a run.

    Attributes:
        parts: numbers of its input files, in order.
        counted: how many of them its tables are of; None: all.
        gone: keys and image_ids that were removed.
        unselected: keys that a selection has left out.
        can_grow: whether it was curated, not made of others.
        is_merged: whether it was made of several.
    """

    parts: tuple[int, ...]
    counted: int | None = None
    gone: set[str] = field(default_factory=set)
    unselected: set[str] = field(default_factory=set)
    can_grow: bool = True
    is_merged: bool = False


class LivingRuns(RuleBasedStateMachine):
    """Two runs, and those that are made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = ExitStack()
        self.folder = Path(self.opened.enter_context(tempfile.TemporaryDirectory()))
        self.opened.enter_context(chdir(self.folder))
        self.runs: dict[str, Expected] = {}
        self.changed: set[str] = set()

    def teardown(self) -> None:
        self.opened.close()

    @initialize(turn=st.integers(0, 2), vocabulary_size=st.sampled_from([60, 1_000_000]))
    def curate_two_runs(self, turn: int, vocabulary_size: int) -> None:
        rows = candidates()[turn::3]
        cut = len(rows) // PARTS
        self.parts = [Part("north", "images.parquet", rows[n * cut : (n + 1) * cut]) for n in range(PARTS)]
        self.settings = replace(SETTINGS, vocabulary_size=vocabulary_size)
        Path("scorers.toml").write_text(SCORER, encoding="utf-8")
        inputs = write_parts(self.folder, self.parts)
        for name, numbers in {"other": [OTHER], "one": [0, 1]}.items():
            curate(self.folder, [inputs[number] for number in numbers], self.settings)
            Path("run").rename(name)
            self.set(name, Expected(tuple(numbers)))

    def set(self, name: str, expected: Expected) -> None:
        self.runs[name] = expected
        self.changed.add(name)

    def outcomes(self, name: str) -> curation.Curation:
        """What the plain loops leave over the input of a run."""
        of, every, begins = self.runs[name], placed(self.parts)[0], [0]
        for part in self.parts:
            begins.append(begins[-1] + len(part.candidates))
        files = [every[begins[number] : begins[number + 1]] for number in of.parts]
        counted = None if of.counted is None else sum(map(len, files[: of.counted]))
        rows = [replace(row, position=position) for position, row in enumerate(row for file in files for row in file)]
        first = dict[str, Any]()
        for row in rows:
            if row.identity is not None and row.image_sha256 is not None:
                picture = next(each for each in pictures().values() if each.sha256 == row.image_sha256)
                first.setdefault(row.identity, picture.facts)
        return curation.run(rows, first, self.settings, counted)

    def kept(self, name: str) -> list[Outcome]:
        of = self.runs[name]
        stays = (o for o in self.outcomes(name).kept if not {o.key, o.image_id} & of.gone)
        return [o for o in stays if o.key not in of.unselected]

    # What is done ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.runs["one"].parts[-1] < OTHER - 1)
    @rule(mode=st.sampled_from(["exact", "exact", "frozen"]))
    def add(self, mode: str) -> None:
        of = self.runs["one"]
        number = of.parts[-1] + 1
        path = f"input-{number:03d}.images.parquet"
        assert main(["add", "one", "--input", path, "--mode", mode]) == 0
        counted = (of.counted or len(of.parts)) if mode == "frozen" else None
        self.set("one", replace(of, parts=(*of.parts, number), counted=counted))

    @rule(data=st.data(), column=st.sampled_from(["key", "image_id"]))
    def remove(self, data: st.DataObject, column: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.runs)))
        values = sorted({str(getattr(o, column)) for o in self.kept(name)})
        gone = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=5, unique=True)) if values else []
        if gone:
            Path("list").write_text("\n".join(gone), encoding="utf-8")
            assert main(["remove", name, f"--{column.replace('_', '-')}s", "list"]) == 0
            of = self.runs[name]
            went = {o.key for o in self.kept(name) if o.key in gone or o.image_id in gone}
            self.set(name, replace(of, gone={*of.gone, *gone, *went}))

    @precondition(lambda self: "whole" not in self.runs)
    @rule(data=st.data())
    def make_one_generation(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.runs)))
        assert main(["merge", name, "--to", "whole"]) in (0, 1)
        assert not list(Path("whole", "shards").glob("g*"))
        self.set("whole", replace(self.runs[name], can_grow=False))

    @precondition(lambda self: not self.runs["one"].gone)  # else they would come back, and it is refused
    @rule()
    def write_anew(self) -> None:
        assert main(["curate", "one/config.toml", "--rerun", "write"]) == 0
        assert not list(Path("one", "shards").glob("g*"))
        self.changed.add("one")

    @rule(data=st.data())
    def clean(self, data: st.DataObject) -> None:
        assert main(["clean", data.draw(st.sampled_from(sorted(self.runs)))]) == 0

    @rule(data=st.data())
    def score(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.runs)))
        assert main(["score", name, "--with", "scorers.toml"]) == 0
        assert scored(name) == {path.stem for path in Path(name, "shards").glob("*.parquet")}
        self.changed.add(name)

    @rule()
    def retry(self) -> None:
        manifest = Path("one", "manifest.json").read_bytes()
        assert main(["retry", "one"]) == 0  # no image failed for a reason that may pass
        assert Path("one", "manifest.json").read_bytes() == manifest

    @precondition(lambda self: len(self.runs) < 4)
    @rule(data=st.data(), how=st.sampled_from(["list", "where", "share"]))
    def select(self, data: st.DataObject, how: str) -> None:
        name, new = data.draw(st.sampled_from(sorted(self.runs))), f"selected-{len(self.runs)}"
        images, words = ({o.key: getattr(o, column) for o in self.kept(name)} for column in ("image_id", "words"))
        chosen = {key for key in images if crc32(key.encode()) % 3}
        if how == "where" and images:
            longer = sorted((words[key] for key in images if words[key] > 1), reverse=True)
            bound = longer[: -(-len(longer) // 2)][-1:] or [
                0
            ]  # of the half with the most words, and as many as the last
            chosen = {key for key in images if words[key] > 1 and words[key] >= bound[0]}
        if not chosen:
            return
        Path("list").write_text("\n".join(sorted(chosen)), encoding="utf-8")
        options = {
            "list": ["--list", "list"],
            "where": ["--where", "words > 1", "--top", "words=0.5"],
            "share": ["--share", "0.5/0.5"],
        }[how]
        if how == "share":
            assert main(["select", name, new, "rest", *options]) in (0, 1)
            halves = [{row["key"] for row in read_sidecars(Path(folder))} for folder in (new, "rest")]
            assert sum(map(len, halves)) == len(images)
            assert not {images[key] for key in halves[0]} & {images[key] for key in halves[1]}
            chosen = halves[0]
            shutil.rmtree("rest")
        else:
            assert main(["select", name, new, *options]) == 0
        of = self.runs[name]
        self.set(new, replace(of, unselected={*of.unselected, *images} - chosen, can_grow=False))

    def can_be_merged(self) -> bool:
        """Whether all that one run over all the input would decide is known: removed rows are counted no more."""
        one, other = self.runs["one"], self.runs["other"]
        is_known = self.settings.vocabulary_size > 10_000 and one.counted is None and not (one.gone or other.gone)
        return is_known and "merged" not in self.runs

    @precondition(can_be_merged)
    @rule()
    def merge(self) -> None:
        assert main(["merge", "one", "other", "--to", "merged"]) == 0
        self.set("merged", Expected((*self.runs["one"].parts, OTHER), can_grow=False, is_merged=True))

    # What holds -----------------------------------------------------------------------------------------------------

    @invariant()
    def runs_hold_what_the_plain_loops_hold(self) -> None:
        for name in sorted(self.changed):
            of, found = self.runs[name], read_sidecars(Path(name))
            columns = SAME_IN_MERGED if of.is_merged else KEPT_COLUMNS
            have = [tuple(row[column] for column in columns) for row in found]
            assert_same(have, [_row(o, columns) for o in self.kept(name)], f"{name}: kept")
            if of.can_grow:
                self.assert_counts(name)
            for shard in sorted(scored(name)):
                rows = pq.read_table(Path(name, "shards", f"{shard}.parquet"), columns=["key", "caption"]).to_pylist()
                values = pq.read_table(Path(name, "scores", "text", f"{shard}.parquet")).to_pylist()
                have = [(row["key"], row["text_characters"]) for row in values]
                assert have == [(row["key"], len(row["caption"])) for row in rows], f"{name}: scores of {shard}"
            assert main(["audit", name]) == 0
        self.changed.clear()

    def assert_counts(self, name: str) -> None:
        """The counts are those of the plain loops, and of what they keep the rest was removed."""
        expected = self.outcomes(name)
        counts = {
            (row["stage"], row["source"], row["reason"]): row["rows"]
            for row in pq.read_table(Path(name, "counts.parquet")).to_pylist()
            if row["rows"]
        }
        of_select = {cell: counts.pop(cell) for cell in list(counts) if cell[0] == Stage.SELECT.value}
        assert_same(counts.items(), [item for item in expected.counts.items() if item[1]], f"{name}: counts")
        removed = Counter(o.candidate.source for o in expected.kept)
        removed.subtract(o.candidate.source for o in self.kept(name))
        found = {source: n for (_, source, reason), n in of_select.items() if reason == DropReason.REMOVED}
        assert found == {source: n for source, n in removed.items() if n}, name


def scored(name: str) -> set[str]:
    """The shards of a run that have scores: a file of another side-car than theirs is of no shard."""
    score, shards = scores.opened(name, "text"), json.loads(Path(name, "manifest.json").read_bytes())["shards"]
    digests = {of["name"].removesuffix(".tar"): of["parquet_sha256"] for of in shards}
    return {shard for shard, digest in digests.items() if score and score.has(shard, digest)}


def _row(outcome: Outcome, columns: Sequence[str]) -> tuple[Any, ...]:
    of: dict[str, Any] = {name: getattr(outcome.candidate, name) for name in ("source", "source_key", "extra")}
    of |= {name: getattr(outcome, name) for name in ("image_id", "key", "caption", "words")}
    of |= {"image_url": outcome.image_url or None, "page_url": outcome.candidate.page_url or None}
    return tuple({**of, "found_sha256": outcome.candidate.image_sha256}[name] for name in columns)


@pytest.mark.runs
@pytest.mark.everyday
def test_runs_that_live_hold_what_the_plain_loops_hold() -> None:
    candidates()  # they are drawn by Hypothesis too, and no draw may stand inside another
    run_state_machine_as_test(
        LivingRuns,
        settings=budget(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        ),
    )
