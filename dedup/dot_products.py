# ruff: noqa: ARG001  (numba types a call by the names of the parameters; the code reads them from `arguments`)
"""Dot products of int16 vectors, exact in 32 bits: four vectors at a time against 32 packed ones.

Every CPU of today multiplies and adds neighbouring columns in one instruction, for twice as many columns as with
floats. Sums of integers do not depend on their order, so every CPU gives the same result.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from altalign.filters.bits import Arguments, Builder, Context, Intrinsic, Kind, Signature, intrinsic, on_all_lanes

NORM_AT_MOST = 46_340  # the product of two such norms, and so any partial sum of a dot product, fits in 32 bits
STRIP = 16  # vectors whose columns lie side by side
ROWS, STRIPS = 4, 2  # a tile has as many sums as the registers of AVX2 hold, which is enough for AVX-512
PER_ROW = STRIPS * STRIP
TILE = ROWS * PER_ROW

_SMALLEST = np.int32(-(2**31))
_ROWS_AT_A_TIME = 256  # their columns stay in the CPU's second cache

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_SUMS = ir.VectorType(_I32, STRIP)
_COLUMNS = ir.VectorType(_I16, 2 * STRIP)


def squared_norms(vectors: np.ndarray) -> np.ndarray:
    """The squared norm of each vector of int16[n, d], int64[n]; ValueError for a norm above NORM_AT_MOST."""
    if vectors.dtype != np.int16 or vectors.ndim != 2:
        raise ValueError(f"vectors must be int16 of two dimensions, not {vectors.dtype} of {vectors.ndim}")
    norms = np.zeros(len(vectors), np.int64)
    _square(np.ascontiguousarray(vectors), norms)
    if len(norms) and norms.max() > NORM_AT_MOST**2:
        raise ValueError(f"a norm of {norms.max() ** 0.5:,.0f}; at most {NORM_AT_MOST:,} keeps dot products in 32 bits")
    return norms


def padded(vectors: np.ndarray) -> np.ndarray:
    """The first side of a tile: int16[n, d], padded with zeros to a multiple of ROWS and an even number of columns."""
    rows, columns = vectors.shape
    made = np.zeros((rows + -rows % ROWS, columns + columns % 2), np.int16)
    made[:rows, :columns] = vectors
    return made


def packed(vectors: np.ndarray) -> np.ndarray:
    """The second side of a tile: int16[n, d] as int16[strips, columns / 2, STRIP, 2], with an even number of strips."""
    rows, columns = vectors.shape
    strips = -(-rows // (STRIP * STRIPS)) * STRIPS
    made = np.zeros((strips * STRIP, columns + columns % 2), np.int16)
    made[:rows, :columns] = vectors
    return np.ascontiguousarray(made.reshape(strips, STRIP, made.shape[1] // 2, 2).transpose(0, 2, 1, 3))


def largest(vectors: np.ndarray, others: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """For each vector (int16[n, d]), the k others (int16[m, d]) with the largest dot products; the first ones of ties.

    Returns their places, int32[n, k], the largest dot product first; and the dot products, int32[n, k].
    """
    if vectors.shape[1:] != others.shape[1:] or not 1 <= k <= len(others):
        raise ValueError(f"vectors of shapes {vectors.shape} and {others.shape} have no {k} largest products")
    squared_norms(vectors)
    squared_norms(others)
    strips = packed(others)
    places, products = np.zeros((len(vectors), k), np.int32), np.empty((len(vectors), k), np.int32)
    for begin in range(0, len(vectors), _ROWS_AT_A_TIME):
        end = min(len(vectors), begin + _ROWS_AT_A_TIME)
        _largest(padded(vectors[begin:end]), strips, len(others), places[begin:end], products[begin:end])
    return places, products


# Kernels --------------------------------------------------------------------------------------------------------------


def _add_products(builder: Builder, sums: ir.Value, left: ir.Value, right: ir.Value) -> ir.Value:
    """`sums` plus the products of neighbouring columns; LLVM makes it vpdpwssd, or vpmaddwd and vpaddd, or the like."""
    wide = ir.VectorType(_I32, 2 * STRIP)
    products = builder.mul(builder.sext(left, wide), builder.sext(right, wide))
    nothing = ir.Constant(wide, ir.Undefined)
    even, odd = (ir.Constant(ir.VectorType(_I32, STRIP), [2 * i + first for i in range(STRIP)]) for first in (0, 1))
    left, right = (builder.shuffle_vector(products, nothing, half) for half in (even, odd))
    return builder.add(sums, builder.add(left, right))


def _multiply_tile(context: Context, builder: Builder, signature: Signature, arguments: Arguments) -> ir.Value:
    data = [context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 2, 4)]
    rows, strips, sums = (
        builder.bitcast(pointer, kind.as_pointer()) for pointer, kind in zip(data, (_I32, _COLUMNS, _SUMS), strict=True)
    )
    row, strip, pairs = arguments[1], arguments[3], arguments[5]
    tile = [[cgutils.alloca_once_value(builder, ir.Constant(_SUMS, None)) for _ in range(STRIPS)] for _ in range(ROWS)]
    for sum_of in (one for line in tile for one in line):
        builder.store(ir.Constant(_SUMS, None), sum_of)  # the slot belongs to the function, which may loop around this
    with cgutils.for_range(builder, pairs) as loop:

        def pair_of(array: ir.Value, first: ir.Value, number: int) -> ir.Value:
            at = builder.add(builder.mul(builder.add(first, _I64(number)), pairs), loop.index)
            return builder.load(builder.gep(array, [at]), align=2)

        columns = [pair_of(strips, strip, s) for s in range(STRIPS)]
        for r, line in enumerate(tile):
            # two columns of one vector, repeated for each vector of a strip
            every = builder.bitcast(on_all_lanes(builder, pair_of(rows, row, r), STRIP), _COLUMNS)
            for s, sum_of in enumerate(line):
                builder.store(_add_products(builder, builder.load(sum_of), columns[s], every), sum_of)
    totals = [builder.load(one) for line in tile for one in line]
    for i, total in enumerate(totals):
        builder.store(total, builder.gep(sums, [_I64(i)]), align=4)
    return _most(builder, totals)


def _most(builder: Builder, vectors: Sequence[ir.Value]) -> ir.Value:
    """The largest of all lanes. LLVM does not always make this of a plain loop."""
    most = reduce(lambda a, b: builder.select(builder.icmp_signed(">", a, b), a, b), vectors)
    kind, name = ir.FunctionType(_I32, [_SUMS]), f"llvm.vector.reduce.smax.v{STRIP}i32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [most])


@intrinsic
def multiply_tile(
    _context: object, rows: Kind, row: Kind, strips: Kind, strip: Kind, sums: Kind, pairs: Kind
) -> Intrinsic:
    """`multiply_tile(rows, row, strips, strip, sums, pairs) -> int32`: the largest of TILE dot products.

    These are of ROWS vectors, from `row` on, with those of STRIPS strips, from `strip` on. They fill `sums`
    (int32[TILE]) row by row. `rows` comes from `padded`, `strips` from `packed`; `pairs` is half their columns.
    """
    return types.int32(rows, types.int64, strips, types.int64, sums, types.int64), _multiply_tile


def _most_of_row(context: Context, builder: Builder, signature: Signature, arguments: Arguments) -> ir.Value:
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    sums, first = builder.bitcast(data, _SUMS.as_pointer()), builder.mul(arguments[1], _I64(STRIPS))
    places = [builder.gep(sums, [builder.add(first, _I64(s))]) for s in range(STRIPS)]
    return _most(builder, [builder.load(place, align=4) for place in places])


@intrinsic
def most_of_row(_typing_context: object, sums: Kind, r: Kind) -> Intrinsic:
    """`most_of_row(sums, r) -> int32`: the largest of row r of a tile's sums."""
    return types.int32(sums, types.int64), _most_of_row


