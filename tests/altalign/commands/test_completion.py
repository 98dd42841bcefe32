"""Tab in real shells: what `altalign completion` prints completes verbs, options, their values, and paths."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from altalign.cli import VERBS, main
from tests.support.terminals import terminal

pytestmark = [pytest.mark.runs, pytest.mark.everyday]

# Words before the key, and what stands there after it.
TYPED = {
    "altalign stat": "altalign status",
    "altalign curate mine.toml --restar": "altalign curate mine.toml --restart",
    "altalign curate mine.toml --until jud": "altalign curate mine.toml --until judge",
    "altalign nlip noi": "altalign nlip noise",
    "altalign nlip noise run --bat": "altalign nlip noise run --batch",
    "altalign audit my-ru": "altalign audit my-run/",
}
BASH = ["bash", "--noprofile", "--norc", "-i"]
ZSH = ["zsh", "--no-rcs", "-i"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """In which `altalign` is that of this checkout."""
    (tmp_path / "my-run").mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    command = programs / "altalign"
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -P -m altalign \"$@\"\n", encoding="utf-8")
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "TERM": "xterm", "HOME": str(tmp_path)}


def installed(shell: str) -> str:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    return shell


@pytest.mark.parametrize(
    ("argv", "prepared"),
    [(BASH, "true"), (ZSH, "autoload -U compinit && compinit -u")],
    ids=["bash", "zsh"],
)
def test_tab_completes_what_was_begun(
    argv: list[str], prepared: str, environment: dict[str, str], tmp_path: Path
) -> None:
    installed(argv[0])
    with terminal(argv, tmp_path, environment) as shell:
        shell.type(
            f'{prepared}; eval "$(altalign completion {argv[0]})"; said() {{ printf \'<%s>\\n\' "$*"; }}; said ready\n'
        )
        shell.until("<ready>")
        for before, after in TYPED.items():
            shell.type(f"{before}\t\x01said \x05\n")  # the line as it stands after the key
            shell.until("<")
            assert shell.until(">").rstrip() == after
        shell.type("exit\n")
        shell.rest()


def test_fish_completes_what_was_begun_and_says_what_it_is(environment: dict[str, str], tmp_path: Path) -> None:
    asked = "; ".join(f'complete --do-complete="{before}"' for before in TYPED)
    script = f"altalign completion fish | source; {asked}"
    argv = [installed("fish"), "--no-config", "--command", script]
    shown = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    words = [line.partition("\t") for line in shown.splitlines()]
    assert [word for word, _, _ in words] == [after.rpartition(" ")[2] for after in TYPED.values()]
    assert words[0][2] == VERBS["status"][1]


def answers(line: str, environment: dict[str, str]) -> set[str]:
    """What a shell is told of a line."""
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    argv = ["sh", "-c", "altalign 8>&1 2>&1 1>/dev/null"]
    return set(subprocess.run(argv, env=environment | asked, capture_output=True, text=True, check=True).stdout.split())


def test_every_verb_answers(environment: dict[str, str]) -> None:
    assert answers("altalign ", environment) == VERBS.keys()
    for verb in VERBS:
        assert "--help" in answers(f"altalign {verb} -", environment), verb


def test_another_shell_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.startswith("altalign: argument SHELL: invalid choice: 'tcsh' (choose from ")
