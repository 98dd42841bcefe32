"""Inputs from which no image can come are refused before any work."""

from contextlib import chdir
from pathlib import Path

import pytest

from altalign.cli import main
from tests.support import archives

IN_HAND = '[run]\nfolder = "run"\n[input]\npaths = ["{}"]\nkind = "{}"\n'


def write(folder: Path, kind: str) -> None:
    """An input of this kind with a config."""
    if kind == "table":
        (folder / "in").write_text("url,caption\nhttp://a/1.png,a quiet lake at night\n", encoding="utf-8")
        (folder / "in").rename(folder / "in.csv")
    else:
        records = [archives.page(number) for number in range(300)]
        records += [archives.image("http://a/7-0.png")] * (kind == "images")
        archives.write(folder / "in.warc.gz", records)
    name = "in.csv" if kind == "table" else "in.warc.gz"
    of = {"images": "warc", "pages": "warc"}.get(kind, kind)
    (folder / "config.toml").write_text(IN_HAND.format(name, of), encoding="utf-8")


@pytest.mark.parametrize("args", [(), ("--dry-run",), ("--until", "fetch")], ids=str)
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("table", "table: a table without [input] image_column"),
        ("wat", "wat: WAT files hold no images"),
    ],
)
def test_inputs_without_images_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, why: str, args: tuple[str, ...]
) -> None:
    write(tmp_path, kind)
    with chdir(tmp_path):
        assert main(["curate", "config.toml", *args]) == 2
    said = capsys.readouterr().err
    assert f'no image can come of these inputs ({why}), where [fetch] source = "archive"' in said
    assert 'set fetch.source = "web" to fetch them by URL, or stop before that with --until judge' in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        ("table", ("--until", "judge")),
        ("table", ("--dry-run", "--set", "fetch.source=web")),
        ("pages", ("--until", "judge")),
        ("images", ("--dry-run",)),
    ],
)
def test_others_are_not(tmp_path: Path, kind: str, args: tuple[str, ...]) -> None:
    write(tmp_path, kind)
    with chdir(tmp_path):
        assert main(["curate", "config.toml", *args]) == 0


def test_one_input_with_images_is_enough(tmp_path: Path) -> None:
    write(tmp_path, "images")
    write(tmp_path, "table")
    more = '[[input]]\npaths = ["in.csv"]\nkind = "table"\n[[input]]\npaths = ["in.warc.gz"]\n'
    (tmp_path / "config.toml").write_text('[run]\nfolder = "run"\n' + more, encoding="utf-8")
    with chdir(tmp_path):
        assert main(["curate", "config.toml", "--dry-run"]) == 0


def test_an_archive_that_cannot_be_read_is_no_archive_without_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "pages")
    (tmp_path / "in.warc.gz").write_bytes(b"no archive at all")
    with chdir(tmp_path):
        assert main(["curate", "config.toml"]) == 1
    assert "in.warc.gz" in capsys.readouterr().err


@pytest.mark.parametrize("args", [(), ("--dry-run",)], ids=str)
def test_an_archive_of_0_bytes_is_called_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    write(tmp_path, "pages")
    (tmp_path / "in.warc.gz").write_bytes(b"")
    with chdir(tmp_path):
        assert main(["curate", "config.toml", *args]) == 2
    said = capsys.readouterr().err
    assert "in.warc.gz: no row, record or page in it (0 bytes, or a header alone); nothing comes of input warc" in said
    assert "no image can come" not in said
