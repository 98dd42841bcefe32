"""`altalign VERB …`: imports a verb's module when it is called, and reports every error as a line and an exit code."""

import argparse
import errno
import logging
import os
import select
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TypeAlias

from altalign import __version__, terminal
from altalign.errors import AltalignError, UsageError
from altalign.machine import interrupts, startup
from altalign.storage import full_disk

Verbs: TypeAlias = Mapping[str, tuple[str, str]]  # module:function, and what it does

# Groups of verbs, as --help shows them: where each is, and what it does.
_GROUPS = {
    "Curate": {
        "init": ("curate:init", "write a first config for files that you have"),
        "demo": ("curate:demo", "write the demo web; serve it on loopback"),
        "trial": ("curate:trial", "try a curation on a sample: what it will keep, and take"),
        "curate": ("curate:curate", "run a curation; run again, it continues where it stopped"),
        "retry": ("curate:retry", "fetch again what could not be fetched, then finish the run anew"),
        "calibrate": ("curate:calibrate", "measure what is found, and choose the threshold"),
    },
    "Look at a run": {
        "status": ("look:status", "how far a run is; what it was made of"),
        "audit": ("audit:main", "check a run and write its report; compare two runs"),
        "browse": ("look:browse", "look at everything kept and dropped, and decide"),
        "search": ("look:search", "find pairs by what their images show, or by a picture"),
        "explain": ("look:explain", "what happened to a pair in every stage, and why"),
        "clean": ("look:clean", "delete intermediate files (RUN/work)"),
    },
    "Change a run": {
        "add": ("change:add", "add input, or test sets, to a finished run"),
        "remove": ("change:remove", "take pairs out of a finished run, and all that has them"),
        "score": ("change:score", "measure scores on a run's samples, or sort its images into clusters"),
        "select": ("change:select", "make runs of another one's samples: by scores, by a list, by shares"),
        "merge": ("change:merge", "make one run of several, or one generation of the shards of one"),
    },
    "Train": {
        "train": ("train:main", "train a dual encoder on shards; run again, it goes on"),
        "eval": ("train:evaluate", "measure a trained model on sets; compare two models"),
        "nlip": ("train:nlip", "noise of pairs, captions and concepts, as NLIP has them"),
        "encode": ("train:encode", "write what a trained model makes of images and captions"),
        "export": ("train:export", "write a trained model as other libraries open it"),
    },
    "Your shell": {
        "completion": ("completion:main", "complete verbs, options and paths in bash, zsh or fish"),
    },
}
VERBS: Verbs = {
    verb: (f"altalign.commands.{place}", about) for group in _GROUPS.values() for verb, (place, about) in group.items()
}


def usage() -> str:
    """The text of `altalign --help`."""
    verbs = "\n\n".join(
        f"{group}:\n" + "\n".join(f"  {verb:<10} {about}" for verb, (_, about) in verbs.items())
        for group, verbs in _GROUPS.items()
    )
    return f"""usage: altalign VERB ...

{verbs}

`altalign VERB --help` says what a verb takes. --debug, anywhere, shows the
traceback of an error; --version says which altalign this is.
The config.toml of every run lists the settings of a config, with their values.
Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 130 interrupted
(128 + the signal's number).
"""


def main(argv: Sequence[str] | None = None, verbs: Verbs = VERBS) -> int:
    """Run one verb; returns the exit code. Without `argv`, the command line and the process itself are ours."""
    if argv is None:
        startup.prepare()
    terminal.open_streams()
    args = list(sys.argv[1:] if argv is None else argv)
    is_debug = "--debug" in (args[: args.index("--")] if "--" in args else args)
    if is_debug:
        args.remove("--debug")
    # Log messages of libraries are not for the user.
    logging.getLogger().setLevel(logging.WARNING if is_debug else logging.CRITICAL)
    try:
        with interrupts.handled(to_the_end=argv is None):
            code = _run(args, verbs)
            sys.stdout.flush()
            return code
    except SystemExit as leave:
        # argparse exits like this after its own message. rich exits with 1 and no message when the reader of our
        # output has left; it has closed stdout by then.
        if leave.code == 1 and isinstance(leave.__context__, BrokenPipeError):
            return 0
        raise
    except KeyboardInterrupt as error:
        name = "" if error.args in ((), ("SIGINT",)) else f" ({error})"
        anew = next((f" without {flag}" for flag in ("--restart", "--rerun") if flag in args), "")
        code = error.exit_code if isinstance(error, interrupts.Interrupted) else 130
        return _fail(f"interrupted{name}; run the same command again{anew}, it continues", code)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_left():
            _discard_output()
            return 0
        try:
            sys.stdout.flush()
        except OSError:  # to a full disk
            _discard_output()
        if is_debug:
            sys.stderr.write(terminal.lines_shown(traceback.format_exc()))
        return _fail(_message(error), error.exit_code if isinstance(error, AltalignError) else 1)
    finally:
        # Where it was not imported, there are no processes to close; importing it takes a hundredth of a second.
        if "altalign.machine.processes" in sys.modules:
            sys.modules["altalign.machine.processes"].OF_COMMAND.close()


def _run(args: list[str], verbs: Verbs) -> int:
    if "_ARGCOMPLETE" in os.environ:
        args = _words_before(verbs)
    if not args or args[0] in ("-h", "--help", "help"):
        (sys.stdout if args else sys.stderr).write(usage())
        return 0 if args else UsageError.exit_code
    if args[0] == "--version":
        sys.stdout.write(f"altalign {__version__}\n")
        return 0
    if args[0] not in verbs:
        raise UsageError(f"{args[0]}: no such verb (there are: {', '.join(verbs)})")
    module, function = verbs[args[0]][0].split(":")
    return getattr(import_module(module), function)(args[1:])


def _words_before(verbs: Verbs) -> list[str]:
    """The words before the one that a shell completes; where it is the verb, it is completed, and the process ends."""
    import argcomplete
    from argcomplete.lexers import split_line

    *_, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
    if not words[1:]:
        parser = argparse.ArgumentParser("altalign")
        each = parser.add_subparsers()
        for verb, (_, about) in verbs.items():
            each.add_parser(verb, help=about)
        argcomplete.autocomplete(parser, always_complete_options=False)  # the process ends
    return words[1:]


def _reader_left() -> bool:
    """Whether the reader of our output has closed it; a broken pipe between workers is an error instead."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(0))


def _discard_output() -> None:
    """Discard what is still to be flushed: at its end the interpreter would fail on it, with a code of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _message(error: Exception) -> str:
    """What went wrong, for users, and what to do about it."""
    if isinstance(error, AltalignError):
        return str(error)
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        details = f" ({error})" if str(error) else ""
        return f"out of memory{details}; give the command more and run it again, it continues"
    if isinstance(error, OSError):
        if (full := full_disk(error, error.filename or "")) is not None:
            return str(full)
        return f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}; --debug shows where"
    details = (str(error).strip().splitlines() or [""])[0]
    return (
        f"{type(error).__name__}: {details}; a defect of altalign, or a file of the run was changed by hand; "
        "please report it with what --debug shows"
    )


def _fail(message: str, code: int) -> int:
    sys.stderr.write("".join(f"altalign: {terminal.shown(line)}\n" for line in message.split("\n")))
    return code


if __name__ == "__main__":
    sys.exit(main())
