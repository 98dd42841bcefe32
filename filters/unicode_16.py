"""The module `unicodedata` of Unicode 16.0, the version of the rules: Python's own in 3.14, unicodedata2 before."""

import sys

if sys.version_info >= (3, 14):
    import unicodedata
else:
    import unicodedata2 as unicodedata

__all__ = ["unicodedata"]
