"""A web server of images in memory, for benchmarks: static bytes, many hosts, some of which never answer.

It needs Linux, where all of 127.0.0.0/8 is this machine.

    python -m benchmarks.web_server TAR [--hosts 100] [--hanging 20]

Host number N is the address 127.0.1.N; the last `hanging` of them take a request and say nothing. `/K.jpg` is the tar's
image number K (they repeat), `/large/K.bmp` one of 20 MB, anything else 404. Prints a line of JSON with its port and
hosts. At each line of standard input it prints what it has done since the line before; it ends with its standard input.

Standard library alone, and a protocol without streams: it must cost little beside what is measured.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import struct
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.timed import places

LARGE_SIDE_PX = 2_580  # 3 bytes a pixel: 19.97 MB
PIECE_BYTES = 1 << 18
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


@dataclass
class Done:
    """Counts of requests and bytes."""

    requests: int = 0
    images: int = 0  # sent whole
    bytes: int = 0
    hung: int = 0
    cpu_s: float = 0.0


class Site:
    """Everything that is served, and the counts."""

    def __init__(self, tar: Path):
        self.images = []
        for place in places(tar):
            with Path(place.path).open("rb") as file:
                file.seek(place.offset)
                self.images.append(_answer(file.read(place.length)))
        self.large = _answer(bmp(LARGE_SIDE_PX))
        self.done, self._cpu_before = Done(), _cpu_s()

    def answer(self, target: bytes) -> bytes:
        """The response to a target."""
        folder, _, name = target.rpartition(b"/")
        number, _, suffix = name.partition(b".")
        if suffix not in (b"jpg", b"bmp") or not number.isdigit():
            return NOT_FOUND
        return self.large if folder == b"/large" else self.images[int(number) % len(self.images)]

    def report(self) -> Done:
        """The counts since the last report."""
        done, self.done = self.done, Done()
        now = _cpu_s()
        done.cpu_s, self._cpu_before = now - self._cpu_before, now
        return done


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, site: Site, *, hangs: bool):
        self._site, self._hangs = site, hangs
        self._received, self._left, self._is_last, self._is_paused = b"", memoryview(b""), False, False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(PIECE_BYTES)

    def connection_lost(self, _: Exception | None) -> None:
        """Send no more."""
        self._left = memoryview(b"")

    def data_received(self, data: bytes) -> None:
        """Answer a request once its head is whole."""
        self._received += data
        if not self._received.endswith(b"\r\n\r\n"):
            return
        received, self._received, done = self._received, b"", self._site.done
        done.requests += 1
        if self._hangs:
            done.hung += 1
            return
        self._is_last = b"onnection: close" in received
        self._left = memoryview(self._site.answer(received.split(b" ", 2)[1]))
        self._go_on()

    def pause_writing(self) -> None:
        """Wait until the client has taken what was sent."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Go on, once the transport has done what it calls this in the middle of."""
        self._is_paused = False
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        assert self._transport is not None
        while self._left and not self._is_paused and not self._transport.is_closing():
            piece, self._left = self._left[:PIECE_BYTES], self._left[PIECE_BYTES:]
            self._transport.write(piece)
            self._site.done.bytes += len(piece)
            if not self._left:
                if piece.obj is not NOT_FOUND:
                    self._site.done.images += 1
                if self._is_last:
                    self._transport.close()


def bmp(side_px: int) -> bytes:
    """A picture of noise as BMP, 3 bytes a pixel."""
    row = (side_px * 3 + 3) // 4 * 4
    sizes = (40, side_px, side_px, 1, 24, 0, row * side_px, 2835, 2835, 0, 0)
    header = struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 54 + row * side_px, 0, 0, 54, *sizes)
    return header + os.urandom(row) * side_px


def _answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: image/*\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def serve(site: Site, hosts: int, hanging: int) -> None:
    """Listen at all hosts' addresses, and report when asked, until standard input ends."""
    loop = asyncio.get_running_loop()
    names, port, servers = [f"127.0.1.{number}" for number in range(1, hosts + 1)], 0, []
    for number, name in enumerate(names):
        hangs = number >= hosts - hanging
        servers.append(
            await loop.create_server(lambda hangs=hangs: Connection(site, hangs=hangs), name, port, backlog=1024)
        )
        port = port or servers[0].sockets[0].getsockname()[1]
    print(json.dumps({"port": port, "hosts": names}), flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(asdict(site.report())), flush=True)


def main() -> None:
    """Read the images and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tar", type=Path)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--hanging", type=int, default=20)
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(Site(arguments.tar), arguments.hosts, arguments.hanging))


if __name__ == "__main__":
    main()
