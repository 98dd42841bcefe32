"""What is asked of a Flink cluster by its REST interface, and told."""

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from altalign.errors import UsageError
from altalign.pipelines.engine import flink


class _Rest(http.server.BaseHTTPRequestHandler):
    """A cluster's REST interface, as far as it is asked: what it answers and what it was told to cancel."""

    answers: ClassVar[dict[str, Any]] = {}
    cancelled: ClassVar[list[str]] = []
    cancels_with: ClassVar[int] = 202

    def do_GET(self) -> None:
        self._say(self.answers[self.path])

    def do_PATCH(self) -> None:
        self.cancelled.append(self.path)
        job = self.path.split("/")[2].split("?")[0]
        self.answers["/jobs/overview"]["jobs"] = [
            each for each in self.answers["/jobs/overview"]["jobs"] if each["jid"] != job
        ]
        self._say({}, self.cancels_with)

    def _say(self, value: Any, status: int = 200) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's names
        """Say nothing."""


@pytest.fixture
def rest() -> Iterator[tuple[str, type[_Rest]]]:
    """Address of a REST interface, and what it answers."""
    answering = type("Rest", (_Rest,), {"answers": {}, "cancelled": []})
    with http.server.HTTPServer(("localhost", 0), answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"localhost:{server.server_address[1]}", answering
        server.shutdown()


@pytest.mark.parametrize(
    ("strategy", "is_fit"),
    [({}, False), ({"restart-strategy.type": "none"}, False), ({"restart-strategy.type": "fixed-delay"}, True)],
)
def test_a_flink_cluster_that_restarts_nothing_is_refused(
    rest: tuple[str, type[_Rest]],
    strategy: dict[str, str],
    is_fit: bool,  # noqa: FBT001
) -> None:
    rest[1].answers["/jobmanager/config"] = [
        {"key": key, "value": value} for key, value in {"rest.port": "1", **strategy}.items()
    ]
    if is_fit:
        flink.check_restarts(rest[0])
    else:
        with pytest.raises(
            UsageError,
            match=r'no restart strategy, so that one lost worker .*; put "restart-strategy.type: fixed-delay"',
        ):
            flink.check_restarts(rest[0])


def test_jobs_that_a_killed_command_left_are_ended_and_no_others(rest: tuple[str, type[_Rest]]) -> None:
    jobs = [
        ("a", "altalign-1-judge", "RUNNING"),
        ("b", "altalign-1-extract", "FINISHED"),
        ("c", "altalign-2-judge", "RUNNING"),
        ("d", "altalign-1-x", "RESTARTING"),
    ]
    rest[1].answers["/jobs/overview"] = {
        "jobs": [{"jid": jid, "name": name, "state": state} for jid, name, state in jobs]
    }
    flink.cancel(rest[0], "altalign-1-")
    assert sorted(rest[1].cancelled) == ["/jobs/a?mode=cancel", "/jobs/d?mode=cancel"]


@pytest.mark.parametrize("status", [404, 409])
def test_a_job_that_ends_before_it_is_cancelled_is_no_trouble(rest: tuple[str, type[_Rest]], status: int) -> None:
    rest[1].cancels_with = status
    rest[1].answers["/jobs/overview"] = {"jobs": [{"jid": "a", "name": "altalign-1-judge", "state": "RUNNING"}]}
    flink.cancel(rest[0], "altalign-1-")
    assert rest[1].cancelled == ["/jobs/a?mode=cancel"]


def test_what_answers_and_is_no_flink_is_said(rest: tuple[str, type[_Rest]]) -> None:
    rest[1].do_GET = lambda self: self._say({}, 403)  # type: ignore[method-assign]
    with pytest.raises(
        UsageError,
        match=r"HTTP Error 403: Forbidden, asked for jobmanager/config; give HOST:PORT of the REST interface of a",
    ):
        flink.check_restarts(rest[0])
