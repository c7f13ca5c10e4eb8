"""Uniforms and exact rounded noise from the ChaCha20 keystream on CUDA, in fused Triton kernels.

The kernels compute the numbers of :class:`expost.training._torch.device_keystream.DeviceStream`
from key, step and place; that class defines the layout. Words and uniforms are equal bit by bit.
The noise is made by the same operations (+, −, ×, ÷, √ in float64, which may be fused here), so the
bounds of :mod:`expost.training.exact_noise` hold, and what is decided is decided alike. Constants
are read from a tensor, because a literal would be float32.
Tests: ``tests/training/test_device_kernels.py`` (in Triton's interpreter if there is no CUDA
device).
"""

from __future__ import annotations

# Triton interprets annotations as code, so the kernels have none.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from functools import cache

import torch
import triton
import triton.language as tl

from expost.randomness import samplers

_BLOCK = 128
_CONSTANTS = (
    *(samplers.LAST, samplers.LN2_HIGH, samplers.LN2_LOW, samplers.QUARTER),
    *(samplers.LENGTH_ERROR, samplers.UNREAD),
    *(samplers.RADIUS_ERROR, samplers.CONSTANT_ERROR),
    *samplers.ARTANH,  # 10 numbers from place 8 on
    *samplers.SINE,  # 8 numbers from place 18 on
    *samplers.COSINE,  # 7 numbers from place 26 on
)


@cache
def _table(device):
    return torch.tensor(_CONSTANTS, dtype=torch.float64, device=device)


def add_noise(
    total: torch.Tensor,
    out: torch.Tensor,
    doubt: torch.Tensor,
    lattices: torch.Tensor,
    keys: torch.Tensor,
    step: torch.Tensor,
) -> None:
    """Write the noisy sums to ``out`` and what is not decided to ``doubt`` (bool)."""
    models, width = total.shape
    blocks = triton.cdiv(width, 8)
    total, lattices = total.contiguous(), lattices.contiguous()
    _add_noise[(models, triton.cdiv(blocks, _BLOCK))](
        total,
        out,
        doubt.view(torch.uint8),
        lattices,
        keys,
        step,
        _table(total.device),
        width,
        blocks,
        HALF_ROOT=samplers.HALF_ROOT,
        BLOCK=_BLOCK,
    )


