"""`altalign VERB …`: a verb's module is imported when it is called; every mistake is one line and an exit code."""

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from altalign import __version__
from altalign.errors import AltalignError, UsageError
from altalign.storage import is_full_disk

VERBS = {
    "curate": ("pipelines.curate:main", "run all stages of a curation; run again, it continues where it stopped"),
    "status": ("audit.status:main", "how far a run is"),
    "explain": ("audit.explain:main", "what happened to a pair in every stage, and why"),
    "clean": ("audit.clean:main", "delete what stages handed on (RUN/work)"),
    "demo": ("demo.main:main", "write the demo web; serve it on loopback"),
}
INTERRUPTED = 130  # 128 + SIGINT, as shells count


def usage() -> str:
    """The text of `altalign --help`."""
    verbs = "\n".join(f"  {verb:<8} {about}" for verb, (_, about) in VERBS.items())
    return f"usage: altalign VERB …\n\n{verbs}\n\n`altalign VERB --help` says what a verb takes. --debug, anywhere, shows the traceback of an error.\nExit code 0 = done, 1 = failed, 2 = wrong usage or settings.\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    ours = args[: args.index("--")] if "--" in args else args
    is_debug = "--debug" in ours
    if is_debug:
        args.remove("--debug")
    logging.getLogger().setLevel(logging.WARNING if is_debug else logging.CRITICAL)  # the libraries' remarks are not for the user
    try:
        return _run(args)
    except AltalignError as error:
        if is_debug:
            raise
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted; run the same command again, it continues", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of a pipe left: no error
        return 0
    except OSError as error:
        if is_debug or not is_full_disk(error):
            raise
        return _fail(f"{error.filename or 'the disk'}: no space left on the device; make room and run the same command again, it continues", 1)


def _run(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        return 0 if args else 2
    if args[0] == "--version":
        sys.stdout.write(f"altalign {__version__}\n")
        return 0
    if args[0] not in VERBS:
        raise UsageError(f"altalign {args[0]}: no such verb; there are {', '.join(VERBS)}")
    module, function = VERBS[args[0]][0].split(":")
    return getattr(import_module(module), function)(args[1:])


def _fail(message: str, code: int) -> int:
    sys.stderr.write("".join(f"altalign: {line}\n" for line in message.splitlines()))
    return code


if __name__ == "__main__":
    sys.exit(main())
