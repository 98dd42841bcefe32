#!/usr/bin/env bash
# aiohttp 3.14.5: a request with the header "Connection: close" leaves its connection in the pool, and the next request is
# sent on it. RFC 9112, 9.6: a client that sends the option "close" must not send another request on that connection.
# Where the server closes it meanwhile, the next request is lost. `TCPConnector(force_close=True)` does close it.
# Exits with 1 if that changes.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check aiohttp==3.14.5
venv/bin/python - <<'P'
import asyncio
from contextlib import suppress

import aiohttp

RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def connections(**connector: bool) -> int:
    """How many connections a server is given for two requests that both say that theirs is to be closed."""
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        with suppress(asyncio.CancelledError):  # the end of the program
            while await reader.read(65536):
                writer.write(RESPONSE)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(**connector)) as session:
        for _ in range(2):
            async with session.get(url, headers={"Connection": "close"}) as response:
                assert await response.text() == "ok"
    server.close()
    return count


usual, forced = asyncio.run(connections()), asyncio.run(connections(force_close=True))
print(f"two requests with Connection: close used {usual} connection(s), with force_close {forced}")
assert (usual, forced) == (1, 2)
P
