"""What is made once is not made again, and whoever writes into it is noticed."""

from pathlib import Path

import pytest

from tests import made_once


def test_it_is_made_once_and_a_change_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made_once, "SHARED", {})
    monkeypatch.setattr(tmp_path_factory, "getbasetemp", lambda: tmp_path)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text("as it was")
        (folder / "other").write_text("stays")

    first, again = (made_once.made_once("thing", tmp_path_factory, make) for _ in range(2))
    assert first == again == made[0]
    assert len(made) == 1
    copy = made_once.linked(first, tmp_path / "copy")
    (copy / "other").unlink()
    assert made_once.changed(["thing", "tmp_path"]) == []
    (copy / "deep" / "file").write_text("written through a link")
    (first / "new").touch()
    assert made_once.changed(["tmp_path"]) == []
    assert made_once.changed(["thing"]) == ["thing/deep/file", "thing/new"]


def test_what_failed_in_the_middle_is_begun_anew(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made_once, "SHARED", {})
    monkeypatch.setattr(tmp_path_factory, "getbasetemp", lambda: tmp_path)

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        made_once.made_once("thing", tmp_path_factory, fail)
    folder = made_once.made_once("thing", tmp_path_factory, lambda folder: (folder / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]
