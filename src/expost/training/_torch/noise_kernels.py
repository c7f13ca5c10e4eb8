"""Uniforms and Gaussians from the ChaCha20 keystream on CUDA, in one fused Triton kernel.

The kernel computes the numbers of :class:`expost.training._torch.device_keystream.DeviceStream`
from key, step and place; that class defines the layout. The words are equal bit by bit, the
uniforms are equal exactly, and the Gaussians are equal up to the rounding of log, sin and cos.
Tests: ``tests/training/test_device_kernels.py`` (in Triton's interpreter if there is no CUDA
device).
"""

from __future__ import annotations

# Triton interprets annotations as code, so the kernels have none.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
import torch
import triton
import triton.language as tl

_BLOCK = 128


def fill(
    out: torch.Tensor,
    keys: torch.Tensor,
    step: torch.Tensor,
    models: int,
    purpose: int,
    again: int,
    gaussian: bool,
) -> None:
    """Fill ``out`` ((steps · models) × 8 × blocks, float64) with numbers."""
    blocks = out.shape[2]
    _fill[(out.shape[0], triton.cdiv(blocks, _BLOCK))](
        out, keys, step, models, blocks, purpose, again, GAUSSIAN=gaussian, BLOCK=_BLOCK
    )


@triton.jit
def _rotated(value, bits: tl.constexpr):
    return (value << bits) | (value >> (32 - bits))


@triton.jit
def _quarter_round(a, b, c, d):
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _uniform(high, low):
    whole = (high.to(tl.uint64) << 21) | (low.to(tl.uint64) >> 11)
    return (whole.to(tl.int64).to(tl.float64) + 1.0) * 1.1102230246251565e-16  # 2^{−53}


@triton.jit
def _fill(
    out,
    keys,
    step,
    models,
    blocks,
    purpose,
    again,
    GAUSSIAN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    line = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    key = keys + (line % models) * 8
    zero = tl.zeros((BLOCK,), dtype=tl.uint32)
    i0, i1, i2, i3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    i4, i5 = (
        zero + tl.load(key).to(tl.uint32, bitcast=True),
        zero + tl.load(key + 1).to(tl.uint32, bitcast=True),
    )
    i6, i7 = (
        zero + tl.load(key + 2).to(tl.uint32, bitcast=True),
        zero + tl.load(key + 3).to(tl.uint32, bitcast=True),
    )
    i8, i9 = (
        zero + tl.load(key + 4).to(tl.uint32, bitcast=True),
        zero + tl.load(key + 5).to(tl.uint32, bitcast=True),
    )
    i10, i11 = (
        zero + tl.load(key + 6).to(tl.uint32, bitcast=True),
        zero + tl.load(key + 7).to(tl.uint32, bitcast=True),
    )
    i12 = place.to(tl.uint32)
    i13 = zero + (tl.load(step) + line // models).to(tl.uint32)
    i14, i15 = zero + purpose, zero + again
    a0, a1, a2, a3, b0, b1, b2, b3 = i0, i1, i2, i3, i4, i5, i6, i7
    c0, c1, c2, c3, d0, d1, d2, d3 = i8, i9, i10, i11, i12, i13, i14, i15
    for _ in range(10):
        a0, b0, c0, d0 = _quarter_round(a0, b0, c0, d0)
        a1, b1, c1, d1 = _quarter_round(a1, b1, c1, d1)
        a2, b2, c2, d2 = _quarter_round(a2, b2, c2, d2)
        a3, b3, c3, d3 = _quarter_round(a3, b3, c3, d3)
        a0, b1, c2, d3 = _quarter_round(a0, b1, c2, d3)
        a1, b2, c3, d0 = _quarter_round(a1, b2, c3, d0)
        a2, b3, c0, d1 = _quarter_round(a2, b3, c0, d1)
        a3, b0, c1, d2 = _quarter_round(a3, b0, c1, d2)
    u0, u1 = _uniform(a0 + i0, a1 + i1), _uniform(a2 + i2, a3 + i3)
    u2, u3 = _uniform(b0 + i4, b1 + i5), _uniform(b2 + i6, b3 + i7)
    u4, u5 = _uniform(c0 + i8, c1 + i9), _uniform(c2 + i10, c3 + i11)
    u6, u7 = _uniform(d0 + i12, d1 + i13), _uniform(d2 + i14, d3 + i15)
    if GAUSSIAN:
        turn = tl.full((), 6.283185307179586, dtype=tl.float64)  # a plain literal would be float32
        r0, r1 = tl.sqrt(-2.0 * tl.log(u0)), tl.sqrt(-2.0 * tl.log(u1))
        r2, r3 = tl.sqrt(-2.0 * tl.log(u2)), tl.sqrt(-2.0 * tl.log(u3))
        u0, u4 = r0 * tl.cos(turn * u4), r0 * tl.sin(turn * u4)
        u1, u5 = r1 * tl.cos(turn * u5), r1 * tl.sin(turn * u5)
        u2, u6 = r2 * tl.cos(turn * u6), r2 * tl.sin(turn * u6)
        u3, u7 = r3 * tl.cos(turn * u7), r3 * tl.sin(turn * u7)
    inside = place < blocks
    first = out + line.to(tl.int64) * 8 * blocks + place
    tl.store(first, u0, mask=inside)
    tl.store(first + blocks, u1, mask=inside)
    tl.store(first + 2 * blocks, u2, mask=inside)
    tl.store(first + 3 * blocks, u3, mask=inside)
    tl.store(first + 4 * blocks, u4, mask=inside)
    tl.store(first + 5 * blocks, u5, mask=inside)
    tl.store(first + 6 * blocks, u6, mask=inside)
    tl.store(first + 7 * blocks, u7, mask=inside)
