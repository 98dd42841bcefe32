import inspect

from altalign import errors
from altalign.errors import AltalignError, UsageError

EVERY = [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, AltalignError)]


def test_exit_codes_are_those_of_the_contract() -> None:
    assert {error.__name__: error.exit_code for error in EVERY} == {
        "AltalignError": 1,
        "UsageError": 2,
        "UnreadableError": 1,
        "DamagedError": 1,
        "FullDiskError": 1,
        "StoreError": 1,
        "CountsError": 1,
        "NotFoundError": 1,
    }


def test_no_error_of_ours_is_one_of_the_system() -> None:
    assert not issubclass(UsageError, OSError)
