"""The exceptions a user can see, each an AltalignError with its exit code.

Error text has one form: what is wrong, where, the value, what to do.
"""

import importlib.util


def bring(extra: str) -> str:
    """The command that installs an extra, for errors: pip takes the altalign that is installed."""
    return f"`make setup EXTRAS={extra}` brings it in a checkout, `pip install 'altalign[{extra}]'` elsewhere"


def first_line(error: BaseException) -> str:
    """The first line of an error of a library, for errors of ours; its type where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def one_line(error: BaseException, at_most: int = 200) -> str:
    """What a library says on one line of at most so many characters; its type where it says nothing."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= at_most else f"{words[:at_most]}…"


class AltalignError(Exception):
    """The command failed."""

    exit_code = 1


class UsageError(AltalignError):
    """Wrong settings, paths or arguments, found before any work."""

    exit_code = 2


def check_package(package: str, where: str, *, extra: str) -> None:
    """Refuse to go on without a package of an extra; `where` begins the error."""
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{where}: the package {package} is missing; {bring(extra)}")


class UnreadableError(AltalignError):
    """A whole input file cannot be read."""


class DamagedError(AltalignError):
    """A file that a run wrote is not as it was written."""


class FullDiskError(AltalignError):
    """No space is left where the run is written."""


class StoreError(AltalignError):
    """An object store does not answer, or refuses.

    It is no OSError: readers blame an OSError on the file that they read, and no file is to blame here.
    """


class CountsError(AltalignError):
    """Counts of a run do not add up: a defect of ours, never of the data."""


class NotFoundError(AltalignError):
    """A search found nothing."""
