"""`altalign VERB …`: a verb's module is imported when it is called; every mistake is one line and an exit code."""

import difflib
import errno
import logging
import os
import select
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from altalign import __version__, terminal
from altalign.errors import AltalignError, UsageError
from altalign.machine import interrupts, startup
from altalign.storage import full_disk

VERBS = {
    "curate": ("altalign.pipelines.command:main", "run a curation; run again, it continues where it stopped"),
    "retry": ("altalign.pipelines.command:retry", "fetch again what could not be fetched, then finish the run anew"),
    "decontaminate": ("altalign.pipelines.command:decontaminate", "add a test set to a run; its near-duplicates go"),
    "calibrate": ("altalign.pipelines.command:calibrate", "measure what is found, and choose the threshold"),
    "status": ("altalign.audit.status:main", "how far a run is"),
    "explain": ("altalign.audit.explain:main", "what happened to a pair in every stage, and why"),
    "audit": ("altalign.audit.command:main", "check a run and write its report; compare two runs"),
    "train": ("altalign.train.command:main", "train a dual encoder on shards; run again, it goes on"),
    "eval": ("altalign.train.command:evaluate", "measure a trained model: retrieval in both directions"),
    "clean": ("altalign.audit.clean:main", "delete what stages handed on (RUN/work)"),
    "demo": ("altalign.demo.main:main", "write the demo web; serve it on loopback"),
}

# by its name, as verbs are: pipelines know nothing of the audit
AFTER_A_CURATION = "altalign.audit.command:after_curation"


def usage() -> str:
    """The text of `altalign --help`."""
    verbs = "\n".join(f"  {verb:<13} {about}" for verb, (_, about) in VERBS.items())
    return f"""usage: altalign VERB ...

{verbs}

`altalign VERB --help` says what a verb takes. --debug, anywhere, shows the
traceback of an error; --version says which altalign this is.
Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 130 interrupted
(128 + the signal's number).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code. Without `argv` it is the process's command line, and the process is ours."""
    if argv is None:
        startup.prepare()
    terminal.open_streams()
    try:
        with interrupts.handled(to_the_end=argv is None):
            return _main(argv)
    except KeyboardInterrupt as error:
        name = "" if error.args in ((), ("SIGINT",)) else f" ({error})"
        anew = next(
            (f" without {flag}" for flag in ("--restart", "--rerun") if flag in (sys.argv if argv is None else argv)),
            "",
        )
        code = error.exit_code if isinstance(error, interrupts.Interrupted) else 130
        return _fail(f"interrupted{name}; run the same command again{anew}, it continues", code)
    finally:
        # else there are none, and importing it takes a hundredth of a second
        if "altalign.machine.processes" in sys.modules:
            sys.modules["altalign.machine.processes"].OF_COMMAND.close()
        if argv is None:
            startup.leave()


def _main(argv: Sequence[str] | None) -> int:
    args = list(sys.argv[1:] if argv is None else argv)
    ours = args[: args.index("--")] if "--" in args else args
    is_debug = "--debug" in ours
    if is_debug:
        args.remove("--debug")
    # the libraries' remarks are not for the user
    logging.getLogger().setLevel(logging.WARNING if is_debug else logging.CRITICAL)
    try:
        code = _run(args)
        sys.stdout.flush()
    except SystemExit as leave:
        # argparse leaves so after its own message; rich, with 1 and in silence, when the reader of our output left: it
        # has closed stdout then
        if leave.code == 1 and isinstance(leave.__context__, BrokenPipeError):
            return 0
        raise
    except Exception as error:
        if _reader_left(error):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be flushed goes nowhere
            return 0
        if is_debug:
            sys.stderr.write(terminal.lines_shown(traceback.format_exc()))
        return _fail(*_trouble(error))
    return code


def _run(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        (sys.stdout if args else sys.stderr).write(usage())
        return 0 if args else UsageError.exit_code
    if args[0] == "--version":
        sys.stdout.write(f"altalign {__version__}\n")
        return 0
    if args[0] not in VERBS:
        near = difflib.get_close_matches(args[0], VERBS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(VERBS)}"
        raise UsageError(f"{args[0]}: no such verb ({hint})")
    return call(VERBS[args[0]][0], args[1:])


def call(named: str, argument: Any) -> int:
    """Call a function by "module:name"; returns the exit code."""
    module, function = named.split(":")
    return getattr(import_module(module), function)(argument)


def _reader_left(error: Exception) -> bool:
    """Whether this is about the reader of our output, who has seen enough; a broken pipe between workers is trouble."""
    if not isinstance(error, BrokenPipeError):
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(0))


def _trouble(error: Exception) -> tuple[str, int]:
    """Message and exit code."""
    if isinstance(error, AltalignError):
        return str(error), error.exit_code
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return (
            f"out of memory{f' ({error})' if str(error) else ''}; give the command more and run it again, it continues",
            AltalignError.exit_code,
        )
    if not isinstance(error, OSError):
        said = str(error).strip().splitlines() or [""]
        return (
            f"{type(error).__name__}: {said[0]}; a defect of altalign, or a file of the run was changed by hand; please report it with what --debug shows",
            AltalignError.exit_code,
        )
    if (full := full_disk(error, error.filename or "")) is not None:
        return str(full), AltalignError.exit_code
    return (
        f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}; --debug shows where",
        AltalignError.exit_code,
    )


def _fail(message: str, code: int) -> int:
    sys.stderr.write("".join(f"altalign: {terminal.shown(line)}\n" for line in message.split("\n")))
    return code


if __name__ == "__main__":
    sys.exit(main())
