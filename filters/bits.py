"""Memory for kernels: loads and stores at an address, unaligned, little-endian and unchecked; and UTF-8 in it.

Numba counts references at every call that passes an array, which costs more than most of our kernels do. So a kernel
takes the addresses of its arrays once and passes those to its helpers. The caller makes sure that the bytes are there
and stay alive (kernels copy what they read to scratch memory with PADDING behind it). Numba's cache does not notice
that a helper in another file changed: after an edit here, remove the `*.nbi` files.
"""

from collections.abc import Callable, Sequence
from inspect import Parameter
from inspect import Signature as Parameters
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import extending, njit, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing.templates import Signature

# Types of what numba's intrinsics are given and give back, which write LLVM's code themselves.
Kind: TypeAlias = types.Type  # of an operand, as numba infers it
Context: TypeAlias = BaseContext
Builder: TypeAlias = Any  # of LLVM's instructions; llvmlite makes its methods by decorators without types
Arguments: TypeAlias = Sequence[ir.Value]
Codegen: TypeAlias = Callable[[Context, Builder, Signature, Arguments], ir.Value]
Intrinsic: TypeAlias = tuple[Signature, Codegen]

# what it makes is called with other parameters than it is defined with, and by kernels alone
intrinsic = cast("Callable[[Callable[..., Intrinsic]], Any]", extending.intrinsic)

# Arrays that kernels take.
Bytes: TypeAlias = npt.NDArray[np.uint8]
Longs: TypeAlias = npt.NDArray[np.int64]
Hashes: TypeAlias = npt.NDArray[np.uint64]

PADDING = 64  # bytes that may be read behind the last one
BYTE, WORD, BYTES_64 = ir.IntType(8), ir.IntType(64), ir.VectorType(ir.IntType(8), 64)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
LOW_BYTES = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)  # mask of the first n of 8 bytes


def on_all_lanes(builder: Builder, value: Any, count: int) -> ir.Value:
    """A vector of so many times the same value."""
    nothing = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    lane = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(lane, nothing, ir.Constant(ir.VectorType(ir.IntType(32), count), None))


def _instruction(signature: Any, write: Callable[..., Any]) -> Any:
    """A function for kernels, whose code `write(builder, *arguments)` writes."""

    def codegen(context: Context, builder: Builder, _signature: Signature, arguments: Arguments) -> ir.Value:
        value = write(builder, *arguments)
        return context.get_dummy_value() if signature.return_type == types.void else value

    def definition(*_kinds: Kind) -> Intrinsic:
        return signature, codegen

    names = ["context", *(f"argument_{place}" for place in range(len(signature.args)))]  # numba counts them
    parameters = Parameters([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])
    definition.__signature__ = parameters  # pyright: ignore[reportFunctionMemberAccess]
    return intrinsic(definition)


def _pointer(builder: Builder, address: Any, at: Any, bits: int) -> ir.Value:
    return builder.inttoptr(builder.add(address, at), ir.IntType(bits).as_pointer())


def _loading(bits: int, kind: Any) -> Any:
    """`load(address, at)`: the number of so many bits from `address + at` on, the first byte in the low bits."""
    return _instruction(
        kind(types.intp, types.intp),
        lambda builder, address, at: builder.zext(builder.load(_pointer(builder, address, at, bits), align=1), WORD),
    )


def _storing(bits: int, kind: Any) -> Any:
    """`store(address, at, value)`: stores so many low bits of a value from `address + at` on, the low byte first."""

    def write(builder: Builder, address: Any, at: Any, value: Any) -> None:
        builder.store(builder.trunc(value, ir.IntType(bits)), _pointer(builder, address, at, bits), align=1)

    return _instruction(types.void(types.intp, types.intp, kind), write)


def _comparing(operator: str) -> Any:
    """`compare(address, at, byte: uint8) -> uint64`: for which of 64 bytes it holds; bit 0 is the first."""

    def write(builder: Builder, address: Any, at: Any, byte: Any) -> ir.Value:
        pointer = builder.bitcast(_pointer(builder, address, at, 8), BYTES_64.as_pointer())
        chunk, every = builder.load(pointer, align=1), on_all_lanes(builder, byte, 64)
        return builder.bitcast(builder.icmp_unsigned(operator, chunk, every), WORD)

    return _instruction(types.uint64(types.intp, types.intp, types.uint8), write)


load8, load16, load32 = (_loading(bits, types.int64) for bits in (8, 16, 32))  # unsigned
load64 = _loading(64, types.uint64)
store8, store64 = _storing(8, types.int64), _storing(64, types.uint64)
equal64, below64 = map(_comparing, ("==", "<"))

