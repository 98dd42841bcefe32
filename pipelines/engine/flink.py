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
_NO_LONGER_AT_WORK = (404, 409)  # answers to cancelling a job that has ended


class _EndedMeanwhileError(Exception):
    """A job has ended between looking and asking."""


def check_restarts(master: str) -> None:
    """Refuse a cluster that ends a job with its first lost worker; a job cannot change that.

    Raises:
        UsageError: the cluster has no restart strategy, or there is no cluster.
    """
    config = {entry["key"]: entry["value"] for entry in _asked(master, "jobmanager/config")}
    if config.get("restart-strategy.type", config.get("restart-strategy", "none")) in ("none", "off", "disable"):
        raise UsageError(
            f"-- --flink_master={master}: the cluster has no restart strategy, so that one lost worker would end the "
            'job; put "restart-strategy.type: fixed-delay", "restart-strategy.fixed-delay.attempts: 10" and '
            '"restart-strategy.fixed-delay.delay: 5 s" into its config.yaml, and start it anew'
        )


def cancel(master: str, prefix: str) -> None:
    """End the jobs whose names begin with `prefix`: a command that was killed leaves its jobs running.

    Raises:
        AltalignError: a job does not end.
    """
    end = time.monotonic() + ENDS_WITHIN_S
    asked: set[str] = set()
    while left := _running(master, prefix):
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


def _running(master: str, prefix: str) -> list[str]:
    jobs = _asked(master, "jobs/overview")["jobs"]
    return [job["jid"] for job in jobs if job["name"].startswith(prefix) and job["state"] not in _OVER]


def _asked(master: str, path: str, *, method: str = "GET") -> Any:
    address = master if "://" in master else f"http://{master}"
    request = urllib.request.Request(f"{address}/{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=ANSWERS_WITHIN_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            if method != "GET" and error.code in _NO_LONGER_AT_WORK:
                raise _EndedMeanwhileError from None
        repair = "give HOST:PORT of the REST interface of a Flink cluster"
        raise UsageError(f"-- --flink_master={master}: {error}, asked for {path}; {repair}") from None
    except (OSError, ValueError) as error:
        what = f"no Flink cluster answers there ({error})"
        raise UsageError(f"-- --flink_master={master}: {what}; give HOST:PORT of its REST interface") from None
