"""Fetches an image of each of many hosts, half of them dead, in a network of its own; prints what came of them.

    unshare --mount --net --pid --fork --kill-child sh -c '
      mount --bind FILE /etc/resolv.conf; exec python -m tests.pipelines.web.dead_hosts HOSTS TIMEOUT_S'

FILE says `nameserver 127.0.0.1`, so the system itself looks up KIND-N.test, here: each name has an address of its own
in 127.0.0.0/8.
"""

import asyncio
import fcntl
import json
import os
import socket
import struct
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

from altalign.pipelines.web.client import Client
from altalign.settings.curate import FetchSettings

BODY = b"an image" * 128
NETWORKS = {"good": 1, "refused": 2, "silent": 3}
DEAD = ("refused", "silent", "nameless", "failing", "unanswered")  # the last three already at the name server
NO_NAME, FAILURE = 3, 2  # of RFC 1035
WEB, NOBODY, SILENT = 80, 81, 8080
PORTS = {"refused": NOBODY, "silent": SILENT}


def bring_up_loopback() -> None:
    """A new network has it, but down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 0x1))  # SIOCSIFFLAGS, IFF_UP


class NameServer(asyncio.DatagramProtocol):
    """Answers, or does not, as a name's first part says."""

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        end = data.index(b"\0", 12) + 5
        kind, _, number = data[13 : 13 + data[12]].decode().partition("-")
        code = {"nameless": NO_NAME, "failing": FAILURE}.get(kind, 0)
        answer = b""
        if kind in NETWORKS and data[end - 4 : end - 2] == b"\0\1":  # an address of IPv4
            address = bytes([127, NETWORKS[kind], *divmod(int(number), 256)])
            answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + address
        if kind != "unanswered":
            counts = struct.pack(">HHHH", 1, bool(answer), 0, 0)
            self._transport.sendto(data[:2] + bytes([0x81, 0x80 | code]) + counts + data[12:end] + answer, addr)


async def serve_image(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
            await writer.drain()
    writer.close()


async def serve() -> None:
    """The name server, the web server at all addresses of loopback, and a port that takes connections and is silent."""
    await asyncio.get_running_loop().create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 53))
    await asyncio.start_server(serve_image, "0.0.0.0", WEB, backlog=4_096)
    silent = socket.create_server(("0.0.0.0", SILENT), backlog=4_096)
    sys.stdout.write("\n")
    sys.stdout.flush()
    await asyncio.Event().wait()
    silent.close()


def fetch(hosts: int, timeout_s: float) -> dict[str, object]:
    """An image of each host: of every second one that is well, of the others as they are dead."""
    kinds = ["good" if number % 2 == 0 else DEAD[number // 2 % len(DEAD)] for number in range(hosts)]
    urls = [f"http://{kind}-{number}.test:{PORTS.get(kind, WEB)}/a" for number, kind in enumerate(kinds)]
    allowed = {"allow_addresses": ["127.0.0.0/8"], "ports": [WEB, NOBODY, SILENT]}
    settings = FetchSettings.model_validate({"source": "web", "timeout_s": timeout_s, **allowed})
    counts, threads, last_good_s = Counter[str](), 0, 0.0
    loop_s = asyncio.new_event_loop().time
    began_s = loop_s()
    with Client(settings) as client:
        for response in client.fetch(urls):
            kind = kinds[response.number]
            counts[f"{kind}: {response.reason or 'in hand'}"] += 1
            threads = max(threads, threading.active_count())
            if kind == "good":
                last_good_s = loop_s() - began_s
        seconds = loop_s() - began_s
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    measured = {"peak_mb": int(peak.split()[1]) // 1024, "threads": threads, "seconds": round(seconds, 1)}
    return {"counts": dict(sorted(counts.items())), **measured, "last_good_s": round(last_good_s, 1)}


def main() -> None:
    bring_up_loopback()
    reading, writing = os.pipe()
    if os.fork() == 0:  # ends with the namespace
        os.dup2(writing, 1)
        asyncio.run(serve())
    os.read(reading, 1)
    print(json.dumps(fetch(int(sys.argv[1]), float(sys.argv[2]))))  # noqa: T201 - a program of its own


if __name__ == "__main__":
    main()
