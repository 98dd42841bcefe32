"""Block lists of domains: which hosts are never asked. Text in, a list out, hosts asked against it.

One domain a line, in any case, Unicode or Punycode; it covers its subdomains. An address is an entry too. `#` begins a
comment, blank lines are none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ada_url

from altalign import storage
from altalign.errors import UsageError


@dataclass(frozen=True)
class Domains:
    """The domains of all lists, as `target.Target` spells hosts."""

    names: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, texts: Iterable[tuple[str, str]]) -> "Domains":
        """Read lists, each given as (name for errors, its text).

        Raises:
            UsageError: a line is no domain, naming the list and the line.
        """
        found = set()
        for name, text in texts:
            for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
                entry = line.partition("#")[0].strip()
                if entry:
                    found.add(_domain(entry, where=f"{name} line {number}"))
        return cls(frozenset(found))

    @classmethod
    def load(cls, paths: Sequence[str]) -> "Domains":
        """Read `fetch.blocked_domains`.

        Raises:
            UsageError: a file cannot be read, or a line is no domain.
        """
        return cls.parse((path, _text(path)) for path in paths)

    def blocks(self, host: str) -> bool:
        """Whether a host, or a domain that it is below, is on a list."""
        if not self.names:
            return False
        while host not in self.names:
            _, dot, host = host.partition(".")
            if not dot:
                return False
        return True


def _domain(entry: str, *, where: str) -> str:
    """The spelling that hosts of parsed URLs have."""
    is_bare = not any(character in entry for character in "/\\?@*") and (":" not in entry or entry.startswith("["))
    try:
        domain = ada_url.URL(f"http://{entry}/").hostname.rstrip(".") if is_bare else ""
    except ValueError:
        domain = ""
    if not domain or domain.startswith("."):
        raise UsageError(
            f"{where}: {entry!r} is no domain; write one such as example.org, which covers what is below it, without scheme, port or path"
        )
    return domain


def _text(path: str) -> str:
    try:
        return Path(storage.mappable(path)).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"[fetch] blocked_domains: {path}: cannot be read ({error.strerror}); give paths relative to the working directory"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"[fetch] blocked_domains: {path}: not text (byte {error.start})") from None
