"""What the block formats share: half-precision scales, nibbles, and the quantisers' rounding.

ggml stores a row as blocks; a block is a few f16 scales followed by packed integers, all little-endian. Number i of a
nibble block is the low half of byte i for i < 16 and the high half of byte i - 16 from there on.
"""

from __future__ import annotations

import numpy as np

from pagoda.backends.ops import Bytes, Floats

UNEVEN = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.int8)
"""What the nibbles of the IQ4 formats stand for: denser near 0, where most weights are."""


def halves(raw: Bytes) -> Floats:
    """Little-endian f16 to f32, exactly: [blocks, 2 * n] bytes -> [blocks, n]."""
    with np.errstate(invalid="ignore"):  # a signalling NaN in a damaged file is no reason to warn
        return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def singles(raw: Bytes) -> Floats:
    """Little-endian f32: [blocks, 4 * n] bytes -> [blocks, n]."""
    return np.ascontiguousarray(raw).view("<f4").astype(np.float32)


def half_bytes(numbers: Floats) -> Bytes:
    """The inverse, rounding to nearest even: [blocks, n] -> [blocks, 2 * n] bytes."""
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers.astype("<f2").view(np.uint8)


def nibbles(raw: Bytes) -> Bytes:
    """[blocks, n] bytes -> [blocks, 2 * n] integers 0 to 15, low halves first."""
    return np.concatenate([raw & np.uint8(15), raw >> np.uint8(4)], axis=-1)


def nibble_bytes(integers: Bytes) -> Bytes:
    """The inverse: [blocks, 2 * n] integers 0 to 15 -> [blocks, n] bytes."""
    low, high = np.split(integers, 2, axis=-1)
    packed: Bytes = low | (high << np.uint8(4))
    return packed


def bit_pairs(raw: Bytes) -> Bytes:
    """[blocks, 64] bytes of 2-bit integers -> [blocks, 256]: each half of a block by itself, the lowest pairs first."""
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    pairs: Bytes = (raw.reshape(-1, 2, 1, 32) >> shifts & np.uint8(3)).reshape(-1, 256)
    return pairs


def fifth_bits(raw: Bytes) -> Bytes:
    """[blocks, 4] bytes of 32 bits, lowest first -> [blocks, 32] integers, 0 or 16."""
    return np.unpackbits(raw, axis=-1, bitorder="little") << np.uint8(4)


def fifth_bit_bytes(integers: Bytes) -> Bytes:
    """The inverse: of [blocks, 32] integers under 32 the upper bits, as [blocks, 4] bytes."""
    return np.packbits(integers >> np.uint8(4), axis=-1, bitorder="little")


def inverse(scale: Floats) -> Floats:
    """1 / scale, as ggml's quantisers divide, and 0 where that has no finite value: such a scale is 0 in f16 anyway."""
    with np.errstate(divide="ignore", over="ignore"):
        reciprocal = np.float32(1) / scale
    return np.where(np.isfinite(reciprocal), reciprocal, np.float32(0))


def finite(floats: Floats) -> Floats:
    """Refuse NaN and infinities, for which no block format has a place.

    Raises:
        ValueError: there is one.
    """
    if not np.isfinite(floats).all():
        raise ValueError("cannot quantise NaN or infinite numbers")
    return floats


def six_bit_pairs(raw: Bytes) -> tuple[Bytes, Bytes]:
    """The eight scales and eight minima of a 256-number block, 6 bits each: [blocks, 12] -> twice [blocks, 8].

    The first four of each are the low 6 bits of bytes 0 to 3 and 4 to 7; the last four have their low nibbles in bytes
    8 to 11 (scales low, minima high) and their upper 2 bits on top of the first four.
    """
    first, second, third = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    return scales, minima


def six_bit_bytes(scales: Bytes, minima: Bytes) -> Bytes:
    """The inverse: twice [blocks, 8] integers under 64 -> [blocks, 12] bytes."""
    first, second = (x[:, :4] | (x[:, 4:] >> np.uint8(4) << np.uint8(6)) for x in (scales, minima))
    third = (scales[:, 4:] & np.uint8(15)) | ((minima[:, 4:] & np.uint8(15)) << np.uint8(4))
    return np.concatenate([first, second, third], axis=1)
