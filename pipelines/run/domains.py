"""Block lists of domains, whose hosts are never asked.

A list has one domain a line, in any case, Unicode or Punycode; it covers its subdomains. An entry may also be an
address. `#` begins a comment, and blank lines are ignored.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from altalign import storage
from altalign.errors import UsageError
from altalign.filters.one_url import host_of


@dataclass(frozen=True)
class Domains:
    """The domains of all lists, as `calls.Target` spells hosts."""

    names: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, texts: Iterable[tuple[str, str]]) -> "Domains":
        """Parses lists, each given as (name for errors, text); UsageError names the list and the line."""
        names = set[str]()
        for name, text in texts:
            for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
                if not (entry := line.partition("#")[0].strip()):
                    continue
                is_bare = (":" not in entry or entry.startswith("[")) and not set(entry) & set("/\\?@*")
                domain = host_of(f"http://{entry}/") if is_bare else ""
                if not domain or domain.startswith("."):
                    raise UsageError(
                        f"{name} line {number}: {entry!r} is no domain; write one such as example.org, which covers "
                        "what is below it, without scheme, port or path"
                    )
                names.add(domain)
        return cls(frozenset(names))

    @classmethod
    def load(cls, paths: Sequence[str]) -> "Domains":
        """Reads the files of `fetch.blocked_domains`; UsageError where one cannot be read, or a line is no domain."""
        repair = "give paths relative to the working directory"
        return cls.parse((path, read_list(path, f"[fetch] blocked_domains: {path}", repair)) for path in paths)

    def blocks(self, host: str) -> bool:
        """Whether a host, or a domain above it, is on a list."""
        while host and self.names:
            if host in self.names:
                return True
            host = host.partition(".")[2]
        return False


def read_list(path: str, where: str, repair: str) -> str:
    """The text of a list; UsageError says `where`, and what to do about a file that is not there."""
    try:
        return storage.read_bytes(path).decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not text (byte {error.start}); write one entry a line, in UTF-8") from None
    except OSError as error:
        raise UsageError(f"{where}: cannot be read ({error.strerror or error}); {repair}") from None
