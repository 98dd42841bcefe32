"""The parser of a verb's arguments: what is wrong with them is one line, as every other error."""

import argparse
from typing import NoReturn

from altalign.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises instead of printing its usage."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{message}; `{self.prog} --help` says what there is")
