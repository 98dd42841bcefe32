"""One request, and the other side of its connection: all that an answer needs, down to single bytes."""

import asyncio
import json
import os
import socket
import struct
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

HEAD_BYTES_AT_MOST = 1 << 16
PIECE_BYTES = 1 << 16
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what is closed so is reset


class LeftError(Exception):
    """The client is gone, or we have closed the connection."""


class Log:
    """Lines of JSON in a file, appended whole; times are of the monotonic clock, which all processes of a machine
    share.
    """

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)

    def write(self, event: str, **facts: Any) -> None:
        """Add an event."""
        os.write(self._file, (json.dumps({"event": event, "at": time.monotonic(), **facts}) + "\n").encode())


@dataclass
class State:
    """What the server remembers between requests."""

    log: Log
    folder: Path  # of /file/NAME
    demo: Any = None  # the answers of a demo web, by host and path
    requests: int = 0
    connections: int = 0
    seen: Counter[str] = field(default_factory=Counter)  # requests of a target


@dataclass(frozen=True)
class Request:
    """A request as it came."""

    number: int
    method: str
    target: str
    headers: dict[str, str]  # names in lower case; of several the last

    @property
    def host(self) -> str:
        """The Host header without its port, in lower case."""
        return urlsplit(f"//{self.headers.get('host', '')}").hostname or ""

    @property
    def name(self) -> str:
        """The first part of the path: what kind of answer is asked for."""
        return urlsplit(self.target).path.lstrip("/").partition("/")[0]

    @property
    def rest(self) -> str:
        """What is behind it."""
        return unquote(urlsplit(self.target).path.lstrip("/").partition("/")[2])

    def all(self, name: str) -> list[str]:
        """Every value of a query's field."""
        return parse_qs(urlsplit(self.target).query).get(name, [])

    def text(self, name: str, default: str = "") -> str:
        """The last value of a query's field."""
        return (self.all(name) or [default])[-1]

    def number_of(self, name: str, default: float) -> float:
        """The same as a number."""
        return float(self.text(name) or default)


class Client:
    """The other side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        self.bytes_sent = 0  # of the answer under way
        self.requests = 0

    async def head(self) -> bytes | None:
        """The next request's head; None where the client has left.

        Raises:
            LeftError: it left in the middle, or sends too much.
        """
        self.requests += 1
        try:
            first = await self._reader.read(1)
            if first == b"\x16":  # TLS where there is none: nobody would end the line
                raise LeftError
            return first + await self._reader.readuntil(b"\r\n\r\n") if first else None
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise LeftError from error

    async def send(self, *parts: bytes) -> None:
        """Send bytes as they are.

        Raises:
            LeftError: nobody takes them.
        """
        try:
            for part in parts:
                for at in range(0, len(part), PIECE_BYTES):
                    piece = part[at : at + PIECE_BYTES]
                    self._writer.write(piece)
                    await self._writer.drain()
                    # drain alone never lets others go on while the client reads as fast as this writes
                    await asyncio.sleep(0)
                    self.bytes_sent += len(piece)
        except OSError as error:
            raise LeftError from error

    async def wait(self, seconds: float | None) -> None:
        """Do nothing for so long, or for as long as the client is there.

        Raises:
            LeftError: it has left.
        """
        try:
            async with asyncio.timeout(seconds):
                while await self._reader.read(1):
                    pass
        except TimeoutError:
            return
        except OSError as error:
            raise LeftError from error
        raise LeftError

    async def respond(self, status: int = 200, body: bytes = b"", *lines: str) -> None:
        """A response as it should be."""
        await self.send(head(status, f"Content-Length: {len(body)}", *lines) + body)

    def close(self) -> None:
        """Close the connection; what was sent arrives.

        Raises:
            LeftError: always.
        """
        raise LeftError

    def reset(self) -> None:
        """Reset the connection.

        Raises:
            LeftError: always.
        """
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._writer.transport.abort()
        raise LeftError


def head(status: int, *lines: str) -> bytes:
    """The head of a response."""
    names = {known.value: known.phrase for known in HTTPStatus}
    return "\r\n".join([f"HTTP/1.1 {status} {names.get(status, 'Odd')}", *lines, "", ""]).encode(
        "utf-8", "surrogateescape"
    )


def chunk(data: bytes) -> bytes:
    """A chunk of a chunked body; of nothing the last one."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def packed(piece: bytes, times: int, encoding: str) -> bytes:
    """A piece so many times over, small: as gzip or deflate, made without compressing each."""
    squeeze = zlib.compressobj(9, wbits=-15)
    block = squeeze.compress(piece) + squeeze.flush(zlib.Z_FULL_FLUSH)
    total, crc, adler = len(piece) * times, 0, 1
    for _ in range(times):
        crc, adler = zlib.crc32(piece, crc), zlib.adler32(piece, adler)
    middle = block * times + squeeze.flush()
    if encoding == "gzip":
        return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + middle + struct.pack("<II", crc, total & 0xFFFFFFFF)
    return b"\x78\x9c" + middle + struct.pack(">I", adler)
