"""Which variables of the environment are said to name proxies of images."""

import pytest

from altalign.pipelines.web.policy import proxies


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, ""),
        # altalign sets the first itself, for gRPC; the others are not of the web
        ({"no_grpc_proxy": "localhost", "NO_PROXY": "a.test", "ftp_proxy": "b.test"}, ""),
        ({"https_proxy": "c.test:1"}, "HTTPS_PROXY is set, and is not used for images: "),
        (
            {"ALL_PROXY": "c.test", "http_proxy": "d.test"},
            "ALL_PROXY, HTTP_PROXY are set, and are not used for images: ",
        ),
    ],
)
def test_a_line_names_what_a_client_of_the_web_would_use(
    given: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in proxies.getproxies_environment():
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_proxy".upper(), raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert proxies.unused().startswith(said)
    assert bool(proxies.unused()) == bool(said)
