"""Images that somebody does not want to be used: nothing of them is asked for in vain, or seen by anybody."""

import base64
import hashlib
import io
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.cli import main
from tests.end_to_end.web_inputs import dropped, kept
from tests.support.pictures import encoded

pytestmark = pytest.mark.runs

WANTED, UNWANTED = (20, 220, 20), (230, 20, 20)  # green images may be seen, red ones may not
TDMREP = "/.well-known/tdmrep.json"
USAGE, SIGNAL = "Content-Usage: train-ai=n, search=y", "Content-Signal: search=yes,ai-train=no"


def picture(number: int, colour: tuple[int, int, int], side: int = 240) -> bytes:
    """A PNG with a pattern of its own, in shades of a colour."""
    coarse = np.random.default_rng(number).integers(80, 100, (8, 8, 1)) / 100 * np.array(colour)
    return encoded(Image.fromarray(coarse.astype(np.uint8)).resize((side, side)))


class Site:
    """A server of these images, `/NUMBER`; some answers have a header more, which opts out."""

    def __init__(self, images: dict[str, bytes], *, headers: dict[str, str] | None = None, robots: str = ""):
        self.asked = list[str]()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                location = images.get(self.path, b"").startswith(b"http")
                body = robots.encode() if self.path == "/robots.txt" else images.get(self.path, b"")
                self.send_response(302 if location else 404 if self.path == TDMREP else 200)
                if location:
                    self.send_header("Location", body.decode())
                name, _, value = (headers or {}).get(self.path, "X-Nothing: 0").partition(": ")
                self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @contextmanager
    def running(self) -> Iterator["Site"]:
        thread = threading.Thread(target=self.server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            thread.join()
            self.server.server_close()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}{path}"


def lines(hashes: list[str]) -> str:
    return "".join(f"{digits}\n" for digits in hashes)


def is_red(data: bytes) -> bool:
    with Image.open(io.BytesIO(data)) as image:
        red, green, _ = np.asarray(image.convert("RGB")).reshape(-1, 3).mean(axis=0)
    return bool(red > green)


def seen(run: Path) -> list[bool]:
    """Whether each picture is red, of all that somebody may look at: thumbnails, the report, shards."""
    pictures = [data for data in pq.read_table(run / "audit" / "samples.parquet")["picture"].to_pylist() if data]
    page = (run / "report.html").read_text(encoding="utf-8")
    pictures += [base64.b64decode(data) for data in re.findall(r"data:image/(?:webp|png|jpeg);base64,([\w+/=]+)", page)]
    for path in sorted((run / "shards").glob("*.parquet")):
        rows, tar = pq.read_table(path).to_pylist(), path.with_suffix(".tar").read_bytes()
        pictures += [tar[row["tar_offset"] : row["tar_offset"] + row["tar_bytes"]] for row in rows]
    return [is_red(data) for data in pictures]


def write_input(folder: Path, urls: list[str], images: list[bytes] | None = None, more: str = "") -> None:
    columns = {"url": urls, "caption": [f"a picture of the number {number}" for number in range(len(urls))]}
    table = pa.table(columns | ({"image": images} if images else {}))
    pq.write_table(table, folder / "pairs.parquet")
    image = 'image_column = "image"' if images else ""
    (folder / "config.toml").write_text(
        f'[run]\nfolder = "run"\n[[input]]\nkind = "table"\npaths = ["pairs.parquet"]\n{image}\n{more}'
    )


