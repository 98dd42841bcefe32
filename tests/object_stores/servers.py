"""Object stores on loopback, for tests: versitygw on a folder (S3), fake-gcs-server in memory (GCS)."""

import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from altalign.machine.children import ending_with_us

STARTS_WITHIN_S = 60.0
# for tests of what is the same in every store, and takes long, by their fixture `made`
ONE_STORE = pytest.mark.parametrize("made", ["s3"], indirect=True)


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


@dataclass
class Server:
    """A store that runs, and what leads there."""

    scheme: str
    port: int
    folder: Path  # of its own files
    environment: Mapping[str, str]
    bucket: str = field(default="")

    @property
    def url(self) -> str:
        """The test's bucket."""
        return f"{self.scheme}://{self.bucket}"

    def for_test(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> "Server":
        """With a bucket of its own; the environment of this process leads there."""
        own = Server(
            self.scheme,
            self.port,
            self.folder,
            {**self.environment, "ALTALIGN_CACHE": str(folder / "cache")},
            f"test-{uuid4().hex[:16]}",
        )
        for name, value in own.environment.items():
            monkeypatch.setenv(name, value)
        own.make_bucket(own.bucket)
        return own

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        if self.scheme == "s3":
            (self.folder / "files" / name).mkdir()
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(
            "POST", "/storage/v1/b?project=tests", json.dumps({"name": name}), {"Content-Type": "application/json"}
        )
        assert connection.getresponse().status == 200
        connection.close()

    def requests(self) -> list[str]:
        """The requests that it was asked so far, such as PutObject; of S3 alone."""
        words = (line.split() for line in (self.folder / "access.log").read_text(encoding="utf-8").splitlines())
        return [word.removeprefix("s3_") for line in words for word in line[:12] if word.startswith("s3_")]


@contextmanager
def versitygw(binary: str, folder: Path) -> Iterator[Server]:
    """S3 on files in `folder/files`; a bucket is a folder there."""
    (folder / "files").mkdir()
    (folder / "access.log").touch()
    port = free_port()
    command = [
        binary,
        "--port",
        f"127.0.0.1:{port}",
        "--quiet",
        "--access-log",
        str(folder / "access.log"),
        "posix",
        str(folder / "files"),
    ]
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "of the tests",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with _running(command, port, folder, {"ROOT_ACCESS_KEY": "test", "ROOT_SECRET_KEY": "of the tests"}):
        yield Server("s3", port, folder, environment)


@contextmanager
def fake_gcs(binary: str, folder: Path) -> Iterator[Server]:
    """GCS in memory."""
    port = free_port()
    own = f"127.0.0.1:{port}"
    command = [
        binary,
        "-scheme",
        "http",
        "-host",
        "127.0.0.1",
        "-port",
        str(port),
        "-backend",
        "memory",
        "-public-host",
        own,
    ]
    with _running([*command, "-external-url", f"http://{own}", "-log-level", "error"], port, folder, {}):
        yield Server("gs", port, folder, {"STORAGE_EMULATOR_HOST": f"http://{own}"})


@contextmanager
def _running(command: list[str], port: int, folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    with (folder / "said").open("wb") as said:
        server = subprocess.Popen(
            ending_with_us(command),
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < end and server.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.02)
        else:
            raise RuntimeError(f"{command[0]} does not answer: {(folder / 'said').read_text(encoding='utf-8')}")
        yield
    finally:
        server.kill()
        server.wait()
