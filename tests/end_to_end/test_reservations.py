"""What rights holders say reaches `preferences` on every road, and drops what the purpose of a run is opposed for.

The cases are those of tests/cases/reservations.toml, each an image of an origin of its own: from a web archive that
warcio wrote, from servers on loopback, and as files in a folder.
"""

import io
import json
import tarfile
import threading
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from altalign.cli import main
from altalign.data.purposes import PURPOSES
from altalign.data.reasons import OPT_OUTS
from altalign.filters.reservations import Said, opposed, reason
from altalign.settings.curate import FetchSettings
from tests.support.marks import image_of
from tests.web_server.running import WebServer

pytestmark = pytest.mark.runs

CASES: list[dict[str, Any]] = tomllib.loads(Path("tests/cases/reservations.toml").read_text(encoding="utf-8"))["case"]
TOKEN, WHEN = "altalign", "2026-01-01T00:00:00Z"
IN_THE_IMAGE = ("iptc", "c2pa")
FILES = {"/robots.txt": "robots", "/.well-known/tdmrep.json": "tdmrep"}
Answer = tuple[list[tuple[str, str]], bytes]  # headers and body


def expected(case: Mapping[str, Any], purpose: str) -> tuple[str, ...]:
    return tuple(case.get("opposed", {}).get(purpose, ()))


def fields(lines: list[str], kind: str) -> list[tuple[str, str]]:
    named = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
    return [each for each in named if each[0] != "Content-Type"] + [("Content-Type", kind)]


def page_of(number: int, case: Mapping[str, Any], image_url: str) -> Answer:
    metas = "".join(case.get("meta", []))
    html = f'<!doctype html><title>.</title>{metas}<img src="{image_url}" alt="the picture of case {number}">'
    return fields(case.get("page_header", []), "text/html; charset=utf-8"), html.encode()


def answers_of(case: Mapping[str, Any]) -> dict[str, Answer]:
    """What a site answers, by path: the image, and the files that it has."""
    image = fields(case.get("header", []), "image/png"), image_of(case, "png")
    of_files = {path: (fields([], "text/plain"), case[key].encode()) for path, key in FILES.items() if key in case}
    return {case.get("path", "/a.png"): image, **of_files}


class Writer(WARCWriter):
    _create_temp_file = staticmethod(io.BytesIO)  # the library's own leaves files open


def write_archive(path: Path, answers: Mapping[str, Answer]) -> None:
    """An archive of these answers, by URL."""
    with path.open("wb") as file:
        writer = Writer(file, gzip=True)
        for url, (headers, body) in answers.items():
            head = StatusAndHeaders("200 OK", headers, protocol="HTTP/1.1")
            date = {"WARC-Date": WHEN}
            made = writer.create_warc_record(
                url, "response", io.BytesIO(body), http_headers=head, warc_headers_dict=date
            )
            writer.write_record(made)


def curated(folder: Path, inputs: str, purpose: str, fetch: str = "") -> dict[int, dict[str, Any]]:
    """Curates for a purpose; the rows of all pairs, kept and dropped, by the number of their case."""
    settings = folder / "c.toml"
    settings.write_text(
        f'[run]\nfolder = "{folder}/run"\n{inputs}\n[image]\nshort_side_above_px = 1\n'
        f"[fetch]\n{fetch}\npurpose = {json.dumps(purpose)}\n"
    )
    assert main(["curate", str(settings), "--restart"]) == 0
    assert main(["audit", str(folder / "run"), "--json"]) == 0
    rows = [row for path in (folder / "run").glob("shards/*.parquet") for row in pq.read_table(path).to_pylist()]
    rows += [row for path in (folder / "run").glob("dropped/*/*.parquet") for row in pq.read_table(path).to_pylist()]
    return {int(row["caption"].split()[-1]): row for row in rows}


def statements(row: Mapping[str, Any]) -> list[Said]:
    return [Said(**each) for each in row["preferences"]]


def check(
    rows: Mapping[int, Mapping[str, Any]],
    purpose: str,
    notations: tuple[str, ...] | None = None,
    *,
    hears_all: bool = True,
) -> None:
    """Every case is there, says what it says, and is dropped where that opposes the purpose.

    `notations`: these alone can say; `hears_all`: whether all is heard of what the first statement drops.
    """
    assert rows.keys() == set(range(len(CASES)))
    for number, case in enumerate(CASES):
        row = rows[number]
        of_purpose = {name: expected(case, name) for name in PURPOSES}
        if notations is not None:
            of_purpose = {
                name: tuple(each for each in found if each in notations) for name, found in of_purpose.items()
            }
        if purpose == "keep all":  # otherwise nobody looks any further where an image is dropped
            assert {name: opposed(statements(row), name, TOKEN) for name in PURPOSES} == of_purpose, case["name"]
        failed, reasons = row.get("failed") or [], [str(reason(each)) for each in of_purpose[purpose]]
        assert failed == (reasons if hears_all else [each for each in reasons if each in failed]), case["name"]
        assert bool(failed) == bool(reasons), case["name"]


def test_purposes_of_settings_are_those_of_the_readers() -> None:
    assert FetchSettings.model_json_schema()["properties"]["purpose"]["enum"] == [*PURPOSES]


