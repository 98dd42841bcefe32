"""Programs beside a command: they answer, or it says what they said; they end with it."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from altalign.errors import AltalignError
from altalign.pipelines.engine.servers import Server, serving

PATIENCE_S = 300
LISTENS = (
    "import socket, sys, time; s = socket.create_server(('localhost', int(sys.argv[1]))); print('here', flush=True); "
    "time.sleep(600)"
)


def server(program: str) -> Server:
    return Server("the server", lambda port: [sys.executable, "-c", program, str(port)], 20.0)


def is_listened_at(endpoint: str) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("localhost", int(endpoint.split(":")[1]))) == 0


def test_a_server_answers_as_long_as_the_block_and_no_longer(tmp_path: Path) -> None:
    with serving(server(LISTENS), str(tmp_path / "log" / "server.log")) as endpoint:
        assert is_listened_at(endpoint)
    assert not is_listened_at(endpoint)
    assert (tmp_path / "log" / "server.log").read_text() == "here\n"


@pytest.mark.parametrize(
    "program", ["raise SystemExit('no room')", "print('x\\n' * 9 + 'no room'); raise SystemExit(1)"]
)
def test_one_that_ends_at_once_is_an_error_with_its_last_words(tmp_path: Path, program: str) -> None:
    log = tmp_path / "server.log"
    with (
        pytest.raises(
            AltalignError, match=r"the server does not answer on port \d+; .*server.log has what it said: .*no room"
        ) as caught,
        serving(server(program), str(log)),
    ):
        raise AssertionError
    assert len(str(caught.value).splitlines()) == 1


def test_one_that_ends_is_an_error_where_its_log_cannot_be_read_too(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with (
        pytest.raises(AltalignError, match="the server does not answer on port"),
        serving(server(f"import os; os.unlink({str(log)!r})"), str(log)),
    ):
        raise AssertionError


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no signal at a parent's death")
def test_a_server_ends_with_a_killed_parent(tmp_path: Path) -> None:
    program = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parents[3])!r})
        from altalign.pipelines.engine.servers import Server, serving
        listens = Server("s", lambda port: [sys.executable, "-c", {LISTENS!r}, str(port)], 20.0)
        with serving(listens, {str(tmp_path / "log")!r}) as endpoint:
            print(endpoint, flush=True)
            sys.stdin.read()
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    endpoint = parent.stdout.readline().strip()
    assert is_listened_at(endpoint)
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    end = time.monotonic() + PATIENCE_S
    while is_listened_at(endpoint):
        assert time.monotonic() < end
        time.sleep(0.01)
