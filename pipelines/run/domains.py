"""Block lists of domains, whose hosts are never asked.

A list has one domain a line, in any case, Unicode or Punycode; it covers its subdomains. An entry may also be an
address. `#` begins a comment, and blank lines are ignored.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ada_url

from altalign import storage
from altalign.errors import UsageError


@dataclass(frozen=True)
class Domains:
    """The domains of all lists, as `calls.Target` spells hosts."""

    names: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, texts: Iterable[tuple[str, str]]) -> "Domains":
        """Parses lists, each given as (name for errors, text).

        Raises:
            UsageError: a line is not a domain; the error names the list and the line.
        """
        names = set()
        for name, text in texts:
            for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
                entry = line.partition("#")[0].strip()
                if entry:
                    names.add(_domain(entry, where=f"{name} line {number}"))
        return cls(frozenset(names))

    @classmethod
    def load(cls, paths: Sequence[str]) -> "Domains":
        """Reads the files of `fetch.blocked_domains`.

        Raises:
            UsageError: a file cannot be read, or a line is not a domain.
        """
        texts, where = list[tuple[str, str]](), "[fetch] blocked_domains"
        for path in paths:
            try:
                texts.append((path, Path(storage.mappable(path)).read_text(encoding="utf-8")))
            except OSError as error:
                why = f"cannot be read ({error.strerror}); give paths relative to the working directory"
                raise UsageError(f"{where}: {path}: {why}") from None
            except UnicodeDecodeError as error:
                raise UsageError(f"{where}: {path}: not text (byte {error.start})") from None
        return cls.parse(texts)

    def blocks(self, host: str) -> bool:
        """Whether a host, or a domain above it, is on a list."""
        if not self.names:
            return False
        while host not in self.names:
            _, dot, host = host.partition(".")
            if not dot:
                return False
        return True


def _domain(entry: str, *, where: str) -> str:
    """A domain as the hosts of parsed URLs spell it."""
    is_bare = not any(character in entry for character in "/\\?@*") and (":" not in entry or entry.startswith("["))
    try:
        domain = ada_url.URL(f"http://{entry}/").hostname.rstrip(".") if is_bare else ""
    except ValueError:
        domain = ""
    if not domain or domain.startswith("."):
        repair = "write one such as example.org, which covers what is below it, without scheme, port or path"
        raise UsageError(f"{where}: {entry!r} is no domain; {repair}")
    return domain