# `copy(to, source, size)`: from one address to another, which must not overlap
copy = _instruction(
    types.void(types.intp, types.intp, types.intp),
    lambda builder, to, source, size: cgutils.raw_memcpy(
        builder, builder.inttoptr(to, BYTE.as_pointer()), builder.inttoptr(source, BYTE.as_pointer()), size, 1
    ),
)
# `first_bit(bits: uint64)`: the place of the lowest bit that is set, 64 where none is
first_bit = _instruction(
    types.intp(types.uint64), lambda builder, bits: builder.cttz(bits, ir.Constant(ir.IntType(1), 0))
)


@intrinsic
def address_of(_typing_context: object, array: Kind) -> Intrinsic:
    """`address_of(array) -> intp`: the address of its first item. The array must outlive every use of the address."""

    def codegen(context: Context, builder: Builder, signature: Signature, arguments: Arguments) -> ir.Value:
        return builder.ptrtoint(context.make_array(signature.args[0])(context, builder, arguments[0]).data, WORD)

    return types.intp(array), codegen


@njit(nogil=True)
def load_index(address: int, k: Any) -> Any:
    """Item k of an array of 8-byte integers."""
    return np.int64(load64(address, k * 8))


@njit(nogil=True)
def first64(count: int) -> np.uint64:
    """Which of 64 bytes are among the first `count` (0 or more); bit 0 is the first."""
    return ALL if count >= 64 else ~(ALL << np.uint64(count))


@njit(nogil=True)
def between64(address: int, at: int, least: np.uint8, end: np.uint8) -> np.uint64:
    """Which of 64 bytes are at least `least` and less than `end`; bit 0 is the first."""
    return below64(address, at, end) & ~below64(address, at, least)


# UTF-8 ----------------------------------------------------------------------------------------------------------------

INVALID = -1  # "code point" of a byte that begins no valid sequence


@njit(nogil=True)
def decode(data: int, at: int, end: int) -> tuple[int, int]:
    """Code point and length of the sequence that is at `at` and ends by `end`; (INVALID, 1) if it is not valid UTF-8.

    Validity is Python's: no surrogates, no overlong forms, nothing above U+10FFFF.
    """
    lead = load8(data, at)
    if lead < 0x80:
        return lead, 1
    second = load8(data, at + 1) ^ 0x80 if at + 1 < end else 0xFF
    if second >= 0x40 or lead < 0xC2:
        return INVALID, 1
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | second, 2
    third = load8(data, at + 2) ^ 0x80 if at + 2 < end else 0xFF
    if third >= 0x40:
        return INVALID, 1
    if lead < 0xF0:
        point = (lead & 0xF) << 12 | second << 6 | third
        return (point, 3) if point >= 0x800 and point >> 11 != 0x1B else (INVALID, 1)
    fourth = load8(data, at + 3) ^ 0x80 if at + 3 < end else 0xFF
    point = (lead & 0xF) << 18 | second << 12 | third << 6 | fourth
    return (point, 4) if fourth < 0x40 and 0x10000 <= point < 0x110000 else (INVALID, 1)


@njit(nogil=True)
def encode(point: int, text: int, at: int) -> int:
    """Write a code point; returns the number of bytes."""
    if point < 0x80:
        store8(text, at, point)
        return 1
    if point < 0x800:
        store8(text, at, 0xC0 | point >> 6)
        store8(text, at + 1, 0x80 | point & 0x3F)
        return 2
    if point < 0x10000:
        store8(text, at, 0xE0 | point >> 12)
        store8(text, at + 1, 0x80 | point >> 6 & 0x3F)
        store8(text, at + 2, 0x80 | point & 0x3F)
        return 3
    store8(text, at, 0xF0 | point >> 18)
    store8(text, at + 1, 0x80 | point >> 12 & 0x3F)
    store8(text, at + 2, 0x80 | point >> 6 & 0x3F)
    store8(text, at + 3, 0x80 | point & 0x3F)
    return 4


@njit(nogil=True)
def place_of(point: int, blocks: int) -> int:
    """The place of a code point in the columns of the Unicode table (`unicode_data.UnicodeTable`)."""
    return load16(blocks, (point >> 6) * 2) << 6 | point & 63


@njit(nogil=True)
def entry_of(point: int, blocks: int, entries: int) -> int:
    """The code point's entry in the Unicode table; 0, which is no class, for INVALID."""
    return load32(entries, place_of(point, blocks) * 4) if point >= 0 else 0
