from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.pipelines.figures import image_figures
from altalign.pipelines.web.journal.log import host_of

ROWS = st.tuples(
    st.integers(0, 2**128 - 1),
    st.sampled_from(["https://a.example/1", "https://b.example:8/2", "http://[::1]/", None]),
    st.sampled_from([0, 1, 2]),
)


@given(st.lists(ROWS, max_size=40), st.sampled_from([1, 2, 1_024]))
def test_images_of_the_sample_are_counted_by_host(rows: list[tuple[int, str | None, int]], one_in: int) -> None:
    ids = [f"{number:032x}" for number, _, _ in rows]
    found = image_figures.count_hosts(
        ids,
        [url for _, url, _ in rows],
        [ended > 0 for _, _, ended in rows],
        [ended > 1 for _, _, ended in rows],
        one_in=one_in,
    )
    sample = [(host_of(url), ended) for number, url, ended in rows if number >> 64 < 2**64 // one_in]
    assert {host: images for host, (images, _, _) in found.items()} == Counter(host for host, _ in sample)
    assert {host: came for host, (_, came, _) in found.items() if came} == Counter(
        host for host, ended in sample if ended > 0
    )
    assert {host: kept for host, (_, _, kept) in found.items() if kept} == Counter(
        host for host, ended in sample if ended > 1
    )


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://A.Example:81/x", "a.example"),
        (None, ""),
        ("", ""),
        ("pictures/1.jpg", ""),
        ("http://[::1/x", ""),
        ("https://xn--p1ai/", "xn--p1ai"),
        ("https://рф/", "xn--p1ai"),
    ],
)
def test_a_url_without_a_host_has_an_empty_one(url: str | None, host: str) -> None:
    assert host_of(url) == host
