"""The process of the command, before its command line is there."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

INTERRUPTED = """
import signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "altalign.cli":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from altalign.__main__ import main
"""


def run(script: str, *arguments: str) -> tuple[int, str, str]:
    ended = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_an_interrupt_before_the_command_line_is_imported_is_a_line_too() -> None:
    assert run(f"{INTERRUPTED}sys.exit(main())", "--version") == (
        130,
        "",
        "altalign: interrupted; run the same command again, it continues\n",
    )


def test_where_interrupts_are_ignored_they_stay_so() -> None:
    code, said, error = run(f"{INTERRUPTED}signal.signal(signal.SIGINT, signal.SIG_IGN)\nsys.exit(main())", "--version")
    assert (code, error) == (0, "")
    assert said.startswith("altalign ")


def test_the_package_is_the_command() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "altalign", "--version"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout.split(" ")[0], ended.stderr) == (0, "altalign", "")
