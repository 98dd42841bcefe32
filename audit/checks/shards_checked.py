"""How many shards are checked: a bar on a terminal, and nothing elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from altalign import terminal


@contextmanager
def counting(shards: int) -> Iterator[Callable[[], None]]:
    """Show a bar of so many shards; what it gives is called, from any thread, when one of them is done."""
    console = terminal.stderr()
    if not console.is_terminal or not shards:
        yield lambda: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("shards"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("checks", total=shards)
        yield lambda: bar.advance(task)
