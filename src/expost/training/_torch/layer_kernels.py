"""Patches, pooling, norms and weighted sums on CUDA: Triton kernels that read each number once.

Images have the channels first, and one program computes a part of one image. Pooling includes a
preceding ReLU: max(relu(x)) = relu(max(x)) holds for values and slopes, so a window whose largest
value is not positive has slope 0. Sums over windows are gathered and never added atomically, so
results are reproducible. The same functions in plain torch are in
:mod:`expost.training._torch.layer_chain`.
Tests: ``tests/training/test_device_kernels.py`` (in Triton's interpreter if there is no CUDA
device).
"""

from __future__ import annotations

from collections.abc import Sequence

# Triton interprets annotations as code, so the kernels have none.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
import torch
import triton
import triton.language as tl

_BLOCK = 1024
_ROWS, _COLUMNS = 16, 128

Shape = Sequence[int]


def gather_patches(x: torch.Tensor, kernel: Shape, stride: Shape, padding: Shape) -> torch.Tensor:
    """Gather the patches of images.

    The shape (images, channels, height, width) becomes (images, terms of a patch, positions).
    """
    images, channels, height, width = x.shape
    high = (height + 2 * padding[0] - kernel[0]) // stride[0] + 1
    wide = (width + 2 * padding[1] - kernel[1]) // stride[1] + 1
    terms, positions = channels * kernel[0] * kernel[1], high * wide
    out = torch.empty(images, terms, positions, dtype=x.dtype, device=x.device)
    _gather[_grid(images, terms * positions)](
        x,
        out,
        height,
        width,
        wide,
        *kernel,
        *stride,
        *padding,
        positions,
        terms * positions,
        x[0].numel(),
        BLOCK=_BLOCK,
    )
    return out


