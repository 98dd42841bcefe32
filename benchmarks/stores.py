"""An S3 server on this machine (versitygw, `make versitygw`), which takes its share of the cores."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from altalign.pipelines.engine.servers import Server, serving
from benchmarks.harness import ROOT
from benchmarks.processes import ProgramError

STARTS_WITHIN_S = 60


@contextmanager
def s3(place: Path, bucket: str) -> Iterator[Path]:
    """S3 on the folder `files` of a place, with a bucket; the environment leads there. Yields its log of requests.

    Raises:
        ProgramError: it is not built.
    """
    binary = Path(os.environ.get("ALTALIGN_VERSITYGW", str(ROOT / ".cache" / "versitygw" / "versitygw")))
    if not binary.is_file():
        raise ProgramError(f"{binary}: not there; `make versitygw` builds it")
    (place / "files" / bucket).mkdir(parents=True)
    log, secret = place / "access.log", "of the benchmark"
    log.touch()
    os.environ.update({"ROOT_ACCESS_KEY": "test", "ROOT_SECRET_KEY": secret, "AWS_EC2_METADATA_DISABLED": "true"})
    os.environ.update({"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "us-east-1"})
    os.environ["ALTALIGN_CACHE"] = str(place / "cache")
    given = ["--quiet", "--access-log", str(log), "posix", str(place / "files")]
    server = Server("versitygw", lambda port: [str(binary), "--port", f"127.0.0.1:{port}", *given], STARTS_WITHIN_S)
    with serving(server, str(place / "server.log")) as endpoint:
        os.environ["AWS_ENDPOINT_URL"] = f"http://{endpoint}"
        yield log
