import ast
import errno
import importlib.util
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from altalign import __version__, cli, errors
from altalign.cli import VERBS, main

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _log_level_of_before() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[list[str]], int]], None]:
    """Makes the verb `try` do what it is given."""

    def install(does: Callable[[list[str]], int]) -> None:
        module = ModuleType("verb_under_test")
        module.main = does  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "verb_under_test", module)
        monkeypatch.setitem(VERBS, "try", ("verb_under_test:main", "for tests"))

    return install


def raising(error: BaseException) -> Callable[[list[str]], int]:
    def does(_: list[str]) -> int:
        raise error

    return does


def run_altalign(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "altalign.cli", *arguments],
        cwd=ROOT,
        text=True,
        capture_output=not options,
        check=False,
        **options,
    )  # type: ignore[call-overload]


def test_the_module_is_a_command() -> None:
    ended = run_altalign("--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"altalign {__version__}\n", "")


@pytest.mark.parametrize("ask", ["-h", "--help", "help"])
def test_help_names_every_verb(ask: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([ask]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("usage: altalign VERB ...\n")
    assert all(f"  {name} " in out and about in out for name, (_, about) in VERBS.items())
    assert max(map(len, out.splitlines())) <= 80


def test_no_verb_is_wrong_usage_and_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["--debug"]) == 2
    assert capsys.readouterr() == ("", 2 * cli.usage())


def test_an_unknown_verb_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zzz"]) == 2
    assert capsys.readouterr().err == f"altalign: zzz: no such verb (there are: {', '.join(VERBS)})\n"


def test_every_verb_has_a_function() -> None:
    for name, (target, _) in VERBS.items():
        module, function = target.split(":")
        spec = importlib.util.find_spec(module)
        assert spec, name
        assert spec.origin, name
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name


def test_a_verb_is_given_its_arguments_and_its_exit_code_is_ours(verb: Callable[..., None]) -> None:
    given: list[str] = []

    def does(arguments: list[str]) -> int:
        given.extend(arguments)
        return 7

    verb(does)
    assert main(["try", "--debug", "a", "--", "--debug", "--streaming"]) == 7
    assert given == ["a", "--", "--debug", "--streaming"]


DEFECT = (
    "altalign: ZeroDivisionError: ours; a defect of altalign, or a file of the run was changed by hand; please "
    "report it with what --debug shows\n"
)
FULL = (
    r"altalign: /runs/x: no space left on the device \([\d,]+ bytes free\); make room and run the same command "
    r"again, it continues\n"
)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (errors.AltalignError("a.toml: no such file"), 1, "altalign: a\\.toml: no such file\n"),
        (errors.CountsError("one"), 1, "altalign: one\n"),
        (errors.NotFoundError("one"), 1, "altalign: one\n"),
        (errors.UsageError("one\ntwo"), 2, "altalign: one\naltalign: two\n"),
        (PermissionError(errno.EACCES, "denied", "/runs/x"), 1, "altalign: /runs/x: denied; --debug shows where\n"),
        (OSError(errno.ENOSPC, "No space left on device", "/runs/x"), 1, FULL),
        (ZeroDivisionError("ours\nand more"), 1, DEFECT),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 1, "altalign: Broken pipe; --debug shows where\n"),
        (MemoryError(), 1, "altalign: out of memory; give the command more and run it again, it continues\n"),
    ],
)
def test_an_error_is_a_line_and_an_exit_code_and_debug_shows_where_it_is(
    error: Exception, code: int, said: str, verb: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    verb(raising(error))
    assert main(["try"]) == code
    out, err = capfd.readouterr()
    assert not out
    assert re.fullmatch(said, err)
    assert main(["try", "--debug"]) == code
    assert capfd.readouterr().err.startswith("Traceback (most recent call last):")


def test_no_name_in_an_error_acts_on_a_terminal(verb: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    verb(raising(errors.UsageError("\x1b[2J\u202egpj.exe\r: no such file\nmore")))
    assert main(["try", "--debug"]) == 2
    assert capsys.readouterr().err.endswith("altalign: \\x1b[2J\\u202egpj.exe\\r: no such file\naltalign: more\n")
    assert main(["try"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_help_and_wrong_usage_load_nothing_heavy() -> None:
    """Beam, kernels and Arrow take most of a second, settings and tables on a terminal a tenth each."""
    script = """
import contextlib, io, sys
from altalign.cli import VERBS, main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    of_verbs = [*([verb, "--help"] for verb in VERBS), *([verb] for verb in VERBS)]
    for arguments in [[], ["--version"], ["no-verb"], *of_verbs, ["status", "nowhere"]]:
        try:
            code = main(arguments)
        except SystemExit as end:  # argparse
            code = end.code
        assert code == (0 if "--help" in arguments or "--version" in arguments else 2), arguments
print(*{"apache_beam", "numba", "numpy", "PIL", "pyarrow", "pydantic", "rich"} & set(sys.modules))
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, text=True, capture_output=True, check=True)
    assert (ended.stdout, ended.stderr) == ("\n", "")


@pytest.mark.parametrize(("closed", "code"), [(">&-", 0), ("2>&-", 0), ("<&-", 0), (">&- 2>&-", 0)])
def test_streams_may_be_closed(closed: str, code: int) -> None:
    for arguments, expected in (("--help", code), ("no-verb", 2)):
        ended = subprocess.run(
            ["sh", "-c", f"{sys.executable} -m altalign.cli {arguments} {closed}"],
            cwd=ROOT,
            text=True,
            capture_output=True,
            check=False,
        )
        assert ended.returncode == expected
        assert "Traceback" not in ended.stderr


def test_an_interrupt_is_a_line_and_130(verb: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    verb(raising(KeyboardInterrupt()))
    assert main(["try"]) == 130
    assert capsys.readouterr() == ("", "altalign: interrupted; run the same command again, it continues\n")
    assert main(["try", "--restart"]) == 130
    assert capsys.readouterr() == (
        "",
        "altalign: interrupted; run the same command again without --restart, it continues\n",
    )


def test_a_reader_that_left_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        ended = run_altalign("--help", stdout=write, stderr=subprocess.PIPE)
    finally:
        os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_to_a_full_disk_is_an_error(unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        ended = run_altalign("--help", stdout=full, stderr=subprocess.PIPE, env=environment)
    assert (ended.returncode, ended.stderr) == (
        1,
        "altalign: the disk: no space left on the device; make room and run the same command again, it continues\n",
    )
