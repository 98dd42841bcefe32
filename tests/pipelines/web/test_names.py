"""Names looked up by the system, in threads that hold up nobody."""

import asyncio
import socket
import threading

import pytest

from altalign.pipelines.web.transport import system_addresses


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
