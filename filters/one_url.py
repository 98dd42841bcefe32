"""One image URL of a table in plain Python; `urls` does the same with columns, by a kernel."""

import ada_url

# Property White_Space.
WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def parsed(url: str) -> tuple[str, bool]:
    """The URL in the form that is kept, and whether it is valid."""
    url = url.strip(WHITE_SPACE)
    try:
        is_valid = ada_url.URL(url).protocol in ("http:", "https:")
    except ValueError:
        is_valid = False
    return (url.partition("#")[0] if is_valid else url), is_valid
