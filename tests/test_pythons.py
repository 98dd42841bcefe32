"""The Pythons of a machine are found where a command of that name only says that it is not there."""

import sys
from pathlib import Path

import pytest

from tools import pythons

OWN = "{}.{}".format(*sys.version_info)


@pytest.fixture
def pyenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a pyenv without a Python, whose commands on the path fail."""
    for version in pythons.versions():
        command = tmp_path / "shims" / f"python{version}"
        command.parent.mkdir(exist_ok=True)
        command.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    return tmp_path


def test_a_python_of_pyenv_is_found_behind_its_command(pyenv: Path) -> None:
    assert pythons.found(OWN) is None
    python = pyenv / "versions" / f"{OWN}.0" / "bin" / f"python{OWN}"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert pythons.found(OWN) == str(python)


def test_every_python_is_printed_or_left_out_with_the_reason(pyenv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest = pythons.versions()[-1]
    python = pyenv / "versions" / f"{newest}.0" / "bin" / f"python{newest}"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    pythons.main()
    printed, left_out = capsys.readouterr()
    assert printed == ("" if newest == OWN else f"{newest} {python}\n")
    reasons = {line[len("Python ") :].partition(":")[0]: line for line in left_out.splitlines()}
    assert {*reasons, *printed.split()[:1]} == {*pythons.versions()}
    assert reasons[OWN] == f"Python {OWN}: all other tests run on it"
    assert sum("none on this machine" in line for line in reasons.values()) == 2 + (newest == OWN)
