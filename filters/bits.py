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


def _pointer(builder: Builder, arguments: Arguments, bits: int) -> ir.Value:
    return builder.inttoptr(builder.add(arguments[0], arguments[1]), ir.IntType(bits).as_pointer())


def _loading(bits: int, kind: Kind) -> Any:
    """`load(address, at)`: the number of so many bits from `address + at` on, the first byte in the low bits."""

    @intrinsic
    def load(_typing_context: object, address: Kind, at: Kind) -> Intrinsic:
        def codegen(_context: Context, builder: Builder, _signature: Signature, arguments: Arguments) -> ir.Value:
            return builder.zext(builder.load(_pointer(builder, arguments, bits), align=1), WORD)

        return kind(types.intp, types.intp), codegen

    return load


def _storing(bits: int, kind: Kind) -> Any:
    """`store(address, at, value)`: stores so many low bits of a value from `address + at` on, the low byte first."""

    @intrinsic
    def store(_typing_context: object, address: Kind, at: Kind, value: Kind) -> Intrinsic:
        def codegen(context: Context, builder: Builder, _signature: Signature, arguments: Arguments) -> ir.Value:
            number = builder.trunc(arguments[2], ir.IntType(bits))
            builder.store(number, _pointer(builder, arguments, bits), align=1)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, kind), codegen

    return store


def _comparing(operator: str) -> Any:
    """`compare(address, at, byte: uint8) -> uint64`: for which of 64 bytes it holds; bit 0 is the first."""

    @intrinsic
    def compare(_typing_context: object, address: Kind, at: Kind, byte: Kind) -> Intrinsic:
        def codegen(_context: Context, builder: Builder, _signature: Signature, arguments: Arguments) -> ir.Value:
            pointer = builder.bitcast(_pointer(builder, arguments, 8), BYTES_64.as_pointer())
            chunk = builder.load(pointer, align=1)
            every = on_all_lanes(builder, arguments[2], 64)
            if operator == "&":
                holds = builder.icmp_unsigned("!=", builder.and_(chunk, every), ir.Constant(BYTES_64, None))
            else:
                holds = builder.icmp_unsigned(operator, chunk, every)
            return builder.bitcast(holds, WORD)

        return types.uint64(types.intp, types.intp, types.uint8), codegen

    return compare


load8, load16, load32 = (_loading(bits, types.int64) for bits in (8, 16, 32))  # unsigned
load64 = _loading(64, types.uint64)
store8, store64 = _storing(8, types.int64), _storing(64, types.uint64)
any_bit64, equal64, below64 = map(_comparing, ("&", "==", "<"))  # bytes that have one of the bits, equal, are less


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
