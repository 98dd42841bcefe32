"""What a test leaves changed is seen, named, and made as it was."""

import os
import signal
from pathlib import Path

import pytest

from tests import process_state


def test_what_a_test_leaves_is_named_and_made_as_it_was(tmp_path: Path) -> None:
    before = process_state.current()
    os.environ["ALTALIGN_LEFT"] = "1"
    os.chdir(tmp_path)
    os.umask(0o007)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    changed = process_state.changed(before, process_state.current())
    process_state.restore(before, list(changed))
    assert list(changed) == ["environment variable ALTALIGN_LEFT", "folder", "handler of SIGUSR1", "umask"]
    assert changed["folder"] == f"folder was {before['folder']!r} and is {str(tmp_path)!r}"
    assert process_state.changed(before, process_state.current()) == {}


def test_a_variable_that_is_gone_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALTALIGN_LEFT", "1")
    before = process_state.current()
    del os.environ["ALTALIGN_LEFT"]
    process_state.restore(before, list(process_state.changed(before, process_state.current())))
    assert os.environ["ALTALIGN_LEFT"] == "1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_is_the_first_again() -> None:
    before = process_state.current()
    os.seteuid(65_534)
    changed = process_state.changed(before, process_state.current())
    process_state.restore(before, list(changed))
    assert list(changed) == ["user"]
    assert os.geteuid() == 0
