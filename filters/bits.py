"""Memory for kernels: loads and stores at an address, unaligned, little-endian and unchecked.

Numba counts references at every call that passes an array, which costs more than most of our kernels do. So a kernel
takes the addresses of its arrays once and passes those to its helpers. The caller makes sure that the bytes are there
and stay alive (kernels copy what they read to scratch memory with PADDING behind it). Numba's cache does not notice
that a helper in another file changed: after an edit here or in utf8.py, remove the `*.nbi` files.
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
        if operator == "&":
            holds = builder.icmp_unsigned("!=", builder.and_(chunk, every), ir.Constant(BYTES_64, None))
        else:
            holds = builder.icmp_unsigned(operator, chunk, every)
        return builder.bitcast(holds, WORD)

    return _instruction(types.uint64(types.intp, types.intp, types.uint8), write)


load8, load16, load32 = (_loading(bits, types.int64) for bits in (8, 16, 32))  # unsigned
load64 = _loading(64, types.uint64)
store8, store64 = _storing(8, types.int64), _storing(64, types.uint64)
any_bit64, equal64, below64 = map(_comparing, ("&", "==", "<"))  # bytes that have one of the bits, equal, are less

# `copy(to, source, size)`: from one address to another, which must not overlap; `fill(to, size, byte: uint8)`.
copy = _instruction(
    types.void(types.intp, types.intp, types.intp),
    lambda builder, to, source, size: cgutils.raw_memcpy(
        builder, builder.inttoptr(to, BYTE.as_pointer()), builder.inttoptr(source, BYTE.as_pointer()), size, 1
    ),
)
fill = _instruction(
    types.void(types.intp, types.intp, types.uint8),
    lambda builder, to, size, byte: cgutils.memset(builder, builder.inttoptr(to, BYTE.as_pointer()), size, byte),
)
# `first_bit(bits: uint64)`: the place of the lowest bit that is set, 64 where none is; `count_bits(bits: uint64)`.
first_bit = _instruction(
    types.intp(types.uint64), lambda builder, bits: builder.cttz(bits, ir.Constant(ir.IntType(1), 0))
)
count_bits = _instruction(types.intp(types.uint64), lambda builder, bits: builder.ctpop(bits))
# `from_half(bits: uint16) -> float32`: of a float of 16 bits, which Numba does not have.
from_half = _instruction(
    types.float32(types.uint16),
    lambda builder, bits: builder.fpext(builder.bitcast(bits, ir.HalfType()), ir.FloatType()),
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
