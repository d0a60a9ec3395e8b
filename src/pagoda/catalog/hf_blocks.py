"""The numbers of quantised matrices of Hugging Face directories, in blocks of our formats.

Each layout's bits as its writers pack them. Integers, scales and zero points go through as they are: nothing is
quantised anew. Reads no file: arrays are given.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pagoda import quant
from pagoda.backends.ops import Bytes, Floats, Ints
from pagoda.catalog.hf_quantized import BLOCK, Plan

LARGEST = 2.0**100
"""No scale is that large: products with any number stay finite."""
_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)
"""The row, of eight, that each nibble of a word is of."""


def blocks(plan: Plan, read: Callable[[str], Bytes]) -> Bytes:
    """The matrix in blocks of the plan's format.

    Args:
        read: the bytes of a part, by the end of its name.

    Raises:
        ModelFileError: a scale or zero point is none that this layout has.
    """
    return _float_blocks(plan, read) if plan.weights.layout == "fp8" else _integer_blocks(plan, read)


def unpacked(words: Ints, bits: int) -> Bytes:
    """Words [rows, columns] of 4- or 8-bit numbers, the lowest first -> [rows, columns * 32 / bits]."""
    raw = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return raw
    numbers = np.empty((len(raw), 2 * raw.shape[1]), np.uint8)
    numbers[:, 0::2] = raw & np.uint8(15)
    numbers[:, 1::2] = raw >> np.uint8(4)
    return numbers


def _words(plan: Plan, name: str, read: Callable[[str], Bytes]) -> Ints:
    return read(name).view("<i4").reshape(plan.parts[name].shape)


def _scales(plan: Plan, name: str, raw: Bytes) -> Floats:
    """In f32, in the tensor's shape."""
    entry = plan.parts[name]
    if entry.dtype == "F8_E8M0":
        scales: Floats = np.ldexp(np.float32(1), raw.astype(np.int32) - 127).astype(np.float32)
    elif entry.dtype == "BF16":
        scales = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        with np.errstate(invalid="ignore"):
            scales = raw.view({"F16": "<f2", "F32": "<f4"}[entry.dtype]).astype(np.float32)
    if not (np.abs(scales) < LARGEST).all():
        plan.fail(f"{name} holds scales that are NaN, infinite or absurd: {LARGEST:g} and more")
    return scales.reshape(entry.shape)


