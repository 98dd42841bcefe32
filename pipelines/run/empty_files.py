"""Names input files that hold nothing, and refuses inputs of such files alone."""

from collections.abc import Callable

from altalign import terminal
from altalign.errors import UsageError
from altalign.pipelines import read
from altalign.pipelines.run.units import InputFile, Run
from altalign.terminal import shown


def check(run: Run, is_empty: Callable[[InputFile], bool]) -> None:
    """Name the files that hold nothing.

    Raises:
        UsageError: all files of an input do.
    """
    for number, settings in enumerate(run.config.input):
        files = [file for file in run.files if file.of == number]
        files = [file for file in files if not read.may_be_empty(file.path, settings)]
        empty = [file.path for file in files if is_empty(file)]
        if not empty:
            continue
        others = f" and {len(empty) - 1:,} more" * (len(empty) > 1)
        said = f"{empty[0]}{others}: no row, record or page in it (0 bytes, or a header alone)"
        if len(empty) == len(files):
            raise UsageError(f"{said}; nothing comes of input {settings.source}: name other [input] paths")
        terminal.stderr().print(shown(said), soft_wrap=True)