@pytest.mark.everyday
def test_of_images_that_opt_out_or_are_blocked_nothing_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    images = {f"/{number}": picture(number, WANTED if number < 4 else UNWANTED) for number in range(10)}
    images["/small"] = picture(10, UNWANTED, side=100)  # dropped for its size, too
    images["/small-and-wanted"] = picture(11, WANTED, side=100)
    site = Site(images, headers={"/4": USAGE, "/5": SIGNAL})
    usage = Site({"/6": images["/6"]}, robots=f"User-agent: *\nAllow: /\n{USAGE}\n")
    signal = Site({"/7": images["/7"]}, robots=f"User-agent: *\n{SIGNAL}\nAllow: /\n")
    with ExitStack() as stack:
        for each in (site, usage, signal):
            stack.enter_context(each.running())
        images["/elsewhere"] = site.url("/9").encode()
        of_site = [site.url(path) for path in images if path not in ("/6", "/7")]
        write_input(
            tmp_path,
            [*of_site, usage.url("/6"), signal.url("/7")],
            more=f"""
[image]
blocked_hashes = ["hashes.txt"]
[fetch]
source = "web"
blocked_urls = ["urls.txt"]
ports = [{", ".join(str(each.server.server_port) for each in (site, usage, signal))}]
allow_addresses = ["127.0.0.0/8"]
requests_per_host_s = 1000
""",
        )
        of_images = [hashlib.sha1(images["/8"]).hexdigest(), hashlib.sha1(images["/small"]).hexdigest().upper()]
        (tmp_path / "hashes.txt").write_text(lines(of_images))
        (tmp_path / "urls.txt").write_text(lines([hashlib.sha256(site.url("/9").encode()).hexdigest()]))
        assert main(["curate", "config.toml"]) == 0
    run = tmp_path / "run"
    assert kept(run) == {site.url(f"/{number}") for number in range(4)}
    reasons = {url: reason for url, (reason, _) in dropped(run).items()}
    assert reasons == {
        site.url("/4"): "opt_out_content_usage",
        site.url("/5"): "opt_out_content_signal",
        usage.url("/6"): "opt_out_content_usage",
        signal.url("/7"): "opt_out_content_signal",
        site.url("/8"): "image_blocked",
        site.url("/9"): "url_blocked",
        site.url("/elsewhere"): "url_blocked",
        site.url("/small"): "image_too_small",
        site.url("/small-and-wanted"): "image_too_small",
    }
    assert "/9" not in site.asked
    assert usage.asked == signal.asked == ["/robots.txt", TDMREP]
    found = seen(run)
    assert found.count(False) >= 13  # 4 kept in shards, and they and the small one in samples and report
    assert not any(found)


def test_a_list_that_grew_blocks_what_is_in_hand_and_asks_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    site = Site({f"/{number}": picture(number, UNWANTED if number == 2 else WANTED) for number in range(4)})
    with site.running():
        write_input(
            tmp_path,
            [site.url(f"/{number}") for number in range(4)],
            more=f"""
[fetch]
source = "web"
blocked_urls = ["urls.txt"]
ports = [{site.server.server_port}]
allow_addresses = ["127.0.0.0/8"]
""",
        )
        (tmp_path / "urls.txt").write_text("# none yet\n")
        assert main(["curate", "config.toml"]) == 0
        (tmp_path / "urls.txt").write_text(lines([hashlib.md5(site.url("/2").encode()).hexdigest()]))
        assert main(["curate", "config.toml"]) == 2
        assert main(["curate", "config.toml", "--rerun"]) == 0
    assert sorted(site.asked) == [TDMREP, "/0", "/1", "/2", "/3", "/robots.txt"]
    assert dropped(tmp_path / "run") == {site.url("/2"): ("url_blocked", None)}
    assert not any(seen(tmp_path / "run"))


def test_images_in_hand_are_blocked_by_their_urls_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    urls = [f"http://a.example/{number}.png" for number in range(4)]
    images = [picture(number, UNWANTED if number in (1, 2) else WANTED) for number in range(4)]
    (tmp_path / "urls.txt").write_text(lines([hashlib.sha1(urls[1].encode()).hexdigest()]))
    (tmp_path / "hashes.txt").write_text(lines([hashlib.sha1(images[2]).hexdigest()]))
    lists = '[fetch]\nblocked_urls = ["urls.txt"]\n[image]\nblocked_hashes = ["hashes.txt"]\n'
    write_input(tmp_path, urls, images, more=lists)
    assert main(["curate", "config.toml"]) == 0
    assert dropped(tmp_path / "run") == {urls[1]: ("url_blocked", None), urls[2]: ("image_blocked", None)}
    assert not any(seen(tmp_path / "run"))
    capsys.readouterr()
    assert main(["explain", "run", "--url", urls[1]]) == 0
    assert "- url_blocked: the hash of its URL is in a file of [fetch] blocked_urls" in capsys.readouterr().out
    assert main(["audit", "run"]) == 0
    (tmp_path / "urls.txt").write_text(lines([hashlib.sha1(urls[0].encode()).hexdigest()]))
    assert main(["audit", "run"]) == 1
    assert "the hash of its URL is in [fetch] blocked_urls" in capsys.readouterr().out
