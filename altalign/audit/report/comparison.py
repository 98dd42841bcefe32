"""The page of `altalign audit RUN_A RUN_B --page FILE`: what differs, and with pictures, which pairs changed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from altalign.audit.compare_pairs import Example
from altalign.audit.report import page
from altalign.audit.report.galleries import Picture
from altalign.audit.report.shard_pictures import thumbnail
from altalign.filters import image
from altalign.machine import interrupts
from altalign.pages import frame


@dataclass(frozen=True)
class _Card:
    pair: Example
    picture: Picture | None
    is_nsfw: bool


def html(found: Mapping[str, Any], examples: Iterable[tuple[str, str, Example]], pixels_at_most: int) -> bytes:
    """The whole page in UTF-8. Reads the images of the examples from the shards.

    Args:
        found: what differs, as `Comparison.to_json` has it.
        examples: both verdicts of a pair that changed, and the pair.
        pixels_at_most: images of more pixels are not decoded.
    """
    cards: dict[tuple[str, str], list[_Card]] = {}
    for before, after, pair in examples:
        interrupts.check()
        picture = thumbnail(*pair.image, pixels_at_most=pixels_at_most) if pair.image else None
        is_nsfw = any(verdict.endswith(f": {image.image_nsfw.name}") for verdict in (before, after))
        cards.setdefault((before, after), []).append(_Card(pair, picture, is_nsfw))
    return frame.rendered(page.FOLDER, "comparison.html", scripts=("cards.js",), found=found, cards=cards)
