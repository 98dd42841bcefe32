"""Verdicts of a run beside a peer's, row by row."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign import cli
from benchmarks.verdicts import compare

CONFIG = """
[run]
folder = "run"

[[input]]
kind = "table"
paths = ["rows.parquet"]
caption_column = "text"

[text]
words_at_most = 6
images_per_text_at_most = 2
vocabulary_size = 13

[image]
texts_per_image_at_most = 2
"""

# url, text, the bits that a peer would give: 1 too short, 2 too long, 4 rare, 8 shared text, 16 image with too many
# texts.
ROWS = [
    *[(f"https://a.example/{image}.jpg", "a text of many images", 8) for image in range(3)],
    *[
        ("https://a.example/hot.jpg", text, 16)
        for text in ("a text of many words", "of many words a text", "text of many words a")
    ],
    *[("https://a.example/again.jpg", "words of many", 0)] * 2,
    ("https://a.example/short.jpg", "a text", 1),
    ("https://a.example/long.jpg", "a text of many words a text of many words", 2),
    ("https://a.example/rare.jpg", "zebra unseen elsewhere", 4),
    ("https://a.example/both.jpg", "quagga", 1 | 4),
]


def write(path: Path, rows: list[tuple[str, str, int]]) -> None:
    urls, texts, verdicts = zip(*rows, strict=True)
    pq.write_table(pa.table({"url": urls, "text": texts, "verdict": pa.array(verdicts, pa.uint8())}), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the text stages on these rows, and a peer's verdicts of them."""
    folder = tmp_path_factory.mktemp("verdicts")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write(Path("rows.parquet"), ROWS)
        write(Path("peer.parquet"), ROWS)
        Path("config.toml").write_text(CONFIG, encoding="utf-8")
        assert cli.main(["curate", "config.toml", "--until", "judge"]) == 0
    return folder


def test_equal_verdicts_are_equal_as_a_multiset(folder: Path):
    found = compare(folder / "run", folder / "peer.parquet")
    assert (found["rows"], found["rows_of_peer"], found["differ"], found["examples"]) == (len(ROWS), len(ROWS), 0, [])
    assert list(found["failed"].values()) == [2, 1, 2, 3, 3]


def test_a_verdict_that_differs_is_shown_from_both_sides(folder: Path, tmp_path: Path):
    write(tmp_path / "peer.parquet", [*ROWS[:-1], (*ROWS[-1][:2], 4)])
    found = compare(folder / "run", tmp_path / "peer.parquet")
    assert found["differ"] == 2
    assert [(e["side"], e["text"], e["verdict"]) for e in found["examples"]] == [
        ("ours", "quagga", 5),
        ("theirs", "quagga", 4),
    ]


def test_a_row_that_is_there_once_instead_of_twice_differs(folder: Path, tmp_path: Path):
    write(tmp_path / "peer.parquet", [row for number, row in enumerate(ROWS) if number != 6])
    assert compare(folder / "run", tmp_path / "peer.parquet")["differ"] == 1
