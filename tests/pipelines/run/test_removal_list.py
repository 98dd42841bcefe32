"""Which rows a request names, beside a plain loop; and lists that are none."""

from pathlib import Path
from typing import Any

import ada_url
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.data.key import image_id
from altalign.data.schema import REMOVED
from altalign.errors import UsageError
from altalign.pipelines.run.removal_list import COLUMNS, Request, hashed, of_files

HOSTS = [
    "a.example",
    "b.a.example",
    "xa.example",
    "EXAMPLE.org",
    "münchen.example",
    "[::1]",
    "a.example:81",
    "u@a.example",
    "A.example.:80",
]
URLS = [f"http://{host}/{name}" for host in HOSTS for name in "xy"]
URLS += ["http:a.example/x", "//a.example/y", "no url", ""]
# each URL as it is asked for, where that is another spelling
ASKED = {
    "http://EXAMPLE.org/": ["http://example.org/"],
    "http://münchen.example/": ["http://xn--mnchen-3ya.example/"],
    "http://u@a.example/": ["http://a.example/"],
    "http://A.example.:80/": ["http://a.example/"],
    "http:a.example/": ["http://a.example/"],
    "//a.example/": ["http://a.example/", "https://a.example/"],
}
KEYS = [format(number, "032x") for number in range(4)]
DIGESTS = [format(number, "064x") for number in range(4)]
NAMES = ["t.csv#0", "t.csv#1", "ü/bild.png"]
ROW = st.fixed_dictionaries(
    {
        "key": st.sampled_from(KEYS),
        "image_url": st.none() | st.sampled_from(URLS),
        "page_url": st.none() | st.sampled_from(URLS),
        "source_key": st.none() | st.sampled_from(NAMES),
        "sha256": st.sampled_from(DIGESTS),
        "found_sha256": st.sampled_from(DIGESTS),
    }
)
DOMAINS = ["a.example", "example", "example.org", "xn--mnchen-3ya.example", "[::1]"]


def some(values: list[str]) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(values), max_size=2)


def asked(url: str | None) -> list[str]:
    if not url or url == "no url":
        return []
    return [f"{each}{url[-1]}" for each in ASKED.get(url[:-1], [url[:-1]])]


def plainly(row: dict[str, Any], wanted: dict[str, frozenset[str]]) -> bool:
    def host(url: str | None) -> str:
        return ada_url.URL(asked(url)[0]).hostname if asked(url) else ""

    urls = {each for url in wanted["urls"] for each in asked(url)}
    hosts = [host(row["image_url"]), host(row["page_url"])]
    return (
        row["key"] in wanted["keys"]
        or row["image_id"] in wanted["image_ids"]
        or bool({row["sha256"], row["found_sha256"]} & wanted["hashes"])
        or not urls.isdisjoint([*asked(row["image_url"]), *asked(row["page_url"])])
        or row["source_key"] in wanted["source_keys"]
        or any(h == domain or h.endswith(f".{domain}") for h in hosts for domain in wanted["domains"])
    )


@given(
    st.lists(ROW, min_size=1, max_size=8),
    st.fixed_dictionaries(
        {
            "keys": some(KEYS),
            "image_ids": some([image_id(url) for url in URLS]),
            "hashes": some(DIGESTS),
            "urls": some([url for url in URLS if asked(url)]),
            "source_keys": some(NAMES),
            "domains": some(DOMAINS),
        }
    ),
)
def test_the_rows_that_match_are_those_of_a_plain_loop(
    rows: list[dict[str, Any]], wanted: dict[str, frozenset[str]]
) -> None:
    for row in rows:
        row["image_id"] = image_id(row["image_url"] or row["found_sha256"])
    by_hash: Any = {
        name: {hashed(entry): entry for entry in entries} if name in ("source_keys", "domains") else entries
        for name, entries in wanted.items()
    }
    by_hash["urls"] = {hashed(each): url for url in wanted["urls"] for each in (url, *asked(url))}
    table = pa.Table.from_pylist(rows, pa.schema([(name, pa.string()) for name in COLUMNS]))
    request = Request(**by_hash)
    expected = [plainly(row, wanted) for row in rows]
    assert request.matches(table).tolist() == expected
    # what removed.parquet has of it, hashes alone, is the same request
    kinds = {"key": "keys", "image_id": "image_ids", "sha256": "hashes"}
    told: Any = {}
    for kind, entry in request.entries():
        told.setdefault(kinds.get(kind, f"{kind}s"), []).append(entry)
    again: Any = {
        name: frozenset(entries) if name in kinds.values() else dict.fromkeys(entries, "")
        for name, entries in told.items()
    }
    assert Request(**again).matches(table).tolist() == expected


