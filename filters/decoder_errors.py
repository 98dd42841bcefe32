"""What decoders of images raise on bytes that are not what they claim."""

import struct
import zlib

# Pillow's plug-ins parse in Python, hence the lookup, type and arithmetic errors. MemoryError is not among them: of an
# image within the limits, no plug-in raises it for corrupt bytes, so it tells of the machine.
DECODER_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    AssertionError,
    struct.error,
    zlib.error,
)
