# ruff: noqa: ARG001  (numba types a call by the names of the parameters; the code reads them from `arguments`)
"""The kernel behind `altalign.filters.identity.ids`: BLAKE2b-128 (RFC 7693) of many short messages, several at a time.

The messages are side by side in the lanes of vectors, as many as one of the CPU's registers holds. A lane whose message
has ended takes the next one, so no lane waits for a longer neighbour. A message is `first`, or `first`, a zero byte and
`second`.
"""

import numpy as np
import numpy.typing as npt
from llvmlite import binding, ir
from numba import njit, types

from altalign.filters.bits import address_of, copy, fill, load64
from altalign.filters.intrinsics import Arguments, Builder, Context, Intrinsic, Kind, Signature, intrinsic

# Where 16 registers hold the state, two registers per word would take a third more time.
LANES = 8 if binding.get_host_cpu_features().get("avx512f") else 4
BLOCK_BYTES = 128
_IV = (
    0x6A09E667F3BCC908,
    0xBB67AE8584CAA73B,
    0x3C6EF372FE94F82B,
    0xA54FF53A5F1D36F1,
    0x510E527FADE682D1,
    0x9B05688C2B3E6C1F,
    0x1F83D9ABFB41BD6B,
    0x5BE0CD19137E2179,
)  # RFC 7693, section 2.6
_SIGMA = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    (14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3),
    (11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4),
    (7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8),
    (9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13),
    (2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9),
    (12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11),
    (13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10),
    (6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5),
    (10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0),
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    (14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3),
)  # RFC 7693, section 2.7; the last two rounds repeat the first two
# section 3.2
_MIXED = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)
_START = np.array([_IV[0] ^ 0x01010010, *_IV[1:]], np.uint64)  # fan-out 1, depth 1, no key, digest of 16 bytes
_ALL = np.uint64(2**64 - 1)
_VECTOR = ir.VectorType(ir.IntType(64), LANES)


def _vector(value: int) -> ir.Constant:
    return ir.Constant(_VECTOR, [value] * LANES)


def _mix(builder: Builder, v: list[ir.Value], at: tuple[int, int, int, int], x: ir.Value, y: ir.Value) -> None:
    a, b, c, d = at
    for word, turn_d, turn_b in ((x, 32, 24), (y, 16, 63)):
        v[a] = builder.add(builder.add(v[a], v[b]), word)
        v[d] = _turned(builder, builder.xor(v[d], v[a]), turn_d)
        v[c] = builder.add(v[c], v[d])
        v[b] = _turned(builder, builder.xor(v[b], v[c]), turn_b)


def _turned(builder: Builder, x: ir.Value, bits: int) -> ir.Value:
    return builder.or_(builder.lshr(x, _vector(bits)), builder.shl(x, _vector(64 - bits)))


@intrinsic
def _compress(_typing_context: object, states: Kind, words: Kind, sizes: Kind, lasts: Kind) -> Intrinsic:
    """One block of every lane (RFC 7693, section 3.2), over addresses of uint64 arrays.

    Args: states[8, LANES], changed; words[16, LANES]; sizes[LANES], bytes so far; lasts[LANES], all ones where it is
    the last block.
    """

    def codegen(context: Context, builder: Builder, _signature: Signature, arguments: Arguments) -> ir.Value:
        states, words, sizes, lasts = (builder.inttoptr(address, _VECTOR.as_pointer()) for address in arguments)

        def row(array: ir.Value, k: int) -> ir.Value:
            return builder.gep(array, [ir.Constant(ir.IntType(64), k)])

        state = [builder.load(row(states, k), align=8) for k in range(8)]
        m = [builder.load(row(words, k), align=8) for k in range(16)]
        v = [*state, *(_vector(word) for word in _IV)]
        v[12] = builder.xor(v[12], builder.load(sizes, align=8))
        v[14] = builder.xor(v[14], builder.load(lasts, align=8))
        for sigma in _SIGMA:
            for k, at in enumerate(_MIXED):
                _mix(builder, v, at, m[sigma[2 * k]], m[sigma[2 * k + 1]])
        for k in range(8):
            builder.store(builder.xor(state[k], builder.xor(v[k], v[k + 8])), row(states, k), align=8)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4), codegen


@njit(nogil=True)
def _fill_block(block: int, skip: int, first: int, first_size: int, second: int, second_size: int) -> None:
    # Fills the block with the 128 bytes of a message from `skip` on, and with zeros after its end; the zero byte
    # between the two parts is one of them.
    fill(block, BLOCK_BYTES, np.uint8(0))
    size = min(BLOCK_BYTES, first_size - skip)
    if size > 0:
        copy(block, first + skip, size)
    begin = first_size + 1 - skip  # of the second part, in this block
    ahead = max(0, -begin)
    begin = max(0, begin)
    size = min(BLOCK_BYTES - begin, second_size - ahead)
    if size > 0:
        copy(block + begin, second + ahead, size)


@njit(nogil=True, cache=True)
def hash_rows(
    first: npt.NDArray[np.uint8],
    first_offsets: npt.NDArray[np.int64],
    second: npt.NDArray[np.uint8],
    second_offsets: npt.NDArray[np.int64],
    digests: npt.NDArray[np.uint64],
) -> None:
    """Fill `digests` (uint64[n, 2], little-endian) with those of n messages.

    Parts are bytes (uint8) between offsets (int64[n + 1]). Where `second_offsets` is empty, a message is its first part
    alone.
    """
    first_at, second_at, is_joined, started = address_of(first), address_of(second), second_offsets.size > 0, 0
    states, words = np.empty((8, LANES), np.uint64), np.empty((16, LANES), np.uint64)
    block = np.empty(BLOCK_BYTES, np.uint8)
    sizes, lasts = np.zeros(LANES, np.uint64), np.zeros(LANES, np.uint64)
    # The message in each lane, or -1, and how many of its bytes are done.
    rows, skips = np.full(LANES, -1), np.zeros(LANES, np.int64)
    while True:
        for lane in range(LANES):
            if rows[lane] < 0:
                if started == len(digests):
                    continue  # the lane computes on, and its result is ignored
                rows[lane], skips[lane] = started, 0
                for k in range(8):  # a slice would compile for seconds
                    states[k, lane] = _START[k]
                started += 1
            row = rows[lane]
            begin, size = first_offsets[row], int(first_offsets[row + 1] - first_offsets[row])
            second_begin, second_size = 0, -1
            if is_joined:
                second_begin, second_size = second_offsets[row], int(second_offsets[row + 1] - second_offsets[row])
            _fill_block(address_of(block), skips[lane], first_at + begin, size, second_at + second_begin, second_size)
            for k in range(16):
                words[k, lane] = load64(address_of(block), 8 * k)
            skips[lane] += BLOCK_BYTES
            size += 1 + second_size
            sizes[lane], lasts[lane] = min(size, skips[lane]), _ALL if skips[lane] >= size else np.uint64(0)
        if rows.max() < 0:
            return
        _compress(address_of(states), address_of(words), address_of(sizes), address_of(lasts))
        for lane in range(LANES):
            if rows[lane] >= 0 and lasts[lane]:
                digests[rows[lane], 0], digests[rows[lane], 1] = states[0, lane], states[1, lane]
                rows[lane] = -1
