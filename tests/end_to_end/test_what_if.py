"""What the joint counts of a run say of other thresholds is what a run with these keeps."""

import io
import json
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from PIL import Image

from altalign.cli import main
from tests.end_to_end.audited import assert_reconciled, read
from tests.end_to_end.oracle import log2_in_8_bits, read_survivors
from tests.end_to_end.runs import summary

pytestmark = pytest.mark.runs

TEXT = {"words_at_least": 3, "words_at_most": 7, "images_per_text_at_most": 3}
# Sides at, above and below stops; ratios at 2.5 and 3, just below 3, and between.
SIZES = [
    (200, 300),
    (201, 300),
    (224, 225),
    (225, 224),
    (240, 600),
    (257, 256),
    (300, 301),
    (210, 629),
    (210, 630),
    (330, 210),
    (100, 101),
    (700, 215),
]
COPIED = (2, 7)  # numbers of pictures that the test set has too


class Allowed(NamedTuple):
    """Thresholds, and of the vocabulary the smallest count in it."""

    words: tuple[int, int]
    images_per_text: int
    texts_per_image: int
    smallest_count: int
    short_side: int = 200
    aspect: str = "3.0"

    def settings(self, sizes: Mapping[int, int]) -> list[str]:
        """As the command takes them; `sizes`: the vocabulary's by its smallest count."""
        values = {
            "text.words_at_least": self.words[0],
            "text.words_at_most": self.words[1],
            "text.images_per_text_at_most": self.images_per_text,
            "text.vocabulary_size": sizes[self.smallest_count],
            "image.texts_per_image_at_most": self.texts_per_image,
            "image.short_side_above_px": self.short_side,
            "image.aspect_ratio_below": self.aspect,
        }
        return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]

    def text(self, row: Mapping[str, Any]) -> bool:
        """Whether they allow what text and image of a row measure."""
        return (
            self.words[0] <= row["words"] <= self.words[1]
            and row.get("images_per_text", 0) <= self.images_per_text
            and row.get("texts_per_image", 0) <= self.texts_per_image
            and row["rarest_log2"]
            >= log2_in_8_bits(self.smallest_count) // (4 if "outcome" in row else 1) * (4 if "outcome" in row else 1)
        )

    def image(self, row: Mapping[str, Any]) -> bool:
        """Whether they allow its size and shape."""
        of_ratio = -(-100 * Fraction(self.aspect).numerator // Fraction(self.aspect).denominator)
        return (
            row["short_side_px"] is not None
            and row["short_side_px"] >= self.short_side
            and row["aspect_percent"] <= of_ratio
        )


def picture(number: int) -> bytes:
    """A pattern of its own, of one of the sizes."""
    pattern = Image.frombytes("L", (8, 8), random.Random(number).randbytes(64))
    file = io.BytesIO()
    pattern.resize(SIZES[number % len(SIZES)], Image.Resampling.BICUBIC).convert("RGB").save(file, "PNG")
    return file.getvalue()


def write_pool(folder: Path, *, rows: int = 900) -> None:
    """Captions of frequent and rare words on few images, in three files of two sources: pairs repeat in all of them,
    texts differ in case alone.
    """
    rng = random.Random(3)
    words = [f"w{number}" for number in range(60)]
    texts = [
        " ".join(rng.choices(words, [1 / (n + 1) for n in range(60)], k=rng.choice([0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9])))
        for _ in range(260)
    ]
    texts += ["a text of many images", "A text of Many images", "w1 w2"] * 6
    images = {number: picture(number) for number in range(36)}
    found = [
        (rng.randrange(36) if rng.random() < 0.9 else rng.randrange(4), rng.choice(texts), rng.random())
        for _ in range(rows)
    ]
    for part in range(3):
        some = [*found[part::3], *found[:20]]
        columns = {
            "url": [
                None if p < 0.05 else "no url" if p < 0.1 else f"https://img.example/{image}.png"
                for image, _, p in some
            ],
            "caption": [text for _, text, _ in some],
            "page": [None if p < 0.5 else f"https://p.example/{part}" for _, _, p in some],
            "image": [None if 0.05 < p < 0.1 else b"<svg>" if image == 35 else images[image] for image, _, p in some],
        }
        pq.write_table(pa.table(columns), folder / f"part-{part}.parquet", row_group_size=100)
    (folder / "tests").mkdir()
    for number in COPIED:
        (folder / "tests" / f"{number}.png").write_bytes(images[number])
    of_all = {"kind": "table", "image_column": "image", "page_url_column": "page"}
    inputs = [
        {**of_all, "name": "north", "paths": ["part-[01].parquet"]},
        {**of_all, "name": "south", "paths": ["part-2.parquet"]},
    ]
    text = {**TEXT, "vocabulary_size": 10_000}
    # a map that is learned would be another one of other images
    decontaminate = {"embedder": "phash", "similarity_above": 0.9}
    config = {"input": inputs, "text": text, "image": {"texts_per_image_at_most": 18}, "decontaminate": decontaminate}
    (folder / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, int]]:
    """The pool's folder, and the sizes of vocabularies by the smallest count in them."""
    folder = tmp_path_factory.mktemp("what-if")
    write_pool(folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        assert main(["curate", "config.toml", "--until", "tables", "--set", "run.folder=tables"]) == 0
    counts = dict(
        json.loads((folder / "tables" / "audit" / "histograms.json").read_text(encoding="utf-8"))["ngram_count"]
    )
    return folder, {count: sum(n for other, n in counts.items() if other >= count) for count in counts}


def curated(folder: Path, *args: str) -> Path:
    """A run with these settings beside the others of the pool."""
    run = folder / f"run-{len([*folder.glob('run-*')])}"
    assert main(["curate", "config.toml", "--set", f"run.folder={run.name}", *args]) == 0
    return run


def total(rows: list[dict[str, Any]], allows: Callable[[dict[str, Any]], bool]) -> int:
    """Pairs of the combinations that are allowed."""
    return sum(row["pairs"] for row in rows if allows(row))


@pytest.mark.parametrize("shuffle", ["files", "beam"])
def test_distinct_pairs_that_other_thresholds_allow_are_what_judge_keeps_with_these(
    pool: tuple[Path, dict[int, int]], monkeypatch: pytest.MonkeyPatch, shuffle: str
) -> None:
    folder, sizes = pool
    monkeypatch.chdir(folder)
    monkeypatch.setattr("altalign.pipelines.run.pool.ROWS_PER_UNIT", 200)
    base = Allowed((3, 7), 3, 18, 2)
    engine = ("--until", "judge", "--set", f"engine.shuffle={shuffle}")
    rows = read(curated(folder, *base.settings(sizes), *engine), "pairs_joint")
    rng = random.Random(1)
    others = [base._replace(words=(0, 300), images_per_text=40, texts_per_image=400), base]
    for _ in range(4):
        least = rng.randrange(6)
        others.append(
            Allowed(
                (least, least + rng.randrange(1, 8)),
                rng.randrange(3, 15),
                rng.randrange(18, 40),
                rng.choice([2, 3, 4, 6]),
            )
        )
    kept = [len(read_survivors(curated(folder, *other.settings(sizes), *engine))) for other in others]
    assert [total(rows, other.text) for other in others] == kept
    assert kept[0] == sum(row["pairs"] for row in rows)
    assert len(set(kept)) == len(kept)
    assert min(kept) < kept[1] < max(kept[2:])


@pytest.mark.parametrize("test_sets", ['["tests"]', "[]"], ids=["decontaminated", "not decontaminated"])
def test_outcomes_of_what_stricter_thresholds_allow_are_what_a_run_with_these_ends_with(
    pool: tuple[Path, dict[int, int]], monkeypatch: pytest.MonkeyPatch, test_sets: str
) -> None:
    folder, sizes = pool
    monkeypatch.chdir(folder)
    base = Allowed((2, 9), 6, 30, 2, 180, "2.999")
    always = ("--set", f"decontaminate.test_sets={test_sets}")
    run = curated(folder, *base.settings(sizes), *always)
    assert_reconciled(run)
    rows = read(run, "outcome_joint")
    outcomes = {row["outcome"] for row in rows}
    assert outcomes == {"kept", "not_searched", "fails_otherwise"} | (
        {"near_duplicate"} if test_sets != "[]" else set()
    )
    stricter = [
        base,
        base._replace(words=(3, 6), smallest_count=3),
        base._replace(smallest_count=4, short_side=200, aspect="2.5"),
        base._replace(words=(4, 9), short_side=224, aspect="1.5"),
    ]
    ended = [summary(curated(folder, *other.settings(sizes), *always))["pairs"] for other in stricter]
    assert [
        total(rows, lambda row, o=other: row["outcome"] == "kept" and o.text(row) and o.image(row))
        for other in stricter
    ] == ended
    assert len(set(ended)) == len(ended)
    assert min(ended) > 10
    looser = base._replace(short_side=96, aspect="4.0")
    found = summary(curated(folder, *looser.settings(sizes), *always))["pairs"]
    least, most = (
        total(rows, lambda row, of=of: row["outcome"] in of and looser.image(row))
        for of in (("kept",), ("kept", "not_searched"))
    )
    assert least == ended[0] < found <= most
    assert found == most or test_sets != "[]"


def test_what_decontamination_finds_later_is_counted_once(
    pool: tuple[Path, dict[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage done anew with other test sets, and without."""
    folder, sizes = pool
    monkeypatch.chdir(folder)
    base = Allowed((2, 9), 6, 30, 2).settings(sizes)
    run = curated(folder, *base)
    without = read(run, "outcome_joint")
    again = ["curate", "config.toml", "--set", f"run.folder={run.name}", *base]
    assert main([*again, "--rerun", "decontaminate", "--set", 'decontaminate.test_sets=["tests"]']) == 0
    found = read(run, "outcome_joint")
    assert {row["outcome"] for row in found} - {row["outcome"] for row in without} == {"near_duplicate"}
    assert_reconciled(run)
    assert main([*again, "--rerun", "decontaminate"]) == 0
    assert read(run, "outcome_joint") == without
    assert_reconciled(run)