def test_lists_are_read_and_what_rows_lack_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"\ufeff{KEYS[1].upper()}\n\n  {KEYS[2]} \r\n", encoding="utf-8")
    (tmp_path / "urls").write_text("http://a.example/x#part\nhttp://A.example.:80/%79\n", encoding="utf-8")
    (tmp_path / "domains").write_text("# a comment\nMünchen.example\n", encoding="utf-8")
    paths = {name: [str(tmp_path / name)] for name in ("keys", "urls", "domains")}
    request = of_files(paths)
    assert request.keys == {KEYS[1], KEYS[2]}
    assert set(request.urls.values()) == {"http://a.example/x", "http://A.example.:80/%79"}
    assert list(request.domains.values()) == ["xn--mnchen-3ya.example"]
    row = {"key": KEYS[1], "page_url": "http://a.example/x"}
    table = pa.Table.from_pylist([row], pa.schema([(name, pa.string()) for name in COLUMNS]))
    missing = {"urls": ["http://A.example.:80/%79"], "domains": ["xn--mnchen-3ya.example"]}
    assert request.not_in(table) == {"keys": [KEYS[2]], **missing}


def test_what_a_run_has_removed_is_a_list(tmp_path: Path) -> None:
    rows = [
        {"kind": "pair", "hash": KEYS[0]},
        {"kind": "url", "hash": hashed("http://a.example/x")},
        {"kind": "domain", "hash": hashed("example.org")},
    ]
    pq.write_table(pa.Table.from_pylist(rows, REMOVED), tmp_path / "removed.parquet")
    request = of_files({"removed": [str(tmp_path / "removed.parquet")]})
    found = [
        {"key": KEYS[0]},
        {"key": KEYS[1], "image_id": image_id("http://a.example/x")},
        {"key": KEYS[1], "page_url": "http://www.example.org/"},
        {"key": KEYS[1]},
    ]
    table = pa.Table.from_pylist(found, pa.schema([(name, pa.string()) for name in COLUMNS]))
    assert request.matches(table).tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("keys", b"cat\n", r"list line 1: 'cat' is not 32 hex digits, as --keys wants"),
        ("hashes", b"\n" + b"0" * 63, r"list line 2: '0+' is not 64 hex digits, as --hashes wants"),
        ("urls", b"cat.jpg", r"list line 1: 'cat.jpg' is no URL; write one such as https://example.org/cat.jpg"),
        ("domains", b"http://x/", r"list line 1: 'http://x/' is no domain; .*"),
        ("keys", b"\xff\xfe", r"--keys .*list: not text \(byte 0\); write one entry a line, in UTF-8"),
        ("image_ids", b" \n", r".*list: nothing is listed; write one entry a line"),
        ("removed", b"PAR1", r"--removed .*list: not what a run has removed .*; give the removed.parquet of a run"),
    ],
)
def test_a_list_that_is_none_is_refused_in_one_line(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(UsageError, match=said):
        of_files({name: [str(tmp_path / "list")]})


def test_a_list_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"--image-ids .*nowhere: cannot be read \(No such file or directory\); give the path"
    ):
        of_files({"image_ids": [str(tmp_path / "nowhere")]})


def test_hashes_that_are_numbers_are_not_what_a_run_has_removed(tmp_path: Path) -> None:
    path = tmp_path / "list"
    pq.write_table(pa.table({"kind": ["pair"], "hash": [7]}), path)
    with pytest.raises(UsageError, match=r"not what a run has removed \(TypeError\); give the removed\.parquet"):
        of_files({"removed": [str(path)]})


@pytest.mark.parametrize("sources", ["ab", "aa"])  # the second as runs have it that were merged
def test_a_name_of_several_images_is_refused_with_what_tells_them_apart(sources: str) -> None:
    rows = pa.table({"source": [*sources], "source_key": ["x", "x"], "image_id": ["1", "2"]})
    with pytest.raises(UsageError, match="x is the name of 2") as refused:
        Request(source_keys={hashed("x"): "x"}).of_one_input(rows)
    assert "give --image-ids or --keys" in str(refused.value)
