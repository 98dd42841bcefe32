import io
import sys

import pytest
from rich.console import Console

from altalign import terminal
from altalign.terminal import lines_shown, shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a caption of çà 你好 \U0001f600", "a caption of çà 你好 \U0001f600"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("one\r\ntwo\ttabs", r"one\r\ntwo\ttabs"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
        ("\u2028", r"\u2028"),
        ("\U000e0041", r"\U000e0041"),
        ("caf\udce9", r"caf\udce9"),
        ("", ""),
    ],
)
def test_what_would_act_on_a_terminal_is_written_out(text: str, expected: str) -> None:
    assert shown(text) == expected
    assert shown(expected) == expected
    assert expected.isprintable()


def test_lines_stay_lines() -> None:
    assert lines_shown("a\n\x1bb\n") == "a\n\\x1bb\n"


def test_a_stream_of_another_encoding_takes_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    terminal.open_streams()
    sys.stdout.write("çà \udcff")
    sys.stdout.flush()
    assert raw.getvalue() == rb"\xe7\xe0 \udcff"


def test_a_closed_stream_takes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    terminal.open_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.write("nobody reads this")
        stream.close()


def test_consoles_take_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.stdout().print("run [red] :smile:")
    terminal.stderr().print("run [/x]")
    assert capsys.readouterr() == ("run [red] :smile:\n", "run [/x]\n")


def test_a_bar_is_for_terminals_and_for_one_of_several_processes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(terminal.followed("abc", "reading", "letters")) == ["a", "b", "c"]
    screen = io.StringIO()
    monkeypatch.setattr(terminal, "stderr", lambda: Console(file=screen, force_terminal=True, width=80))
    monkeypatch.setattr(terminal, "_has_bars", True)
    monkeypatch.setenv("RANK", "1")
    assert list(terminal.followed("abc", "reading", "letters")) == ["a", "b", "c"]
    assert (screen.getvalue(), capsys.readouterr()) == ("", ("", ""))
    monkeypatch.delenv("RANK")
    assert list(terminal.followed("abc", "reading", "letters")) == ["a", "b", "c"]
    assert "3/3" in screen.getvalue()
    assert " letters" in screen.getvalue()


def test_a_bar_ends_with_an_error_before_anybody_is_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(terminal, "stderr", lambda: Console(file=screen, force_terminal=True, width=80))
    monkeypatch.setattr(terminal, "_has_bars", True)
    try:
        for letter in terminal.followed("abc", "reading", "letters"):
            raise ValueError(letter)
    except ValueError:
        assert screen.getvalue().endswith("\x1b[2K")  # the line of the bar is gone
