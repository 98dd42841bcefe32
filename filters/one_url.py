"""One image URL of a table in plain Python; `urls` does the same with columns, by a kernel."""

import re
from collections.abc import Callable
from functools import cache, lru_cache

import ada_url

# Property White_Space.
WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)

_SCHEME_MISSING = re.compile(r"[\0-\x20]*[/\\][\t\n\r]*[/\\]")  # as in //example.org/cat.jpg; WHATWG skips tabs
_SCHEMES = ("http:", "https:")


def request_urls(url: str) -> list[str]:
    """The URL as it is asked for, without credentials, fragment and the final dot of its host; [] where it is none.

    Of one without a scheme, as pages have them, both: by http and by https.
    """
    asked = list[str]()
    for parts in _parts(url):
        if parts.protocol in _SCHEMES:
            parts.username = parts.password = ""
            parts.hostname = parts.hostname.rstrip(".")
            asked.append(parts.href.partition("#")[0])
    return asked


def host_of(url: str) -> str:
    """The host of a URL of any scheme, in lower case and Punycode without a final dot; empty where it has none."""
    return next((parts.hostname.rstrip(".") for parts in _parts(url)), "")


@lru_cache(maxsize=1 << 16)
def registered_domain(host: str) -> str:
    """The domain that was registered for a host, by the Public Suffix List; empty of an address, or an unknown suffix.

    Where anybody may register (`github.io`), it is what one of them has.
    """
    return _suffixes()(host.lower()) or ""


def domain_of(url: str | None) -> str:
    """The registered domain of a URL; its host where that has none, and empty where there is no host."""
    host = host_of(url or "")
    return registered_domain(host) or host


@cache
def _suffixes() -> Callable[[str], str | None]:
    from publicsuffixlist import PublicSuffixList  # a twelfth of a second, with its list

    return PublicSuffixList(accept_unknown=False).privatesuffix


def _parts(url: str) -> list[ada_url.URL]:
    try:
        schemes = _SCHEMES if _SCHEME_MISSING.match(url) else ("",)
        return [ada_url.URL(scheme + url.strip(WHITE_SPACE)) for scheme in schemes]
    except ValueError:
        return []


def parsed(url: str) -> tuple[str, bool]:
    """The URL in the form that is kept, and whether it is valid."""
    url = url.strip(WHITE_SPACE)
    try:
        is_valid = ada_url.URL(url).protocol in _SCHEMES
    except ValueError:
        is_valid = False
    return (url.partition("#")[0] if is_valid else url), is_valid
