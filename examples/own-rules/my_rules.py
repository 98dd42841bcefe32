"""Rules of your own: columns in, a mask out, true where a row is dropped (docs/guides/rules-of-your-own.md)."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def no_prices(caption: Any, words: Any, *, words_at_most: int = 20) -> Any:
    """Drops captions of at most so many words that name a price, such as `$5` or `12.50 EUR`."""
    has_price = pc.match_substring_regex(caption, r"[$€£]\s*\d|\d\s*(EUR|USD|GBP)\b")
    return pc.and_(has_price, pc.less_equal(words, words_at_most))


def no_banners(width: Any, height: Any, *, sizes: list[str]) -> Any:
    """Drops images that have the size of an advertisement."""
    size = pc.binary_join_element_wise(width.cast(pa.string()), height.cast(pa.string()), "x")
    return pc.is_in(size, value_set=pa.array(sizes, pa.string()))