def fill(
    out: torch.Tensor,
    keys: torch.Tensor,
    step: torch.Tensor,
    models: int,
    purpose: int,
    again: int,
) -> None:
    """Fill ``out`` ((steps · models) × 8 × blocks, float64) with uniforms."""
    blocks = out.shape[2]
    _fill[(out.shape[0], triton.cdiv(blocks, _BLOCK))](
        out, keys, step, models, blocks, purpose, again, BLOCK=_BLOCK
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
def _words(key, index, second, third, fourth, BLOCK: tl.constexpr):
    """One block of the keystream per place; its sixteen words."""
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
    i12 = index.to(tl.uint32)
    i13 = zero + second.to(tl.uint32)
    i14, i15 = zero + third, zero + fourth
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
    a0, a1, a2, a3 = a0 + i0, a1 + i1, a2 + i2, a3 + i3
    b0, b1, b2, b3 = b0 + i4, b1 + i5, b2 + i6, b3 + i7
    c0, c1, c2, c3 = c0 + i8, c1 + i9, c2 + i10, c3 + i11
    d0, d1, d2, d3 = d0 + i12, d1 + i13, d2 + i14, d3 + i15
    return a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3


@triton.jit
def _fill(out, keys, step, models, blocks, purpose, again, BLOCK: tl.constexpr):
    line = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3 = _words(
        keys + (line % models) * 8, column, tl.load(step) + line // models, purpose, again, BLOCK
    )
    inside = column < blocks
    first = out + line.to(tl.int64) * 8 * blocks + column
    tl.store(first, _uniform(a0, a1), mask=inside)
    tl.store(first + blocks, _uniform(a2, a3), mask=inside)
    tl.store(first + 2 * blocks, _uniform(b0, b1), mask=inside)
    tl.store(first + 3 * blocks, _uniform(b2, b3), mask=inside)
    tl.store(first + 4 * blocks, _uniform(c0, c1), mask=inside)
    tl.store(first + 5 * blocks, _uniform(c2, c3), mask=inside)
    tl.store(first + 6 * blocks, _uniform(d0, d1), mask=inside)
    tl.store(first + 7 * blocks, _uniform(d2, d3), mask=inside)


@triton.jit
def _series(table, z, COUNT: tl.constexpr):
    total = z * 0 + tl.load(table)
    for index in tl.static_range(1, COUNT):
        total = total * z + tl.load(table + index)
    return total


@triton.jit
def _pair(r_high, r_low, a_high, a_low, deviation, table, HALF_ROOT: tl.constexpr):
    """Both Gaussians of a pair, times the deviation, and the bound on their error."""
    last, one = tl.load(table), tl.full((), 1.0, dtype=tl.float64)
    half_, two = tl.full((), 0.5, dtype=tl.float64), tl.full((), 2.0, dtype=tl.float64)
    radius = (r_high.to(tl.uint64) << 32) | r_low.to(tl.uint64)
    u = ((radius >> 1) | 1).to(tl.int64).to(tl.float64) * last
    bits = u.to(tl.int64, bitcast=True)
    exponent = (bits - HALF_ROOT) >> 52
    f = (bits - (exponent << 52)).to(tl.float64, bitcast=True) - one
    s = f / (two + f)
    z = s * s
    tail = z * _series(table + 8, z, 10)
    half, e = half_ * f * f, exponent.to(tl.float64)
    inner = s * (half + tail) + e * tl.load(table + 2)
    log = e * tl.load(table + 1) - ((half - inner) - f)
    r = tl.sqrt(-two * log)
    angle = ((a_high.to(tl.uint64) << 32) | a_low.to(tl.uint64)).to(tl.int64, bitcast=True)
    quarter = (angle + (1 << 61)) >> 62
    x = (angle - (quarter << 62)).to(tl.float64) * tl.load(table + 3)
    w = x * x
    sine = x + x * w * _series(table + 18, w, 8)
    cosine = one - (half_ * w - w * w * _series(table + 26, w, 7))
    odd = (quarter & 1) != 0
    first, second = tl.where(odd, sine, cosine), tl.where(odd, cosine, sine)
    first = tl.where(((quarter + 1) & 2) != 0, -first, first)
    second = tl.where((quarter & 2) != 0, -second, second)
    rest = u - last
    unread = (tl.load(table + 4) * rest + tl.load(table + 5)) / (rest * r)
    error = deviation * (tl.load(table + 6) * r + unread) + tl.load(table + 7)
    length = deviation * r
    return length * first, length * second, error


@triton.jit
def _release(total, out, doubt, here, inside, noise, error, size, scale, deviation):
    half = tl.full((), 0.5, dtype=tl.float64)
    plain = tl.load(total + here, mask=inside, other=0.0)
    s = plain * scale
    whole = tl.floor(s + half)
    t = (s - whole) + noise
    near = tl.floor(t + half)
    decided = (half - tl.abs(t - near) > error) | (deviation == 0)
    tl.store(out + here, tl.where(deviation == 0, plain, (whole + near) * size), mask=inside)
    tl.store(doubt + here, tl.where(decided, 0, 1).to(tl.uint8), mask=inside)


@triton.jit
def _add_noise(
    total, out, doubt, lattices, keys, step, table, width, blocks,
    HALF_ROOT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3 = _words(
        keys + line * 8, column, tl.load(step), 1, 0, BLOCK
    )
    size, scale = tl.load(lattices + 4 * line + 1), tl.load(lattices + 4 * line + 2)
    deviation = tl.load(lattices + 4 * line + 3)
    x0, y0, e0 = _pair(a0, a1, c0, c1, deviation, table, HALF_ROOT)
    x1, y1, e1 = _pair(a2, a3, c2, c3, deviation, table, HALF_ROOT)
    x2, y2, e2 = _pair(b0, b1, d0, d1, deviation, table, HALF_ROOT)
    x3, y3, e3 = _pair(b2, b3, d2, d3, deviation, table, HALF_ROOT)
    start, real = line.to(tl.int64) * width, column < blocks
    p0, p1, p2, p3 = column, column + blocks, column + 2 * blocks, column + 3 * blocks
    p4, p5, p6, p7 = p0 + 4 * blocks, p1 + 4 * blocks, p2 + 4 * blocks, p3 + 4 * blocks
    _release(total, out, doubt, start + p0, real & (p0 < width), x0, e0, size, scale, deviation)
    _release(total, out, doubt, start + p1, real & (p1 < width), x1, e1, size, scale, deviation)
    _release(total, out, doubt, start + p2, real & (p2 < width), x2, e2, size, scale, deviation)
    _release(total, out, doubt, start + p3, real & (p3 < width), x3, e3, size, scale, deviation)
    _release(total, out, doubt, start + p4, real & (p4 < width), y0, e0, size, scale, deviation)
    _release(total, out, doubt, start + p5, real & (p5 < width), y1, e1, size, scale, deviation)
    _release(total, out, doubt, start + p6, real & (p6 < width), y2, e2, size, scale, deviation)
    _release(total, out, doubt, start + p7, real & (p7 < width), y3, e3, size, scale, deviation)
