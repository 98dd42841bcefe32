"""What somebody wants removed: lists of keys, URLs, images, digests, domains or names in the input; which rows match.

A list has one entry a line; blank lines are ignored. A key or a `source_key` names a pair; an image_id, an image's URL
and the SHA-256 of its bytes name an image with all its pairs; a page's URL and a domain name all pairs that have them.
What one run has removed (`removed.parquet`) is a list too: URLs, domains and names are compared by their hashes.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.data.key import image_id
from altalign.data.stages import REMOVED_FILE
from altalign.errors import AltalignError, UsageError
from altalign.filters import one_url
from altalign.filters.one_url import WHITE_SPACE
from altalign.pipelines.run.domains import Domains, read_list
from altalign.storage import parquet

# the columns that rows are matched by; dropped rows lack `sha256`
COLUMNS = ("key", "image_id", "image_url", "page_url", "source_key", "found_sha256", "sha256")
_ORIGIN = r"^(?P<origin>[A-Za-z][A-Za-z0-9+.-]*://[^/\\?#\s]+)(?:[/\\?#]|$)"  # white space in a host is skipped
_SHOWN = 8  # of what an error names
_HEX_DIGITS = {"keys": 32, "image_ids": 32, "hashes": 64}
# kinds of `removed.parquet`, and the fields of a request that have their hashes
_KINDS = {"key": "keys", "image_id": "image_ids", "url": "urls", "sha256": "hashes", "domain": "domains"}
_KINDS |= {"source_key": "source_keys"}

Mask = npt.NDArray[np.bool_]  # bool[n], a row each
Names = Mapping[str, str]  # hash: name; the name is empty where only the hash is known
hashed = image_id  # BLAKE2b-128 of a URL, a domain or a name; of an image's URL it is the image_id


@dataclass(frozen=True)
class Request:
    """What is to go. URLs, domains and names in the input by their hashes."""

    keys: frozenset[str] = frozenset()
    image_ids: frozenset[str] = frozenset()
    hashes: frozenset[str] = frozenset()
    urls: Names = field(default_factory=dict)
    domains: Names = field(default_factory=dict)
    source_keys: Names = field(default_factory=dict)

    @cached_property
    def images(self) -> frozenset[str]:
        """The image_ids that are named, by themselves, by a URL, or by the digest of an image in hand without a URL."""
        return self.image_ids | self.urls.keys() | frozenset(map(image_id, self.hashes))

    @property
    def of_rows(self) -> "Request":
        """What of it names rows and not pairs or images: pages, domains, names in the input."""
        return Request(urls=self.urls, domains=self.domains, source_keys=self.source_keys)

    def with_images(self, image_ids: frozenset[str]) -> "Request":
        """The same and these images."""
        return replace(self, image_ids=self.image_ids | image_ids)

    def __or__(self, other: "Request") -> "Request":
        return Request(*(getattr(self, each.name) | getattr(other, each.name) for each in fields(self)))

    def matches(self, rows: pa.Table) -> Mask:
        """Which rows are to go; columns of `COLUMNS` that are not there match nothing."""
        hits = np.zeros(len(rows), bool)
        by_column = {"key": self.keys, "image_id": self.images, "sha256": self.hashes, "found_sha256": self.hashes}
        for name, values in by_column.items():
            if values and name in rows.column_names:
                is_in: Any = pc.is_in(rows[name], value_set=pa.array(list(values), pa.string()))
                hits |= is_in.to_numpy().astype(bool)
        if self.source_keys and "source_key" in rows.column_names:
            for column in _names(rows):
                hits |= _where(column, lambda name: hashed(name) in self.source_keys)
        for name in {"image_url", "page_url"}.intersection(rows.column_names):
            if self.urls:
                hits |= _where(rows[name], self.has_url)
            if self.domains:  # asked of scheme and host alone, where a URL is written so
                parts: Any = pc.extract_regex(cast(Any, rows[name].cast(pa.string())), pattern=_ORIGIN)
                hits |= _where(pc.coalesce(pc.struct_field(parts, "origin"), cast(Any, rows[name])), self.has_host_of)
        return hits

    def are_images(self, rows: pa.Table) -> Mask:
        """Which rows are of an image that is named, not of a page alone."""
        return self.matches(rows.select([name for name in rows.column_names if name != "page_url"]))

    def has_url(self, url: str) -> bool:
        """Whether a URL is one of those that are named, as it is written or as it is asked for."""
        return any(each in self.urls for each in _spellings(url)) if self.urls else False

    def has_host_of(self, url: str) -> bool:
        """Whether a URL has a host of one of the domains, or below one."""
        host = one_url.host_of(url) if self.domains else ""
        while host:
            if hashed(host) in self.domains:
                return True
            host = host.partition(".")[2]
        return False

    def not_in(self, rows: pa.Table) -> dict[str, list[str]]:
        """The entries of each list that none of these rows has, sorted."""
        existing: dict[str, set[str]] = {name: {*map(str, rows[name].drop_null().to_pylist())} for name in COLUMNS}
        places, digests = existing["image_url"] | existing["page_url"], existing["sha256"] | existing["found_sha256"]
        urls = existing["image_id"].union(*map(_spellings, places)) if self.urls else set[str]()
        columns = _names(rows) if self.source_keys else []
        named = {hashed(name) for column in columns for name in column.drop_null().unique().to_pylist()}
        left: dict[str, Iterable[str]] = {
            "keys": self.keys - existing["key"],
            "image_ids": self.image_ids - existing["image_id"],
            "hashes": [each for each in self.hashes - digests if image_id(each) not in existing["image_id"]],
            "urls": {*self.urls.values()} - {url for name, url in self.urls.items() if name in urls},
            "domains": [
                domain
                for name, domain in self.domains.items()
                if not any(map(Request(domains={name: domain}).has_host_of, places))
            ],
            "source_keys": [entry for name, entry in self.source_keys.items() if name not in named],
        }
        return {name: entries for name, values in left.items() if (entries := sorted(filter(None, values)))}

    def of_one_input(self, rows: pa.Table) -> "Request":
        """The same with each name in the input as `SOURCE:NAME`, where rows have it.

        Raises:
            UsageError: rows of several inputs, or of several images, have it.
        """
        named, names = dict[str, set[tuple[str, str]]](), dict(self.source_keys)
        matching = rows.filter(pa.array(Request(source_keys=names).matches(rows)))
        for row in matching.select(["source", "source_key", "image_id"]).to_pylist():
            full = f"{row['source']}:{row['source_key']}"
            name = row["source_key"] if hashed(row["source_key"]) in names else full
            named.setdefault(name, set()).add((full, row["image_id"] or ""))
        for name, of_name in named.items():
            if len(of_name) > 1:
                those = ", ".join(f"{full} (image_id {image})" for full, image in sorted(of_name)[:_SHOWN])
                message = f"--source-keys: {name} is the name of {len(of_name):,}: {those}"
                are_apart = len({full for full, _ in of_name}) == len(of_name)
                raise UsageError(f"{message}; {'write SOURCE:NAME, or ' * are_apart}give --image-ids or --keys")
            names.pop(hashed(name))
            names |= {hashed(full): full for full, _ in of_name}
        return replace(self, source_keys=names)

    def entries(self) -> list[tuple[str, str]]:
        """Kind and hash of every entry, as `removed.parquet` has them."""
        return [(kind, entry) for kind, name in _KINDS.items() for entry in sorted(getattr(self, name))]


def _spellings(url: str) -> list[str]:
    """The hashes of a URL as it is written, and as it is asked for."""
    return [*map(hashed, (url, *one_url.request_urls(url)))]


def _names(rows: pa.Table) -> list[Any]:
    """The names of rows in their inputs: bare, and with their source before a colon."""
    names, joined = rows["source_key"], cast(Any, pc.binary_join_element_wise)
    return [names, *([joined(rows["source"], names, ":")] if "source" in rows.column_names else [])]


def _where(column: Any, holds: Callable[[str], bool]) -> Mask:
    """Where a condition holds of a column of strings, asked once for each; null: it does not."""
    encoded = column.combine_chunks().dictionary_encode()
    answers = [value is not None and holds(value) for value in encoded.dictionary.to_pylist()]
    indices: Any = pc.fill_null(encoded.indices, len(answers))
    return np.array([*answers, False], bool)[indices.to_numpy()]


# Lists ---------------------------------------------------------------------------------------------------------------


def of_files(paths: Mapping[str, Sequence[str]]) -> Request:
    """The request that files make: for each field of `Request` the files that list its entries; `removed` for tables.

    Raises:
        UsageError: a file cannot be read, a line is not what its list is of, or no line has an entry.
    """
    request = Request()
    for name, files in paths.items():
        for path in files:
            request |= of_run(path) if name == "removed" else _of_list(name, path)
    if not request.entries():
        names = ", ".join(path for files in paths.values() for path in files)
        raise UsageError(f"{names}: nothing is listed; write one entry a line")
    return request


def of_run(path: str) -> Request:
    """What a run has removed; UsageError where the file is something else."""
    try:
        rows = parquet.read_table(path).select(["kind", "hash"]).to_pylist()
        if not all(isinstance(value, str) for row in rows for value in row.values()):
            raise TypeError
    except (OSError, KeyError, TypeError, AltalignError) as error:
        message = f"--removed {path}: not what a run has removed ({type(error).__name__})"
        raise UsageError(f"{message}; give the {REMOVED_FILE} of a run") from None
    by_kind = {kind: frozenset(row["hash"] for row in rows if row["kind"] == kind) for kind in ("pair", *_KINDS)}
    by_name = (dict.fromkeys(by_kind[kind], "") for kind in ("url", "domain", "source_key"))
    return Request(by_kind["key"] | by_kind["pair"], by_kind["image_id"], by_kind["sha256"], *by_name)


def _of_list(name: str, path: str) -> Request:
    """The entries of a list: URLs, domains and names by the hashes of each spelling that they are asked for by."""
    option, entries = f"--{name.replace('_', '-')}", dict[str, str]()
    text = read_list(path, f"{option} {path}", "give the path of a list")
    if name == "domains":
        return Request(domains={hashed(domain): domain for domain in Domains.parse([(path, text)]).names})
    digits = _HEX_DIGITS.get(name)
    for number, line in enumerate(text.splitlines(), start=1):
        entry, where = line.strip(WHITE_SPACE), f"{path} line {number}"
        if not entry:
            continue
        if digits:
            if not re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", entry):
                raise UsageError(f"{where}: {entry!r} is not {digits} hex digits, as {option} wants")
            entries[entry.lower()] = ""
        elif name == "urls":
            if not one_url.request_urls(entry):
                raise UsageError(f"{where}: {entry!r} is no URL; write one such as https://example.org/cat.jpg")
            entry = one_url.parsed(entry)[0]
            entries |= dict.fromkeys(_spellings(entry), entry)
        else:
            entries[hashed(entry)] = entry
    of_list: Any = frozenset(entries) if digits else entries
    return Request(**{name: of_list})