def _integer_blocks(plan: Plan, read: Callable[[str], Bytes]) -> Bytes:
    (n, k), bits = plan.shape, plan.weights.bits
    integers, scales, zeros = _READERS[plan.weights.layout](plan, read)
    if plan.order is not None:
        integers = integers[:, plan.order]
    middle, count = 1 << (bits - 1), k // plan.form.block
    numbers = integers.reshape(n * count, plan.form.block)
    groups = np.arange(k // BLOCK) * BLOCK // plan.group if plan.groups is None else plan.groups
    place = groups[:: plan.form.block // BLOCK]
    scales, shifts = scales[:, place].reshape(-1), (middle - zeros)[:, place].reshape(-1)
    if plan.form.name in ("q4_0", "q8_0"):
        if shifts.any():
            plan.fail(f"its zero points are not all {middle}, and quantization_config calls it symmetric")
        head = scales.astype("<f2")[:, None].view(np.uint8)
        body = numbers ^ np.uint8(128) if bits == 8 else numbers[:, :16] | numbers[:, 16:] << np.uint8(4)
        return np.concatenate([head, body], axis=1).reshape(-1)
    packer = (quant.Q4_Z if bits == 4 else quant.Q8_Z)[plan.form.block]
    return packer.pack(scales, shifts.astype(np.float32), numbers).reshape(-1)


Numbers = tuple[Bytes, Floats, Ints]
"""Unsigned integers [n, k]; scales and zero points [n, groups]."""


def _awq(plan: Plan, read: Callable[[str], Bytes]) -> Numbers:
    """Words [k, n / 8] along the outputs, in AWQ's order."""

    def rows(name: str) -> Bytes:
        """[n, inputs or groups]."""
        words = np.ascontiguousarray(_words(plan, name, read).T)
        raw = words.view(np.uint8).reshape(*words.shape, 4)
        numbers = np.empty((len(words), 8, words.shape[1]), np.uint8)
        for nibble, row in enumerate(_AWQ):
            numbers[:, row] = raw[..., nibble // 2] >> np.uint8(4 * (nibble % 2)) & np.uint8(15)
        return numbers.reshape(-1, words.shape[1])

    return rows("qweight"), _scales(plan, "scales", read("scales")).T, rows("qzeros").astype(np.int32)


def _gptq(plan: Plan, read: Callable[[str], Bytes]) -> Numbers:
    """Words [k * bits / 32, n] along the inputs; zero points [groups, n * bits / 32] along the outputs."""
    bits = plan.weights.bits
    integers = unpacked(_words(plan, "qweight", read).T, bits)
    zeros = unpacked(_words(plan, "qzeros", read), bits).T.astype(np.int32) + plan.weights.less
    return integers, _scales(plan, "scales", read("scales")).T, zeros


def _by_row(plan: Plan, read: Callable[[str], Bytes]) -> Floats:
    """Scales of compressed-tensors: one for all, or [n, groups]."""
    scales = _scales(plan, "weight_scale", read("weight_scale"))
    whole = scales.reshape(1, 1) if scales.size == 1 else scales.reshape(plan.shape[0], -1)
    return np.broadcast_to(whole, (plan.shape[0], whole.shape[1]))


def _packed(plan: Plan, read: Callable[[str], Bytes]) -> Numbers:
    """compressed-tensors' words along the inputs; zero points along the outputs."""
    (n, k), bits = plan.shape, plan.weights.bits
    if "weight_shape" in plan.parts:
        said = read("weight_shape").view("<i8" if plan.parts["weight_shape"].dtype == "I64" else "<i4")
        if said.tolist() != [n, k]:
            plan.fail(f"weight_shape says {said.tolist()}, and weight_packed holds {[n, k]}")
    integers = unpacked(_words(plan, "weight_packed", read), bits)
    scales = _by_row(plan, read)
    middle = 1 << (bits - 1)
    if "weight_zero_point" not in plan.parts:
        return integers, scales, np.full(scales.shape, middle, np.int32)
    if plan.parts["weight_zero_point"].dtype == "I8":
        signed = read("weight_zero_point").view(np.int8)
        return integers, scales, signed.reshape(n, -1).astype(np.int32) + middle
    zeros = unpacked(_words(plan, "weight_zero_point", read).T, bits).T[:n]
    return integers, scales, zeros.astype(np.int32)


def _int8(plan: Plan, read: Callable[[str], Bytes]) -> Numbers:
    """Signed bytes."""
    scales = _by_row(plan, read)
    integers = read("weight").reshape(plan.shape) ^ np.uint8(128)
    zeros = np.full(scales.shape, 128, np.int32)
    if "weight_zero_point" in plan.parts:
        found = read("weight_zero_point").view(np.int8).astype(np.int32)
        zeros += found.reshape(zeros.shape) if found.size > 1 else found
    return integers, scales, zeros


_READERS = {"awq": _awq, "gptq": _gptq, "packed": _packed, "int8": _int8}


def _float_blocks(plan: Plan, read: Callable[[str], Bytes]) -> Bytes:
    """8-bit floats, and a scale for each run of 32."""
    n, k = plan.shape
    form = quant.F8S[plan.parts["weight"].dtype]
    numbers = read("weight")
    if not form.is_number(numbers):
        plan.fail("weight holds NaN or infinite numbers")
    name = "weight_scale" if "weight_scale" in plan.parts else "weight_scale_inv"
    scales = _scales(plan, name, read(name))
    rows, columns = plan.weights.blocks or (1, k)
    if plan.weights.blocks and scales.shape == (-(-n // rows), -(-k // columns)):
        scales = scales[np.arange(n)[:, None] // rows, np.arange(k // BLOCK) * BLOCK // columns]
    else:
        scales = np.broadcast_to(scales.reshape(-1, 1), (n, k // BLOCK))
    return form.pack(np.ascontiguousarray(scales).reshape(-1), numbers.reshape(-1, BLOCK)).reshape(-1)
