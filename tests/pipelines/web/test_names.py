"""Names looked up once for all who ask, kept for a while, and never waited for longer than who asks has time."""

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from altalign.pipelines.web import transport
from altalign.pipelines.web.transport import NOT_THERE, Names, system_addresses
from tests.pipelines.web.virtual import VirtualLoop


class Slow:
    """Takes seconds for a name, and notes when it was asked."""

    def __init__(self, seconds: float = 1.0, error: OSError | None = None):
        self.seconds, self.error, self.lookups = seconds, error, list[str]()

    async def addresses(self, host: str) -> Sequence[str]:
        self.lookups.append(host)
        await asyncio.sleep(self.seconds)
        if self.error:
            raise self.error
        return ["192.0.2.1", "192.0.2.2"]


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    names = VirtualLoop()
    yield names
    names.close()


def test_all_who_ask_at_once_share_a_lookup_and_it_is_kept(loop: VirtualLoop) -> None:
    async def main() -> None:
        resolver = Slow()
        names = Names(resolver.addresses)
        assert set(await asyncio.gather(*(names.addresses("a.test") for _ in range(20)))) == {
            ("192.0.2.1", "192.0.2.2")
        }
        await asyncio.sleep(transport.NAME_KEPT_S - 1)
        await names.addresses("a.test")
        assert resolver.lookups == ["a.test"]
        await asyncio.sleep(2)
        await names.addresses("a.test")
        assert resolver.lookups == ["a.test"] * 2
        await names.close()

    loop.run_until_complete(main())


def test_a_failure_is_told_to_all_and_not_kept(loop: VirtualLoop) -> None:
    async def main() -> None:
        resolver = Slow(error=socket.gaierror(socket.EAI_NONAME, "none"))
        names = Names(resolver.addresses)
        results = await asyncio.gather(*(names.addresses("a.test") for _ in range(3)), return_exceptions=True)
        assert [getattr(result, "errno", None) in NOT_THERE for result in results] == [True] * 3
        resolver.error = None
        assert await names.addresses("a.test")
        assert len(resolver.lookups) == 2

    loop.run_until_complete(main())


def test_who_has_no_more_time_leaves_the_others_waiting(loop: VirtualLoop) -> None:
    async def main() -> None:
        names = Names(Slow(seconds=10).addresses)
        patient = asyncio.create_task(names.addresses("a.test"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await names.addresses("a.test")
        assert await patient == ("192.0.2.1", "192.0.2.2")
        assert loop.time() == pytest.approx(10)

    loop.run_until_complete(main())


def test_a_lookup_that_never_ends_does(loop: VirtualLoop) -> None:
    async def main() -> None:
        names = Names(Slow(seconds=1e9).addresses)
        with pytest.raises(TimeoutError):
            await names.addresses("a.test")
        assert loop.time() == pytest.approx(transport.LOOKUP_S)

    loop.run_until_complete(main())


def test_waiting_for_a_turn_is_told_and_costs_no_time_of_the_lookup(loop: VirtualLoop) -> None:
    async def main() -> None:
        names, waits = Names(Slow(seconds=50).addresses, at_once=2), list[tuple[str, bool, float]]()

        def lookups(host: str) -> "asyncio.Task[tuple[str, ...]]":
            @contextmanager
            def held_up() -> Iterator[None]:
                waits.append((host, True, round(loop.time())))
                yield
                waits.append((host, False, round(loop.time())))

            return asyncio.create_task(names.addresses(host, held_up))

        assert set(await asyncio.gather(*map(lookups, "abcda"))) == {("192.0.2.1", "192.0.2.2")}
        assert [wait for wait in waits if wait[0] in "cd"] == [
            *(("c", True, 0), ("d", True, 0)),
            *(("c", False, 50), ("d", False, 50)),
        ]
        assert {wait[2] for wait in waits if wait[0] in "ab"} == {0}
        assert loop.time() == pytest.approx(100)

    loop.run_until_complete(main())


def test_closing_ends_lookups_under_way(loop: VirtualLoop) -> None:
    async def main() -> None:
        names = Names(Slow(seconds=1e9).addresses)
        asking = asyncio.create_task(names.addresses("a.test"))
        await asyncio.sleep(0.1)
        await names.close()
        with pytest.raises(asyncio.CancelledError):
            await asking

    loop.run_until_complete(main())


def test_only_so_many_names_are_kept(loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "NAMES_KEPT", 3)

    async def main() -> None:
        resolver = Slow(seconds=0)
        names = Names(resolver.addresses)
        for host in "abcda":
            await names.addresses(host)
        assert resolver.lookups == list("abcda")
        await names.addresses("d")
        assert resolver.lookups == list("abcda")

    loop.run_until_complete(main())


def test_the_system_knows_this_machine() -> None:
    async def main() -> None:
        names = await asyncio.gather(*(system_addresses("localhost") for _ in range(10)))
        assert all(set(addresses) & {"127.0.0.1", "::1"} for addresses in names)
        with pytest.raises(socket.gaierror):
            await system_addresses("x" * 300 + ".test")

    asyncio.run(main())


def test_lookups_that_hang_hold_up_neither_the_others_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of all names may be dead, and each of those takes as long as hundreds of others."""
    release, dead = threading.Event(), 150

    def getaddrinfo(host: bytes, *_: object, **__: object) -> list[tuple[object, ...]]:
        if host.startswith(b"hang"):
            release.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.9", 0))]

    async def main() -> None:
        hanging = [asyncio.create_task(system_addresses(f"hang{n}")) for n in range(dead)]
        assert await system_addresses("a.test") == ["192.0.2.9"]
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    asyncio.run(main())
    left = [thread for thread in threading.enumerate() if thread.name == "altalign-names"]
    assert len(left) == dead
    assert all(thread.daemon for thread in left)
    release.set()
    for thread in left:
        thread.join()


def test_a_machine_without_another_thread_is_to_blame_and_not_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        asyncio.run(system_addresses("localhost"))
