# ruff: noqa: ARG001  (numba types a call by the names of the parameters; the code reads them from `arguments`)
"""Memory for kernels: loads and stores at an address, unaligned, little-endian and unchecked.

Numba counts references at every call that passes an array, which costs more than most of our kernels do. So a kernel
takes the addresses of its arrays once and passes those to its helpers. The caller makes sure that the bytes are there
and stay alive (kernels copy what they read to scratch memory with PADDING behind it). Numba's cache does not notice
that a helper in another file changed: after an edit here or in utf8.py, remove the `*.nbi` files.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from llvmlite import ir
from numba import extending, njit, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing.templates import Signature

# Types of what numba's intrinsics are given and give back, which write LLVM's code themselves.
Kind: TypeAlias = types.Type  # of an operand, as Numba infers it
Context: TypeAlias = BaseContext
Builder: TypeAlias = Any  # of LLVM's instructions; llvmlite makes its methods by decorators without types
Arguments: TypeAlias = Sequence[ir.Value]
Codegen: TypeAlias = Callable[[Context, Builder, Signature, Arguments], ir.Value]
Intrinsic: TypeAlias = tuple[Signature, Codegen]

# what it makes is called with other parameters than it is defined with, and by kernels alone
intrinsic = cast("Callable[[Callable[..., Intrinsic]], Any]", extending.intrinsic)

PADDING = 64  # bytes that may be read behind the last one
BYTE, WORD, BYTES_64 = ir.IntType(8), ir.IntType(64), ir.VectorType(ir.IntType(8), 64)
UNDEFINED, ZEROS = ir.Constant(BYTES_64, ir.Undefined), ir.Constant(BYTES_64, None)
FIRST_LANE = ir.Constant(ir.VectorType(ir.IntType(32), 64), None)

ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
LOW_BYTES = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)  # mask of the first n of 8 bytes


def _pointer(builder: Builder, arguments: Arguments, kind: ir.Type) -> ir.Value:
    return builder.inttoptr(builder.add(arguments[0], arguments[1]), kind.as_pointer())


def _load_wide(builder: Builder, arguments: Arguments, kind: ir.Type) -> ir.Value:
    return builder.zext(builder.load(_pointer(builder, arguments, kind), align=1), WORD)


def _compare(builder: Builder, arguments: Arguments, operator: str) -> ir.Value:
    chunk = builder.load(_pointer(builder, arguments, BYTES_64), align=1)
    lane = builder.insert_element(UNDEFINED, arguments[2], ir.Constant(ir.IntType(32), 0))
    byte = builder.shuffle_vector(lane, UNDEFINED, FIRST_LANE)
    if operator == "&":
        chunk, byte, operator = builder.and_(chunk, byte), ZEROS, "!="
    return builder.bitcast(builder.icmp_unsigned(operator, chunk, byte), WORD)


@intrinsic
def address_of(_typing_context: object, array: Kind) -> Intrinsic:
    """`address_of(array) -> intp`: the address of its first item. The array must outlive every use of the address."""

    def codegen(context: Context, builder: Builder, signature: Signature, arguments: Arguments) -> ir.Value:
        return builder.ptrtoint(context.make_array(signature.args[0])(context, builder, arguments[0]).data, WORD)

    return types.intp(array), codegen


@intrinsic
def load8(_typing_context: object, address: Kind, at: Kind) -> Intrinsic:
    """`load8(address, at) -> int64`: the byte at `address + at`."""
    return types.int64(types.intp, types.intp), lambda _context, builder, _signature, arguments: _load_wide(
        builder, arguments, BYTE
    )


@intrinsic
def load16(_typing_context: object, address: Kind, at: Kind) -> Intrinsic:
    """`load16(address, at) -> int64`: the two bytes from `address + at` on, unsigned."""
    return types.int64(types.intp, types.intp), lambda _context, builder, _signature, arguments: _load_wide(
        builder, arguments, ir.IntType(16)
    )


@intrinsic
def load32(_typing_context: object, address: Kind, at: Kind) -> Intrinsic:
    """`load32(address, at) -> int64`: the four bytes from `address + at` on, unsigned."""
    return types.int64(types.intp, types.intp), lambda _context, builder, _signature, arguments: _load_wide(
        builder, arguments, ir.IntType(32)
    )


@intrinsic
def load64(_typing_context: object, address: Kind, at: Kind) -> Intrinsic:
    """`load64(address, at) -> uint64`: the eight bytes from `address + at` on, the first in the low bits."""
    return types.uint64(types.intp, types.intp), lambda _context, builder, _signature, arguments: builder.load(
        _pointer(builder, arguments, WORD), align=1
    )


@intrinsic
def load_index(_typing_context: object, address: Kind, k: Kind) -> Intrinsic:
    """`load_index(address, k) -> int64`: item k of an array of 8-byte integers."""

    def codegen(_context: object, builder: Builder, _signature: Signature, arguments: Arguments) -> ir.Value:
        offset = builder.mul(arguments[1], ir.Constant(WORD, 8))
        return builder.load(_pointer(builder, (arguments[0], offset), WORD), align=1)

    return types.int64(types.intp, types.intp), codegen


@intrinsic
def store8(_typing_context: object, address: Kind, at: Kind, value: Kind) -> Intrinsic:
    """`store8(address, at, value: int64)`: stores the low byte of `value` at `address + at`."""

    def codegen(context: Context, builder: Builder, _signature: Signature, arguments: Arguments) -> ir.Value:
        builder.store(builder.trunc(arguments[2], BYTE), _pointer(builder, arguments, BYTE))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.int64), codegen


@intrinsic
def store64(_typing_context: object, address: Kind, at: Kind, value: Kind) -> Intrinsic:
    """`store64(address, at, value: uint64)`: stores 8 bytes at `address + at`, the low bits first."""

    def codegen(context: Context, builder: Builder, _signature: Signature, arguments: Arguments) -> ir.Value:
        builder.store(arguments[2], _pointer(builder, arguments, WORD), align=1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.uint64), codegen


@intrinsic
def copy(_typing_context: object, to: Kind, source: Kind, size: Kind) -> Intrinsic:
    """`copy(to, source, size)`: copies bytes from one address to another; the two must not overlap."""

    def codegen(context: Context, builder: Builder, _signature: Signature, arguments: Arguments) -> ir.Value:
        to, source = (builder.inttoptr(address, BYTE.as_pointer()) for address in arguments[:2])
        cgutils.raw_memcpy(builder, to, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), codegen


@intrinsic
def fill(_typing_context: object, to: Kind, size: Kind, byte: Kind) -> Intrinsic:
    """`fill(to, size, byte: uint8)`: stores the same byte `size` times."""

    def codegen(context: Context, builder: Builder, _signature: Signature, arguments: Arguments) -> ir.Value:
        cgutils.memset(builder, builder.inttoptr(arguments[0], BYTE.as_pointer()), arguments[1], arguments[2])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.uint8), codegen


@intrinsic
def any_bit64(_typing_context: object, address: Kind, at: Kind, bits: Kind) -> Intrinsic:
    """`any_bit64(address, at, bits: uint8) -> uint64`: which of 64 bytes have one of these bits; bit 0 is the first."""
    return types.uint64(types.intp, types.intp, types.uint8), lambda _context, builder, _signature, arguments: _compare(
        builder, arguments, "&"
    )


@intrinsic
def equal64(_typing_context: object, address: Kind, at: Kind, byte: Kind) -> Intrinsic:
    """`equal64(address, at, byte: uint8) -> uint64`: which of 64 bytes equal this one; bit 0 is the first."""
    return types.uint64(types.intp, types.intp, types.uint8), lambda _context, builder, _signature, arguments: _compare(
        builder, arguments, "=="
    )


@intrinsic
def below64(_typing_context: object, address: Kind, at: Kind, byte: Kind) -> Intrinsic:
    """`below64(address, at, byte: uint8) -> uint64`: which of 64 bytes are less than this one; bit 0 is the first."""
    return types.uint64(types.intp, types.intp, types.uint8), lambda _context, builder, _signature, arguments: _compare(
        builder, arguments, "<"
    )


@njit(nogil=True)
def first64(count: int) -> np.uint64:
    """Which of 64 bytes are among the first `count` (0 or more); bit 0 is the first."""
    return ALL if count >= 64 else ~(ALL << np.uint64(count))


@njit(nogil=True)
def between64(address: int, at: int, least: np.uint8, end: np.uint8) -> np.uint64:
    """Which of 64 bytes are at least `least` and less than `end`; bit 0 is the first."""
    return below64(address, at, end) & ~below64(address, at, least)


@intrinsic
def first_bit(_typing_context: object, bits: Kind) -> Intrinsic:
    """`first_bit(bits: uint64) -> intp`: the place of the lowest bit that is set; 64 where none is."""
    return types.intp(types.uint64), lambda _context, builder, _signature, arguments: builder.cttz(
        arguments[0], ir.Constant(ir.IntType(1), 0)
    )


@intrinsic
def count_bits(_typing_context: object, bits: Kind) -> Intrinsic:
    """`count_bits(bits: uint64) -> intp`: the number of bits that are set."""
    return types.intp(types.uint64), lambda _context, builder, _signature, arguments: builder.ctpop(arguments[0])


@intrinsic
def bit_length(_typing_context: object, bits: Kind) -> Intrinsic:
    """`bit_length(bits: uint64) -> intp`: the place after the highest bit that is set; 0 where none is."""

    def codegen(_context: object, builder: Builder, _signature: Signature, arguments: Arguments) -> ir.Value:
        return builder.sub(ir.Constant(WORD, 64), builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0)))

    return types.intp(types.uint64), codegen
