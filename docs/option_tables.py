"""Options of verbs as tables: the words that `altalign VERB --help` prints."""

from collections.abc import Sequence
from importlib import import_module
from unittest.mock import patch

from altalign.cli import VERBS
from altalign.commands.arguments import Parser
from docs.settings_tables import Table

PARTS_OF_NLIP = ("noise", "caption", "concepts")


class _ParserFound(Exception):  # noqa: N818 - how a verb is left before it does anything
    def __init__(self, parser: Parser):
        super().__init__()
        self.parser = parser


def _found(parser: Parser, _: Sequence[str]) -> None:
    raise _ParserFound(parser)


def option_tables() -> dict[str, Table]:
    """A table for each verb that has options but --set, named by the verb."""
    verbs = [*((verb,) for verb in VERBS if verb != "nlip"), *(("nlip", part) for part in PARTS_OF_NLIP)]
    tables = {" ".join(verb): _table(_parser(*verb)) for verb in verbs}
    return {verb: table for verb, table in tables.items() if len(table) > 1}


def _parser(verb: str, *arguments: str) -> Parser:
    module, function = VERBS[verb][0].split(":")
    with patch.object(Parser, "parse_args", _found):
        try:
            getattr(import_module(module), function)(list(arguments))
        except _ParserFound as found:
            return found.parser
    raise AssertionError(f"altalign {verb} parses no arguments")


def _table(parser: Parser) -> Table:
    help_of = parser._get_formatter()
    rows = [["Option", "Meaning"]]
    for action in parser._actions:
        if action.option_strings and not {"--help", "--set"} & set(action.option_strings):
            option = action.option_strings[-1]
            value = help_of._format_args(action, help_of._get_default_metavar_for_optional(action))
            rows.append([f"`{option} {value}".rstrip() + "`", help_of._expand_help(action)])
    return rows
