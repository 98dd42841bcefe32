"""A web server that answers well or badly, as each URL says: a process of its own, on loopback alone.

    python -m tests.web_server.server --log FILE --folder FOLDER [--port 0] [--address 127.0.0.1 …] [--demo FOLDER]
    [--certificate FILE]

Prints a line of JSON with its ports, and serves until its standard input ends: nobody has to stop it. `port` speaks
HTTP, `tls_port` HTTPS where there is a certificate; `refused_port` refuses connections, `full_port` never takes
one, and `handshake_port` answers no greeting of TLS as it should.
Every request is noted in the log before it is answered.

The first part of a path says what comes (`answers`, `broken`); `header=LINE` in the query adds a header to a good
answer, `wait=SECONDS` lets it wait. Some hosts decide all that they are asked: `hang….…` never answers, `NAME.robots.…`
has the robots.txt of that name (`robots`), `NAME.tdmrep.…` that tdmrep.json, those of a demo web answer as archived.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from tests.web_server import answers, broken, robots
from tests.web_server.exchange import HEAD_BYTES_AT_MOST, Client, LeftError, Log, Request, State

Answer = Callable[[Request, Client, State], Awaitable[None]]
ANSWERS: Mapping[str, Answer] = {**answers.ANSWERS, **broken.ANSWERS}


async def answer(request: Request, client: Client, state: State) -> None:
    """Whatever this request is answered with."""
    if request.host.startswith("hang"):
        await client.wait(None)
    elif state.demo is not None and (archived := state.demo(request)) is not None:
        await client.respond(*archived)
    elif request.target == "/robots.txt":
        await robots.answer(request, client, state)
    elif request.target == "/.well-known/tdmrep.json":
        await robots.reservations(request, client, state)
    else:
        if seconds := request.number_of("wait", 0):
            await client.wait(seconds)
        await ANSWERS.get(request.name, answers.not_found)(request, client, state)


async def serve_client(state: State, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All requests of one connection."""
    state.connections += 1
    connection, client = state.connections, Client(reader, writer)
    address, port = writer.get_extra_info("sockname")[:2]
    state.log.write("open", connection=connection, address=address, port=port)
    try:
        while (received := await client.head()) is not None:
            state.requests += 1
            request = parsed(received, state.requests)
            state.log.write(
                "request", number=request.number, connection=connection, method=request.method, host=request.host,
                target=request.target,
                headers=request.headers, address=address,
            )  # fmt: skip
            client.bytes_sent, is_whole = 0, False
            try:
                await answer(request, client, state)
                is_whole = True
            finally:
                state.log.write("end", number=request.number, bytes=client.bytes_sent, is_whole=is_whole)
            if request.headers.get("connection", "").lower() == "close":
                break
    except LeftError:
        pass
    finally:
        state.log.write("close", connection=connection)
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await writer.wait_closed()


async def shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """TLS as the name in the greeting says: a byte now and then, messages without end, or silence."""
    client, greeting = Client(reader, writer), await reader.read(4_096)
    try:
        if b"drip" in greeting:
            await client.send(b"\x16\x03\x03\x40\x00")  # a record of 16 KiB
            while True:
                await client.send(b"\x02")
                await client.wait(0.05)
        while b"endless" in greeting:
            await client.send(b"\x16\x03\x03\x40\x00\x02\xff\xff\xff" + bytes(16_380))  # of a message of 16 MiB
        await client.wait(None)
    except LeftError:
        writer.close()


def parsed(received: bytes, number: int) -> Request:
    """A request's head, read with little care."""
    first, *lines = received.decode("latin-1").split("\r\n")
    method, target, _ = (*first.split(" "), "", "")[:3]
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    return Request(number, method, target, headers)


def refusing() -> socket.socket:
    """A port that nobody listens at, and that nobody else gets."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    return taken


def full() -> list[socket.socket]:
    """A port whose queue is full: whoever connects waits for an answer.

    The listening socket, and those that fill it.
    """
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(0)
    waiting = [socket.socket() for _ in range(3)]
    for one in waiting:
        one.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            one.connect(listening.getsockname())
    return [listening, *waiting]


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until standard input ends."""
    state = State(Log(arguments.log), arguments.folder, answers.of_demo(arguments.demo) if arguments.demo else None)

    async def one_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve_client(state, reader, writer)

    addresses = arguments.address or ["127.0.0.1"]
    first = await asyncio.start_server(one_client, addresses[0], arguments.port, limit=HEAD_BYTES_AT_MOST, backlog=1024)
    port = first.sockets[0].getsockname()[1]
    servers = [
        first,
        *[
            await asyncio.start_server(one_client, address, port, limit=HEAD_BYTES_AT_MOST, backlog=1024)
            for address in addresses[1:]
        ],
    ]
    tls_port = None
    if arguments.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(arguments.certificate)
        servers.append(await asyncio.start_server(one_client, addresses[0], arguments.tls_port, ssl=context))
        tls_port = servers[-1].sockets[0].getsockname()[1]
    handshakes = await asyncio.start_server(shake_hands, addresses[0], 0)
    refused, filled = refusing(), full()
    ports = {
        "port": port,
        "tls_port": tls_port,
        "refused_port": refused.getsockname()[1],
        "full_port": filled[0].getsockname()[1],
        "handshake_port": handshakes.sockets[0].getsockname()[1],
    }
    state.log.write("start", **ports)
    sys.stdout.write(json.dumps(ports) + "\n")
    sys.stdout.flush()
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, sys.stdin.buffer.read)
    os._exit(0)  # whatever answers still wait for


def main() -> None:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tls-port", type=int, default=0)
    parser.add_argument("--address", action="append")
    parser.add_argument("--demo", type=Path)
    parser.add_argument("--certificate", type=Path)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