def pool(
    x: torch.Tensor, kernel: Shape, stride: Shape, rectify: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest value of each window and its place in the window.

    The place is a code; it is −1 where the ReLU returns 0.
    """
    images, channels, height, width = x.shape
    high, wide = (height - kernel[0]) // stride[0] + 1, (width - kernel[1]) // stride[1] + 1
    out = torch.empty(images, channels, high, wide, dtype=x.dtype, device=x.device)
    codes = torch.empty(out.shape, dtype=torch.int8, device=x.device)
    size = high * wide * channels
    _pool[_grid(images, size)](
        x,
        out,
        codes,
        height,
        width,
        high,
        wide,
        *kernel,
        *stride,
        size,
        height * width * channels,
        RECTIFY=rectify,
        BLOCK=_BLOCK,
    )
    return out, codes


def unpool(
    slopes: torch.Tensor, codes: torch.Tensor, shape: Shape, kernel: Shape, stride: Shape
) -> torch.Tensor:
    """Return the slopes at the pixels from which the largest values came."""
    images, channels, height, width = shape
    high, wide = slopes.shape[2:]
    out = torch.empty(*shape, dtype=slopes.dtype, device=slopes.device)
    size = height * width * channels
    _unpool[_grid(images, size)](
        slopes,
        codes,
        out,
        height,
        width,
        high,
        wide,
        *kernel,
        *stride,
        size,
        slopes[0].numel(),
        BLOCK=_BLOCK,
    )
    return out


def weighted_sums(values: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return Σ_e factors[m, e]·values[m, e]: models × width in float64; values are read once."""
    models, examples, width = values.shape
    out = torch.empty(models, width, dtype=torch.float64, device=values.device)
    _weigh[(models, triton.cdiv(width, _COLUMNS))](
        values, factors, out, examples, width, ROWS=_ROWS, COLUMNS=_COLUMNS
    )
    return out


def squares(values: torch.Tensor) -> torch.Tensor:
    """Return Σ x² over the last axis in float64; the values are read once."""
    width = values.shape[-1]
    out = torch.empty(values.shape[:-1], dtype=torch.float64, device=values.device)
    line = int(min(_BLOCK, max(32, triton.next_power_of_2(width))))
    if out.numel():
        _squares[(out.numel(),)](
            values.contiguous(), out, width, LINE=line, num_warps=max(1, line // 256)
        )
    return out


def _grid(images: int, size: int) -> tuple[int, int]:
    return (images, triton.cdiv(size, _BLOCK))


@triton.jit
def _gather(
    x,
    out,
    height: tl.constexpr,
    width: tl.constexpr,
    wide: tl.constexpr,
    kh: tl.constexpr,
    kw: tl.constexpr,
    sh: tl.constexpr,
    sw: tl.constexpr,
    ph: tl.constexpr,
    pw: tl.constexpr,
    positions: tl.constexpr,
    size: tl.constexpr,
    image_size: tl.constexpr,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    p, term = pixel % positions, pixel // positions
    c, rest = term // (kh * kw), term % (kh * kw)
    h, w = (p // wide) * sh - ph + rest // kw, (p % wide) * sw - pw + rest % kw
    inside = (pixel < size) & (h >= 0) & (h < height) & (w >= 0) & (w < width)
    value = tl.load(x + image * image_size + (c * height + h) * width + w, mask=inside, other=0.0)
    tl.store(out + image * size + pixel, value, mask=pixel < size)


@triton.jit
def _pool(
    x,
    out,
    codes,
    height: tl.constexpr,
    width: tl.constexpr,
    high: tl.constexpr,
    wide: tl.constexpr,
    kh: tl.constexpr,
    kw: tl.constexpr,
    sh: tl.constexpr,
    sw: tl.constexpr,
    size: tl.constexpr,
    image_size: tl.constexpr,
    RECTIFY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = pixel < size
    line = pixel // wide
    first = image * image_size + (line // high) * (height * width)
    first += (line % high) * (sh * width) + (pixel % wide) * sw
    best = tl.load(x + first, mask=known, other=0.0)
    code = tl.zeros((BLOCK,), dtype=tl.int32)
    for k in tl.static_range(1, kh * kw):
        value = tl.load(x + first + (k // kw) * width + k % kw, mask=known, other=0.0)
        better = (value > best) | (value != value)
        best = tl.where(better, value, best)
        code = tl.where(better, k, code)
    if RECTIFY:
        nothing = best <= 0.0
        best = tl.where(nothing, 0.0, best)
        code = tl.where(nothing, -1, code)
    tl.store(out + image * size + pixel, best, mask=known)
    tl.store(codes + image * size + pixel, code.to(tl.int8), mask=known)


@triton.jit
def _unpool(
    slopes,
    codes,
    out,
    height: tl.constexpr,
    width: tl.constexpr,
    high: tl.constexpr,
    wide: tl.constexpr,
    kh: tl.constexpr,
    kw: tl.constexpr,
    sh: tl.constexpr,
    sw: tl.constexpr,
    size: tl.constexpr,
    pooled_size: tl.constexpr,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    line = pixel // width
    c, h, w = line // height, line % height, pixel % width
    total = tl.zeros((BLOCK,), dtype=out.dtype.element_ty)
    for i in tl.static_range(kh):
        for j in tl.static_range(kw):
            oh, ow = (h - i) // sh, (w - j) // sw
            inside = (
                (pixel < size)
                & (h >= i)
                & (w >= j)
                & (oh * sh + i == h)
                & (ow * sw + j == w)
                & (oh < high)
                & (ow < wide)
            )
            offset = image * pooled_size + (c * high + oh) * wide + ow
            code = tl.load(codes + offset, mask=inside, other=-1).to(tl.int32)
            total += tl.load(slopes + offset, mask=inside & (code == i * kw + j), other=0.0)
    tl.store(out + image * size + pixel, total, mask=pixel < size)


@triton.jit
def _squares(values, out, width, LINE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    line = tl.arange(0, LINE)
    total = tl.zeros((LINE,), dtype=tl.float64)
    for first in range(0, width, LINE):
        here = first + line
        value = tl.load(values + row * width + here, mask=here < width, other=0.0).to(tl.float64)
        total += value * value
    tl.store(out + row, tl.sum(total, axis=0))


@triton.jit
def _weigh(values, factors, out, examples, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    model = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float64)
    for first in range(0, examples, ROWS):
        here = first + row
        inside = (here < examples)[:, None] & (column < width)[None, :]
        factor = tl.load(factors + model * examples + here, mask=here < examples, other=0.0)
        cell = (model * examples + here)[:, None] * width + column[None, :]
        value = tl.load(values + cell, mask=inside, other=0.0).to(tl.float64)
        total += value * factor[:, None]
    tl.store(out + model * width + column, tl.sum(total, axis=0), mask=column < width)
