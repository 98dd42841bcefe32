"""Settings that are given to the wrong command: one line names the command that they are for."""

from pathlib import Path

import pytest

from altalign.cli import main

ROOT = Path(__file__).parents[3]
CURATION = '[run]\nfolder = "runs/a"\n[[input]]\nkind = "folder"\npaths = ["photos"]\n'


@pytest.mark.parametrize(
    ("verb", "text", "section", "command"),
    [
        (["train"], CURATION, "input", "altalign curate 'my settings.toml'"),
        (["train", "--sweep"], CURATION, "input", "altalign curate 'my settings.toml'"),
        (["curate"], (ROOT / "configs/train-demo.toml").read_text(), "data", "altalign train 'my settings.toml'"),
        (
            ["trial"],
            (ROOT / "examples/scores.toml").read_text(),
            "score",
            "altalign score RUN --with 'my settings.toml'",
        ),
        (["eval"], (ROOT / "configs/eval-demo.toml").read_text(), "set", "altalign eval --sets 'my settings.toml'"),
        (["eval", "--sets"], CURATION, "input", "altalign curate 'my settings.toml'"),
    ],
)
def test_the_command_is_named(
    verb: list[str],
    text: str,
    section: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my settings.toml").write_text(text, encoding="utf-8")
    assert main([*verb, "my settings.toml"]) == 2
    said = f"my settings.toml: has [{section}], so these are the settings of another command: {command}"
    assert capsys.readouterr().err == f"altalign: {said}\n"


def test_a_section_of_another_command_beside_ones_own_is_a_wrong_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(f"{CURATION}[data]\nworkers = 2\n", encoding="utf-8")
    assert main(["curate", "mine.toml"]) == 2
    assert capsys.readouterr().err.startswith("altalign: mine.toml data: no such section (there are: run, input,")
