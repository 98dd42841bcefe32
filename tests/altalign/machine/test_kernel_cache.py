"""Compiling is announced where it happens: once for an installation, and not by commands that call no kernel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from altalign.machine import kernel_cache

SAID = "compiling kernels, once for this installation: about 20 s\n"


@pytest.fixture(autouse=True)
def no_other_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)


PROGRAM = """
import sys
from pathlib import Path
from altalign.machine import kernel_cache
kernel_cache.settle(Path(sys.argv[1]), compiles=sys.argv[2] != "never")
import numba
for each in (lambda x: x + 1, lambda x: x + 2):
    sys.argv[2] == "first" or numba.njit(each)(1)
"""


def said(package: Path, what: str) -> str:
    """What a process says that settles and compiles; `first` compiles nothing."""
    argv = [sys.executable, "-c", PROGRAM, package, what]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stderr


def test_compiling_is_announced_once_where_it_happens(tmp_path: Path) -> None:
    assert [said(tmp_path, what) for what in ("first", "never", "then", "then")] == ["", "", SAID, ""]


def test_a_place_that_is_told_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "told").mkdir()
    (tmp_path / "told" / "kernels.nbi").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", os.fspath(tmp_path / "told"))
    kernel_cache.settle(tmp_path / "package")
    assert not capsys.readouterr().err
    assert not (tmp_path / "package").exists()
