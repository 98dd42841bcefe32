"""The parser of a verb's arguments: what is wrong with them is one line, as every other error."""

import argparse
from typing import Any, NoReturn

from altalign.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises instead of printing its usage, and takes options by their whole names."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{message}; `{self.prog} --help` says what there is")
