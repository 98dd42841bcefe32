"""Small servers on 127.0.0.1 that say what a script says, byte for byte, and remember what they were asked."""

import asyncio
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from altalign.pipelines.web.calls import Fetch

# What is done for a request, in order: bytes are sent; a number of seconds is waited (the server's end cuts that
# short); HANG waits for ever, and DRIP sends a byte now and then, for ever.
Step = bytes | float | str
Steps = Sequence[Step] | Callable[[int], Sequence[Step]]  # of the how manieth request for this path

RESET, CLOSE, HANG, DRIP = "reset", "close", "hang", "drip"


@dataclass(frozen=True)
class Received:
    """A request as it came."""

    target: str
    headers: dict[str, str]
    connection: int


@dataclass
class Server:
    """Answers by the path of a request, 404 without a script; over TLS with a certificate and its key in one file."""

    script: dict[str, Steps]
    certificate: Path | None = None
    requests: list[Received] = field(default_factory=list)
    hung: Counter[str] = field(default_factory=Counter)  # how many requests for a path have come to hang or to drip
    port: int = 0
    connections: int = 0
    is_open: int = 0
    _seen: dict[str, set[object]] = field(default_factory=dict)  # requests that the client had under way, by path

    @property
    def paths(self) -> Counter[str]:
        """How often each path was asked for."""
        return Counter(each.target for each in self.requests)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"{'https' if self.certificate else 'http'}://{host}:{self.port}{path}"

    def hangs(self, task: Fetch) -> bool:
        """Whether nothing that counts comes any more of what a task has asked for. Asked in each turn of `Clock`."""
        path = task.target.url.partition(f":{self.port}")[2]
        self._seen.setdefault(path, set()).add(task.request)
        return self.hung[path] >= len(self._seen[path])

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve(started)), daemon=True)
        self._thread.start()
        assert started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self, started: threading.Event) -> None:
        # one that hangs when its client has gone is known to nobody else, and would be collected as it is
        talking = set[object]()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            talking.add(asyncio.current_task())
            self.connections += 1
            self.is_open += 1
            try:
                await self._talk(reader, writer, self.connections)
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                talking.discard(asyncio.current_task())
                self.is_open -= 1
                writer.transport.abort()

        tls = None
        if self.certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(self.certificate)
        server = await asyncio.start_server(connected, "127.0.0.1", self.port, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await self._stop.wait()
        # one that is closed at once forgets the sockets of connections that it has just taken
        for listening in server.sockets:
            self._loop.remove_reader(listening.fileno())
        quiet, begun = 0, set[asyncio.Task[object]]()
        while quiet < 10:  # connections begin and end in the loop's next turns, those too that were taken last
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others & begun:  # one that has not begun yet would leave its socket open
                task.cancel()
            quiet, begun = (0 if others else quiet + 1), others
            await asyncio.sleep(0)
        server.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *lines = head.split("\r\n")
            headers = dict(part.split(": ", 1) for part in lines if part)
            target = line.split(" ")[1]
            self.requests.append(Received(target, headers, connection))
            steps = self.script.get(target, script(404))
            for step in steps(self.paths[target]) if callable(steps) else steps:
                if isinstance(step, bytes):
                    writer.write(step)
                    await writer.drain()
                elif isinstance(step, (int, float)):
                    await asyncio.sleep(step)
                elif step in (HANG, DRIP):
                    self.hung[target] += 1
                    while step == DRIP:
                        writer.write(b"x")
                        await writer.drain()
                        await asyncio.sleep(0.001)
                    await asyncio.Event().wait()
                else:
                    if step == RESET:
                        writer.get_extra_info("socket").setsockopt(
                            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                        )
                        writer.transport.abort()
                    else:
                        writer.close()
                    return


def script(status: int = 200, body: bytes = b"", length: int | None = None, **headers: str) -> list[Step]:
    """An answer with its Content-Length (another, if `length` says so); headers with underscores for hyphens."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return [
        f"HTTP/1.1 {status} X\r\nContent-Length: {len(body) if length is None else length}\r\n".encode()
        + "".join(f"{line}\r\n" for line in lines).encode("latin-1")
        + b"\r\n"
        + body
    ]


@contextmanager
def silent(backlog: int = 100) -> Iterator[int]:
    """The port of a server that takes connections and says nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(backlog)
        yield listening.getsockname()[1]


@contextmanager
def greeting(words: bytes) -> Iterator[int]:
    """The port of a server that speaks first, and closes."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        connection.sendall(words)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def refused() -> Iterator[int]:
    """A port where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@dataclass
class Pointing:
    """A resolver for which every name is at one address, but those that are told otherwise; an exception is raised."""

    address: str = "127.0.0.1"
    others: dict[str, list[str] | Exception] = field(default_factory=dict)
    lookups: list[str] = field(default_factory=list)

    async def addresses(self, host: str) -> Sequence[str]:
        self.lookups.append(host)
        await asyncio.sleep(0)
        answer = self.others.get(host, [self.address])
        if isinstance(answer, Exception):
            raise answer
        return answer