def archive(folder: Path, number: int = 0) -> str:
    """An archive of all cases, its pages and files of sites; the settings that read it."""
    answers = dict[str, Answer]()
    for at, case in enumerate(CASES):
        site = f"https://case-{at}.example"
        of_site = {f"{site}{path}": answer for path, answer in answers_of(case).items()}
        answers |= {f"{site}/page": page_of(at, case, case.get("path", "/a.png")), **of_site}
    write_archive(folder / f"{number}.warc.gz", answers)
    return f'[[input]]\nkind = "warc"\npaths = ["{folder}/*.warc.gz"]'


@pytest.mark.everyday
def test_what_an_archive_holds_is_heard(tmp_path: Path) -> None:
    inputs = archive(tmp_path)
    rows = curated(tmp_path, inputs, "keep all")
    check(rows, "keep all")
    for row in rows.values():
        assert {each.when for each in statements(row) if each.where != "image file"} <= {WHEN}
    in_tars = {}
    for path in (tmp_path / "run").glob("shards/*.tar"):
        with tarfile.open(path) as tar:
            of_json = [json.loads(tar.extractfile(member).read()) for member in tar if member.name.endswith(".json")]
        in_tars |= {row["key"]: json.loads(row["preferences"]) for row in of_json}
    assert in_tars == {row["key"]: row["preferences"] for row in rows.values()}
    for purpose in ("train", "train-generative", "train-other", "search"):
        check(curated(tmp_path, inputs, purpose), purpose)


def test_what_a_folder_holds_is_heard_in_its_files_alone(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for number, case in enumerate(CASES):
        kind = ("png", "jpeg", "webp")[number % 3]
        (tmp_path / "images" / f"{number}.{kind}").write_bytes(image_of(case, kind, side=64 + number))
        (tmp_path / "images" / f"{number}.txt").write_text(f"the picture of case {number}")
    inputs = f'[[input]]\nkind = "folder"\npaths = ["{tmp_path}/images"]'
    for purpose in ("keep all", "train", "train-other"):
        check(curated(tmp_path, inputs, purpose), purpose, IN_THE_IMAGE)


@contextmanager
def sites() -> Iterator[int]:
    """A server for all cases, each at an address of its own; yields their port."""
    answers = {f"127.0.1.{number}": answers_of(case) for number, case in enumerate(CASES)}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            of_site = answers[self.headers["Host"].partition(":")[0]]
            headers, body = of_site.get(self.path, ([], b""))
            self.send_response(200 if self.path in of_site else 404)
            for name, value in (*headers, ("Content-Length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_what_the_web_says_is_heard(tmp_path: Path) -> None:
    is_ban = [case for case in CASES if "robots.txt" in expected(case, "search")]
    with sites() as port:
        pages = dict[str, Answer]()
        for number, case in enumerate(CASES):
            url = f"http://127.0.1.{number}:{port}{case.get('path', '/a.png')}"
            pages[f"https://case-{number}.example/page"] = page_of(number, case, url)
        write_archive(tmp_path / "pages.warc.gz", pages)
        inputs = f'[[input]]\nkind = "warc"\npaths = ["{tmp_path}/*.warc.gz"]'
        fetch = f'source = "web"\nports = [{port}]\nallow_addresses = ["127.0.0.0/8"]\nrequests_per_host_s = 1000\n'
        for purpose in ("keep all", "train", "train-generative"):
            rows = curated(tmp_path, inputs, purpose, fetch)
            banned = {number for number, case in enumerate(CASES) if case in is_ban}
            assert {number for number in banned if rows[number]["failed"] == ["opt_out_robots_txt"]} == banned
            for number in banned:
                rows[number] = dict(rows[number], failed=[] if purpose == "keep all" else rows[number]["failed"])
                rows[number]["preferences"] = [Said("robots.txt", "Disallow", "robots.txt", None)._asdict()]
            check(rows, purpose, hears_all=False)
    assert all(str(each).startswith("opt_out_") for each in OPT_OUTS)


def test_of_a_capture_beside_an_image_of_the_web_neither_place_nor_headers_count(
    server: WebServer, tmp_path: Path
) -> None:
    """The page of the archive says what it says; the image, its headers and where it lies are those of the web."""
    url, page = server.url("/png/of-the-web"), server.url("/")
    html = f'<meta name="robots" content="max-snippet:9"><img src="{url}" alt="a picture of both 0">'.encode()
    of_image = [("Content-Type", "image/png"), ("X-Robots-Tag", "noai")]
    captures = {page: ([("Content-Type", "text/html")], html), url: (of_image, image_of({}, "png"))}
    write_archive(tmp_path / "a.warc.gz", captures)
    web = f'source = "web"\nports = [{server.port}]\nallow_addresses = ["127.0.0.0/8"]'
    row = curated(tmp_path, f'[[input]]\npaths = ["{tmp_path}/a.warc.gz"]', "train", web)[0]
    assert [(each.notation, each.where) for each in statements(row)] == [("meta-robots", "page meta")]
    stored = pq.read_table(next((tmp_path / "run/work/fetch/units").glob("*.stored"))).to_pylist()
    assert [{value for name, value in row.items() if name.startswith("place_")} for row in stored] == [{None}]
