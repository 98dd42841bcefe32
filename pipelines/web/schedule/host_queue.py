"""A queue of hosts with something to ask: some may be asked now, others later. Pure: time is an argument."""

from collections import deque
from heapq import heappop, heappush
from itertools import count

from altalign.pipelines.web.schedule.hosts import Host


class HostQueue:
    """Holds each host in one of its lists, or in none if it has nothing to ask or no room for a request."""

    def __init__(self) -> None:
        self._sure: deque[Host] = deque()
        self._doubtful: deque[Host] = deque()
        self._later: list[tuple[float, int, Host]] = []
        self._number = count()

    def add(self, host: Host, now: float) -> None:
        """Puts a host into a list, if it needs a place and has none, or one that is too late."""
        if not host.is_wanted or not host.has_room:
            return
        ready_s = host.ready_s()
        if host.is_listed and ready_s >= host.listed_s:
            return
        host.is_listed, host.listed_s = True, ready_s if ready_s > now else 0.0
        if ready_s > now:
            heappush(self._later, (ready_s, next(self._number), host))
        else:
            (self._doubtful if host.is_doubtful else self._sure).append(host)

    def due(self, now: float) -> float:
        """Lets in the hosts whose time has come; returns when the next one's comes (infinite if there is none)."""
        while self._later and self._later[0][0] <= now:
            ready_s, _, host = heappop(self._later)
            if host.is_listed and host.listed_s == ready_s:  # otherwise it has another place
                host.is_listed = False
                self.add(host, now)
        return self._later[0][0] if self._later else float("inf")

    @property
    def has_sure(self) -> bool:
        """Whether a host that is not doubtful may be next."""
        return bool(self._sure)

    def sure(self, now: float) -> Host | None:
        """Takes out the next host that is not doubtful; None if there is none."""
        return self._first(self._sure, now, is_doubtful=False)

    def doubtful(self, now: float) -> Host | None:
        """Takes out the next doubtful host; None if there is none."""
        return self._first(self._doubtful, now, is_doubtful=True)

    def _first(self, hosts: "deque[Host]", now: float, *, is_doubtful: bool) -> Host | None:
        while hosts:
            host = hosts.popleft()
            host.is_listed = False
            if host.is_doubtful == is_doubtful and host.is_wanted and host.has_room and host.ready_s() <= now:
                return host
            self.add(host, now)  # to another list, if to any
        return None
