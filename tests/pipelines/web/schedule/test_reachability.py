"""Whether the network is there, asked of real sockets."""

import asyncio
import errno
import os
import socket
from typing import NoReturn

import pytest

from altalign.pipelines.web.schedule.reachability import connects
from tests.pipelines.web.servers import refused, silent


def test_whoever_listens_can_be_connected_to() -> None:
    with silent() as port, refused() as nobody:
        assert asyncio.run(connects(("127.0.0.1", port)))
        assert not asyncio.run(connects(("127.0.0.1", nobody)))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAFNOSUPPORT])
def test_without_a_socket_nobody_can_be_connected_to(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Where it were an error, who waits for the news would wait for ever."""

    def none(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    async def tried() -> bool:
        with monkeypatch.context() as patched:
            patched.setattr(socket, "socket", none)
            return await connects(("127.0.0.1", 80))

    assert not asyncio.run(tried())
