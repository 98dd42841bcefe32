"""Image identity and sample key. They never change: tests/altalign/data/test_key.py has the golden values.

The identity of an image is its absolute URL without the fragment, or, for an image in hand without a valid URL, the
SHA-256 of its bytes in lower-case hex. `altalign.filters.identity` computes the same for columns.
"""

from hashlib import blake2b


def image_id(identity: str) -> str:
    """BLAKE2b-128 of the image identity (UTF-8), as 32 hex digits."""
    return blake2b(identity.encode(), digest_size=16).hexdigest()


def sample_key(identity: str, caption: str) -> str:
    """BLAKE2b-128 of image identity, a zero byte and caption (UTF-8), as 32 hex digits.

    The identity is empty for a candidate that has none.
    """
    return blake2b(identity.encode() + b"\0" + caption.encode(), digest_size=16).hexdigest()
