"""The fenced blocks of a document, and what stands below each as its output."""

import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(?P<kind>\w*)(?P<note>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block; `output` is of the `text` block right below it, or None."""

    kind: str
    note: str
    text: str
    output: str | None
    line: int


def blocks(path: Path) -> list[Block]:
    """Every fenced block of a document, in order."""
    text = path.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(text))
    found = []
    for fence, after in pairwise([*fences, None]):
        assert fence is not None
        is_answered = after is not None and after["kind"] == "text" and not text[fence.end() : after.start()].strip()
        output = after["text"] if after and is_answered else None
        found.append(
            Block(fence["kind"], fence["note"].strip(), fence["text"], output, text.count("\n", 0, fence.start()) + 1)
        )
    return found


def pattern(text: str) -> str:
    """A regular expression of expected output: `…` is anything, alone on its line any lines."""
    lines = [line.rstrip() for line in text.rstrip().splitlines()]
    return "".join(
        r"(?:[^\n]*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + "\n" for line in lines
    )


def prints(block: Block, printed: str) -> bool:
    """Whether this is what the document says that the block prints."""
    lines = "".join(line.rstrip() + "\n" for line in printed.splitlines())
    return block.output is None or bool(re.fullmatch(pattern(block.output), lines.rstrip() + "\n"))
