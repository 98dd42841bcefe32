import ada_url
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.filters.urls import table_urls
from tests.strategies import URLS

derandomized = settings(derandomize=True, deadline=None, max_examples=300)

WHITE_SPACE = "".join(map(chr, [*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029]))
WHITE_SPACE += "\u202f\u205f\u3000"
NASTY = [
    *(url for url in URLS if url is not None),
    "http://a.example",
    "https://a.example?",
    "http://a.example#",
    "http://a.example/##",
    "hTTp://a.example/",
    "httpx://a.example/",
    "http:/a.example/1",
    "https:///a.example/1",
    "http://a.example:99999/",
    "http://user:pass@a.example/",
    "http://a.example./",
    "http://a..example/",
    "http://.example/",
    "http://0x7f.1/",
    "http://1/",
    "http://a.1/",
    "http://a.0x/",
    "http://a.1x/",
    "http://a.09/",
    "http://256.256.256.256/",
    "http://xn--a/",
    "http://a.XN--zzzz--/",
    "http://ab--cd.example/",
    "http://-a-.example/",
    "http://a_b.example/",
    "http://%41.example/",
    "http://a%00b/",
    "http://a|b/",
    "http://a\\b",
    "http://a^b/",
    "http://\u00ad/",
    "http://a\u3002example/",
    "http://a.example/\x00",
    "http://a.example/\x1f",
    "http://a.example/a\tb\n",
    "http://a.example/\ufeff",
    "http://a.example/\u200b",
    "http://a.example/\x85",
    "\x1fhttp://a.example/",
    "\x00http://a.example/1#x",
    "ht\ttp://a.example/1#x",
    "http://a.exa\nmple/1",
    "https://" + "a" * 300 + ".example/",
    "https://" + "a." * 200 + "example/",
    "http://a.example/" + "%" * 5,
    "about:blank",
    "mailto:a@b",
    "http",
    "http:",
    "https:/",
    "http:///",
    "http://?",
    "http://#",
    "https://a",
    "http://a",
]
LONG = "http://b.example/" + "x" * 100  # what is looked at 64 bytes at a time needs so many behind it
pieces = st.sampled_from([*"/\\a.-_1é%:@?# \t\u3000\x00", "http:", "https:", "HTTP:", "//", "A.b", "--", "xn--", "0x1"])
made = st.lists(pieces, max_size=9).map("".join)
likely = st.tuples(st.sampled_from(["http://", "https://", "hTtPs://"]), made).map("".join)


def plain(url: str) -> tuple[str, bool]:
    url = url.strip(WHITE_SPACE)
    try:
        is_valid = ada_url.URL(url).protocol in ("http:", "https:")
    except ValueError:
        is_valid = False
    return (url.split("#")[0] if is_valid else url), is_valid


def check(column: pa.Array) -> None:
    found, is_valid = table_urls(column)
    expected = [(None, False) if url is None else plain(url) for url in column.to_pylist()]
    assert list(zip(found.to_pylist(), is_valid.tolist(), strict=True)) == expected
    assert found.type == pa.string()


@pytest.mark.parametrize("url", NASTY)
@pytest.mark.parametrize("behind", [[], [LONG]])
def test_a_nasty_url_is_judged_as_the_parser_does(url: str, behind: list[str]) -> None:
    check(pa.array([url, *behind]))


@pytest.mark.parametrize("behind", [[], [LONG]])
@pytest.mark.parametrize("end", ["", "/", "/#", "?", ".", "./1", ".1/", "-", "é", "_.b/"])
def test_hosts_of_any_length_are_judged_as_the_parser_does(end: str, behind: list[str]) -> None:
    hosts = (
        ["a" * size for size in range(68)]
        + ["a." * size for size in range(34)]
        + ["a." * size + "b" for size in range(34)]
    )
    check(pa.array([f"{scheme}://{host}{end}" for scheme in ("http", "https") for host in hosts] + behind))


@given(
    st.lists(made | likely | st.sampled_from(NASTY) | st.none(), max_size=12),
    st.integers(0, 3),
    st.sampled_from([pa.string(), pa.large_string()]),
    st.sampled_from([[], [LONG]]),
)
@derandomized
def test_columns_with_nulls_and_slices_are_judged_row_by_row(
    urls: list[str | None], begin: int, kind: pa.DataType, behind: list[str]
) -> None:
    check(pa.array(urls + behind, kind).slice(begin))


def test_a_kept_url_has_no_fragment_and_a_refused_one_is_as_written() -> None:
    found, is_valid = table_urls(
        pa.array([" http://a.example/1#top ", "\tftp://a.example/1#top\u3000", None, "/1.jpg#x", ""])
    )
    assert found.to_pylist() == ["http://a.example/1", "ftp://a.example/1#top", None, "/1.jpg#x", ""]
    assert is_valid.tolist() == [True, False, False, False, False]


def test_a_column_that_needs_no_change_is_not_copied() -> None:
    column = pa.array(["http://a.example/1", None, "nonsense", "http://bücher.example/"])
    for some in (column, column.slice(1)):
        assert [buffer and buffer.address for buffer in table_urls(some)[0].buffers()] == [
            buffer and buffer.address for buffer in some.buffers()
        ]


def test_bytes_that_are_not_utf8_become_replacement_characters() -> None:
    data = pa.array([b"http://a.example/\xff.jpg", None, b"\xc3http://a.example/", b"http://a.example/1"], pa.binary())
    mislabelled = pa.StringArray.from_buffers(4, data.buffers()[1], data.buffers()[2], data.buffers()[0], 1)
    for column in (data, mislabelled, data.cast(pa.large_binary())):
        found, is_valid = table_urls(column)
        assert found.to_pylist() == [
            "http://a.example/\ufffd.jpg",
            None,
            "\ufffdhttp://a.example/",
            "http://a.example/1",
        ]
        assert is_valid.tolist() == [True, False, False, True]
    assert table_urls(data.slice(1, 2))[0].to_pylist() == [None, "\ufffdhttp://a.example/"]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()])
def test_columns_of_other_types_of_text(kind: pa.DataType) -> None:
    column = (
        pa.array(["http://a.example/1#x", None, "x"]).cast(kind)
        if kind != pa.string_view()
        else pa.array(["http://a.example/1#x", None, "x"], kind)
    )
    found, is_valid = table_urls(column)
    assert (found.to_pylist(), is_valid.tolist()) == (["http://a.example/1", None, "x"], [True, False, False])


def test_an_empty_column() -> None:
    found, is_valid = table_urls(pa.array([], pa.string()))
    assert (len(found), len(is_valid)) == (0, 0)
    assert table_urls(pa.nulls(2, pa.string()))[1].tolist() == [False, False]
