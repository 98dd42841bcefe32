"""Shows how many shards are checked: a bar on a terminal, nothing elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from altalign import terminal


@contextmanager
def counting(shards: int) -> Iterator[Callable[[], None]]:
    """Shows a bar of this many shards; call what it yields, from any thread, whenever one is done."""
    console = terminal.stderr()
    if not console.is_terminal or not shards:
        yield lambda: None
        return
    from rich.progress import Progress

    with Progress(*terminal.bar_columns("shards"), console=console) as bar:
        task = bar.add_task("checks", total=shards)
        yield lambda: bar.advance(task)