@njit(nogil=True, cache=True)
def _square(vectors: np.ndarray, norms: np.ndarray) -> None:
    for i in range(len(vectors)):
        total = np.int64(0)
        for value in vectors[i]:
            total += np.int64(value) * np.int64(value)
        norms[i] = total


@njit(nogil=True, cache=True)
def _largest(rows: np.ndarray, strips: np.ndarray, count: int, places: np.ndarray, products: np.ndarray) -> None:
    sums, (n, k) = np.empty(TILE, np.int32), places.shape
    products[:] = _SMALLEST
    for strip in range(0, len(strips), STRIPS):
        for row in range(0, len(rows), ROWS):
            multiply_tile(rows, row, strips, strip, sums, strips.shape[1])
            for r in range(min(ROWS, n - row)):
                if most_of_row(sums, r) > products[row + r, k - 1]:
                    _keep_largest(
                        sums[r * PER_ROW : (r + 1) * PER_ROW], strip * STRIP, count, places[row + r], products[row + r]
                    )


@njit(nogil=True, cache=True)
def _keep_largest(of_row: np.ndarray, first: int, count: int, places: np.ndarray, products: np.ndarray) -> None:
    k = len(places)
    for i in range(min(len(of_row), count - first)):
        if of_row[i] > products[k - 1]:
            place = k - 1
            while place > 0 and products[place - 1] < of_row[i]:
                places[place], products[place] = places[place - 1], products[place - 1]
                place -= 1
            places[place], products[place] = first + i, of_row[i]
