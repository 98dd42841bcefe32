"""`altalign completion SHELL`: what lets a shell complete verbs, options and paths."""

import sys
from collections.abc import Sequence

from argcomplete.shell_integration import shellcode

from altalign.commands.arguments import Parser

SHELLS = ("bash", "zsh", "fish")


def main(argv: Sequence[str]) -> int:
    """Print the lines by which a shell asks `altalign` how a command goes on."""
    parser = Parser(
        prog="altalign completion",
        description="Print what lets a shell complete verbs, options and paths: a line of ~/.bashrc or ~/.zshrc, "
        'behind compinit, is eval "$(altalign completion SHELL)".',
        epilog="In fish: altalign completion fish > ~/.config/fish/completions/altalign.fish",
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    sys.stdout.write(shellcode(["altalign"], shell=parser.parse_args(argv).shell))
    return 0
