"""Other people's libraries, run silently."""

from pathlib import Path

import pytest

from altalign import cli
from tests.support.trained_folders import write_trained

pytestmark = pytest.mark.trained


def test_an_export_says_its_own_lines_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", write_trained(tmp_path / "run"), str(tmp_path / "align"), "--to", "align"]) == 0
    said = capfd.readouterr()
    assert said.err == ""  # no bars of transformers
    assert "its batch norm keeps 1% of its running statistics a step" in said.out
