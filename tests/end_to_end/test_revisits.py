"""Revisit records: an image's bytes are in the record that they refer to, in whatever archive."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from altalign.cli import main
from tests.support.archives import record, response, write
from tests.support.pictures import encoded

pytestmark = [pytest.mark.runs, pytest.mark.everyday]

HOST = "https://a.example"
PROFILE = "http://netpreserve.org/warc/1.1/revisit"


def png(shade: int) -> bytes:
    return encoded(Image.new("L", (8, 8), shade))


def with_fields(of: bytes, fields: str) -> bytes:
    return of.replace(b"WARC-Target-URI", fields.encode() + b"WARC-Target-URI", 1)


def capture(name: str, shade: int) -> bytes:
    fields = f"WARC-Payload-Digest: sha1:DIGEST{shade}\r\nWARC-Record-ID: <urn:uuid:{shade}>\r\n"
    return with_fields(response(f"{HOST}/{name}.png", png(shade), "image/png"), fields)


def revisit(name: str, fields: str, head: bytes = b"HTTP/1.1 200 OK\r\n\r\n", url: str = "") -> bytes:
    block = record(url or f"{HOST}/{name}.png", head, kind="revisit")
    return with_fields(block, f"WARC-Profile: {PROFILE}/identical-payload-digest\r\n{fields}")


def of_first(name: str, date: str = "2026-01-01T00:00:00Z") -> str:
    return f"WARC-Refers-To-Target-URI: {HOST}/{name}.png\r\nWARC-Refers-To-Date: {date}\r\n"


IMAGES = {  # by name: the shade of what is kept, None: not in the archives
    "first": 10, "second": 20, "digest": 10, "lower": 10, "uri": 20, "bracketed": 20, "id": 10, "early": 20,
    "modified": 10, "precise": 20, "other": 30, "own": 40, "date": None, "gone": None, "moved": None, "bare": None,
    "page": None,
}  # fmt: skip


def archives() -> tuple[list[bytes], list[bytes]]:
    html = "".join(f'<img src="/{name}.png" alt="the picture called {name}">' for name in IMAGES)
    not_modified, empty = b"HTTP/1.1 304 Not Modified\r\n\r\n", b""
    one = [
        revisit("early", of_first("second"), empty),
        response(f"{HOST}/", html.encode()),
        capture("first", 10),
        revisit("digest", "WARC-Payload-Digest: sha1:DIGEST10\r\n"),
        revisit("uri", of_first("second")),
        revisit("modified", of_first("first"), not_modified),
        revisit("own", "WARC-Payload-Digest: sha1:DIGEST10\r\n"),
        revisit("moved", "WARC-Payload-Digest: sha1:DIGEST10\r\n", b"HTTP/1.1 302 Found\r\n\r\n"),
        revisit("page", of_first("").replace("/.png", "/")),
    ]
    two = [
        capture("second", 20),
        revisit("lower", "WARC-Payload-Digest: SHA1:digest10\r\n"),
        revisit("bracketed", of_first("second").replace("URI: ", "URI: <").replace("png\r", "png>\r")),
        revisit("id", "WARC-Refers-To: <urn:uuid:10>\r\n", empty),
        revisit("precise", of_first("second", "2026-01-01T00:00:00.123456Z")),
        revisit("other", "WARC-Payload-Digest: sha1:DIGEST30\r\n" + of_first("first", "2020-01-01T00:00:00Z")),
        capture("own", 40),
        revisit("date", of_first("first", "2020-01-01T00:00:00Z")),
        revisit("gone", "WARC-Payload-Digest: sha1:NONE\r\n"),
        revisit("bare", ""),
        capture("third", 30),
    ]
    return one, two


@pytest.mark.parametrize("compression", ["gzip", "whole", ""])
def test_an_image_of_a_revisit_record_is_what_the_first_record_holds(compression, tmp_path):
    for number, records in enumerate(archives()):
        write(tmp_path / f"{number}.warc", records, compression)
    settings = f"""[run]\nfolder = "{tmp_path}/run"\n[[input]]\nkind = "warc"\npaths = ["{tmp_path}/*.warc"]
[image]\nshort_side_above_px = 1\n"""
    (tmp_path / "c.toml").write_text(settings)
    assert main(["curate", str(tmp_path / "c.toml")]) == 0
    assert kept(tmp_path / "run") == {name: shade for name, shade in IMAGES.items() if shade is not None}


def kept(run: Path) -> dict[str, int]:
    """The shade of each image's first pixel, by its name."""
    members: dict[str, dict[str, bytes]] = {}
    for shard in run.glob("shards/*.tar"):
        with tarfile.open(shard) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                members.setdefault(member.name.partition(".")[0], {})[Path(member.name).suffix] = file.read()
    found = {}
    for sample in members.values():
        image = next(value for ending, value in sample.items() if ending in (".jpg", ".png"))
        name = json.loads(sample[".json"])["image_url"].rpartition("/")[2].removesuffix(".png")
        found[name] = Image.open(io.BytesIO(image)).convert("L").getpixel((0, 0))
    return found
