"""`rsl`: a licence of Really Simple Licensing (RSL 1.0, sections 4.4 and 4.5), whose terms are not read."""

import re
from collections.abc import Iterable

_LINK = re.compile(r"<([^<>]*)>([^<]*)")
_LICENSE = re.compile(r";\s*rel\s*=\s*(?:license\b|\"[^\"]*\blicense\b)", re.IGNORECASE)
_TYPE = re.compile(r";\s*type\s*=\s*\"?application/rsl\+xml\b", re.IGNORECASE)


def of_links(values: Iterable[str]) -> list[str]:
    """The licences that headers of the name Link lead to."""
    links = [link for value in values for link in _LINK.findall(value)]
    return [url for url, parameters in links if _LICENSE.search(parameters) and _TYPE.search(parameters)]
