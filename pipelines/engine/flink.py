"""Asks a Flink cluster whether it restarts jobs, and cancels those that an earlier command left running."""

import json
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

from altalign.errors import AltalignError, UsageError
from altalign.machine import interrupts

ANSWERS_WITHIN_S = 10.0
ENDS_WITHIN_S = 120.0
_OVER = {"FINISHED", "CANCELED", "FAILED"}
_NO_LONGER_AT_WORK = (404, 409)  # what is answered when such a job is to be cancelled


class _EndedMeanwhileError(Exception):
    """A job has ended between looking and asking."""


def check_restarts(master: str) -> None:
    """Refuse a cluster that gives a job up with its first worker; a job cannot change that.

    Raises:
        UsageError: it has no restart strategy, or there is no cluster.
    """
    config = {entry["key"]: entry["value"] for entry in _asked(master, "jobmanager/config")}
    if config.get("restart-strategy.type", config.get("restart-strategy", "none")) in ("none", "off", "disable"):
        raise UsageError(
            f"-- --flink_master={master}: the cluster has no restart strategy, so that one lost worker would end the "
            "job; put "
            '"restart-strategy.type: fixed-delay", "restart-strategy.fixed-delay.attempts: 10" and '
            '"restart-strategy.fixed-delay.delay: 5 s" '
            "into its config.yaml, and start it anew"
        )


def cancel(master: str, prefix: str) -> None:
    """End the jobs whose names begin so: of a command that was killed, for they outlive it.

    Raises:
        AltalignError: one does not end.
    """
    end = time.monotonic() + ENDS_WITHIN_S
    asked: set[str] = set()
    while left := [
        job["jid"]
        for job in _asked(master, "jobs/overview")["jobs"]
        if job["name"].startswith(prefix) and job["state"] not in _OVER
    ]:
        for job in set(left) - asked:
            with suppress(_EndedMeanwhileError):
                _asked(master, f"jobs/{job}?mode=cancel", method="PATCH")
        asked |= set(left)
        if time.monotonic() > end:
            raise AltalignError(
                f"{master}: the job {left[0]} of an earlier command does not end; cancel it there and run the same "
                "command again, it continues"
            )
        interrupts.check()
        time.sleep(0.2)


def _asked(master: str, path: str, *, method: str = "GET") -> Any:
    address = master if "://" in master else f"http://{master}"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{address}/{path}", method=method), timeout=ANSWERS_WITHIN_S
        ) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            if method != "GET" and error.code in _NO_LONGER_AT_WORK:
                raise _EndedMeanwhileError from None
        raise UsageError(
            f"-- --flink_master={master}: {error}, asked for {path}; give HOST:PORT of the REST interface of a Flink "
            "cluster"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"-- --flink_master={master}: no Flink cluster answers there ({error}); give HOST:PORT of its REST "
            "interface"
        ) from None
