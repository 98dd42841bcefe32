"""What a test must leave as it was: user, umask, working directory, environment, signal handlers."""

import os
import signal
from typing import Any

ENVIRONMENT, HANDLER = "environment variable ", "handler of "
# Set anew in each phase of a test; and once a process by grpc, transformers, torch and scikit-learn, when first used.
SET_BY_OTHERS = {
    "PYTEST_CURRENT_TEST",
    "no_grpc_proxy",
    "HF_HUB_OFFLINE",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "TOKENIZERS_PARALLELISM",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
}


def current() -> dict[str, Any]:
    """The state by name."""
    umask = os.umask(0o077)
    os.umask(umask)
    variables = {ENVIRONMENT + name: value for name, value in os.environ.items() if name not in SET_BY_OTHERS}
    # SIGCHLD is torch's: its loader installs a handler once a process, and keeps it
    handlers = {HANDLER + each.name: signal.getsignal(each) for each in signal.Signals if each is not signal.SIGCHLD}
    return {"user": os.geteuid(), "group": os.getegid(), "umask": umask, "folder": _folder(), **variables, **handlers}


def changed(before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    """What differs, by name, in words."""
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return {name: f"{name} was {before.get(name)!r} and is {after.get(name)!r}" for name in names}


def restore(before: dict[str, Any], names: list[str]) -> None:
    """Make these what they were, so that only the test that changed them fails."""
    os.seteuid(before["user"])  # first: the others may need its rights
    os.setegid(before["group"])
    os.umask(before["umask"])
    os.chdir(before["folder"])
    for name in names:
        if name.startswith(ENVIRONMENT):
            if name in before:
                os.environ[name.removeprefix(ENVIRONMENT)] = before[name]
            else:
                del os.environ[name.removeprefix(ENVIRONMENT)]
        elif name.startswith(HANDLER):
            signal.signal(signal.Signals[name.removeprefix(HANDLER)], before[name])


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - a folder may be gone
    except FileNotFoundError:
        return "a folder that is gone"
