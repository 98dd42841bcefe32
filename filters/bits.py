"""Loads of 8 and 64 bytes for kernels, where NumPy knows only one: unaligned, little-endian, unchecked.

The caller sees to it that the bytes are there (kernels copy what they read to scratch memory with room behind it).
Numba's cache does not see that a kernel's helpers changed in another file: after an edit here, remove the `*.nbi` files.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

PADDING = 64  # bytes that may be read behind the last one
BYTES_64 = ir.VectorType(ir.IntType(8), 64)
WORD = ir.IntType(64)

LOW_BYTES = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)  # mask of the first n of 8 bytes


def _load(context: Any, builder: Any, array_type: Any, array: Any, index: Any, kind: ir.Type) -> ir.Value:
    data = context.make_array(array_type)(context, builder, array).data
    pointer = builder.bitcast(builder.gep(data, [index]), kind.as_pointer())
    return builder.load(pointer, align=1)


def _splat(byte: Any, builder: Any) -> ir.Value:
    first = builder.insert_element(ir.Constant(BYTES_64, ir.Undefined), byte, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, ir.Constant(BYTES_64, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), 64), None))


@intrinsic
def load64(_typing_context: Any, array: Any, index: Any) -> tuple[Any, Any]:
    """`load64(array: uint8[], index) -> uint64`: 8 bytes, the first in the low bits."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> ir.Value:
        return _load(context, builder, signature.args[0], arguments[0], arguments[1], WORD)

    return types.uint64(array, types.intp), codegen


@intrinsic
def any_bit64(_typing_context: Any, array: Any, index: Any, bits: Any) -> tuple[Any, Any]:
    """`any_bit64(array: uint8[], index, bits: uint8) -> uint64`: of 64 bytes, which have one of these bits; the first in bit 0."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> ir.Value:
        found = builder.and_(_load(context, builder, signature.args[0], arguments[0], arguments[1], BYTES_64), _splat(arguments[2], builder))
        return builder.bitcast(builder.icmp_unsigned("!=", found, ir.Constant(BYTES_64, None)), WORD)

    return types.uint64(array, types.intp, types.uint8), codegen


@intrinsic
def equal64(_typing_context: Any, array: Any, index: Any, byte: Any) -> tuple[Any, Any]:
    """`equal64(array: uint8[], index, byte: uint8) -> uint64`: of 64 bytes, which are this one; the first in bit 0."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> ir.Value:
        found = _load(context, builder, signature.args[0], arguments[0], arguments[1], BYTES_64)
        return builder.bitcast(builder.icmp_unsigned("==", found, _splat(arguments[2], builder)), WORD)

    return types.uint64(array, types.intp, types.uint8), codegen


@intrinsic
def below64(_typing_context: Any, array: Any, index: Any, byte: Any) -> tuple[Any, Any]:
    """`below64(array: uint8[], index, byte: uint8) -> uint64`: of 64 bytes, which are less than this one; the first in bit 0."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> ir.Value:
        found = _load(context, builder, signature.args[0], arguments[0], arguments[1], BYTES_64)
        return builder.bitcast(builder.icmp_unsigned("<", found, _splat(arguments[2], builder)), WORD)

    return types.uint64(array, types.intp, types.uint8), codegen


@intrinsic
def first_bit(_typing_context: Any, bits: Any) -> tuple[Any, Any]:
    """`first_bit(bits: uint64) -> intp`: number of zero bits below the lowest one; 64 where there is none."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> ir.Value:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.intp(types.uint64), codegen
