"""Patches, pooling and weighted sums on CUDA: Triton kernels that read and write each number once.

Images have the channels last, and one program computes a part of one image. Pooling includes a
preceding ReLU: max(relu(x)) = relu(max(x)) holds for values and slopes, so a window whose largest
value is not positive has slope 0. Sums over windows are gathered and never added atomically, so
results are reproducible. The same functions in plain torch are in
:mod:`expost.training._torch.layers`.
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

    The shape (images, height, width, channels) becomes (images, out height, out width, kernel
    height, kernel width, channels).
    """
    images, height, width, channels = x.shape
    high = (height + 2 * padding[0] - kernel[0]) // stride[0] + 1
    wide = (width + 2 * padding[1] - kernel[1]) // stride[1] + 1
    out = torch.empty(images, high, wide, *kernel, channels, dtype=x.dtype, device=x.device)
    size = out[0].numel()
    _gather[_grid(images, size)](
        x,
        out,
        height,
        width,
        channels,
        wide,
        *kernel,
        *stride,
        *padding,
        size,
        height * width * channels,
        BLOCK=_BLOCK,
    )
    return out


def scatter_patches(
    slopes: torch.Tensor, shape: Shape, stride: Shape, padding: Shape
) -> torch.Tensor:
    """Return for each pixel the sum over the patches that contain it.

    Patches have the shape (images, out height, …, channels); ``shape`` is that of the images.
    """
    images, height, width, channels = shape
    out = torch.empty(*shape, dtype=slopes.dtype, device=slopes.device)
    size = height * width * channels
    _, high, wide, kh, kw, _ = slopes.shape
    _scatter[_grid(images, size)](
        slopes,
        out,
        width,
        channels,
        high,
        wide,
        kh,
        kw,
        *stride,
        *padding,
        size,
        slopes[0].numel(),
        BLOCK=_BLOCK,
    )
    return out


def pool(
    x: torch.Tensor, kernel: Shape, stride: Shape, rectify: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest value of each window and its place in the window.

    The place is a code; it is −1 where the ReLU returns 0.
    """
    images, height, width, channels = x.shape
    high, wide = (height - kernel[0]) // stride[0] + 1, (width - kernel[1]) // stride[1] + 1
    out = torch.empty(images, high, wide, channels, dtype=x.dtype, device=x.device)
    codes = torch.empty(out.shape, dtype=torch.int8, device=x.device)
    size = high * wide * channels
    _pool[_grid(images, size)](
        x,
        out,
        codes,
        width,
        channels,
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
    images, height, width, channels = shape
    _, high, wide, _ = slopes.shape
    out = torch.empty(*shape, dtype=slopes.dtype, device=slopes.device)
    size = height * width * channels
    _unpool[_grid(images, size)](
        slopes,
        codes,
        out,
        width,
        channels,
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
    """Return Σ_e factors[m, e]·values[m, e]: models × width in float64.

    The float32 values are read once, and examples are added in their order.
    """
    models, examples, width = values.shape
    out = torch.empty(models, width, dtype=torch.float64, device=values.device)
    _weigh[(models, triton.cdiv(width, _COLUMNS))](
        values, factors, out, examples, width, ROWS=_ROWS, COLUMNS=_COLUMNS
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
    channels: tl.constexpr,
    wide: tl.constexpr,
    kh: tl.constexpr,
    kw: tl.constexpr,
    sh: tl.constexpr,
    sw: tl.constexpr,
    ph: tl.constexpr,
    pw: tl.constexpr,
    size: tl.constexpr,
    image_size: tl.constexpr,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    c, rest = place % channels, place // channels
    j, rest = rest % kw, rest // kw
    i, rest = rest % kh, rest // kh
    h, w = (rest // wide) * sh - ph + i, (rest % wide) * sw - pw + j
    inside = (place < size) & (h >= 0) & (h < height) & (w >= 0) & (w < width)
    value = tl.load(x + image * image_size + (h * width + w) * channels + c, mask=inside, other=0.0)
    tl.store(out + image * size + place, value, mask=place < size)


@triton.jit
def _scatter(
    slopes,
    out,
    width: tl.constexpr,
    channels: tl.constexpr,
    high: tl.constexpr,
    wide: tl.constexpr,
    kh: tl.constexpr,
    kw: tl.constexpr,
    sh: tl.constexpr,
    sw: tl.constexpr,
    ph: tl.constexpr,
    pw: tl.constexpr,
    size: tl.constexpr,
    patches_size: tl.constexpr,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    c, rest = place % channels, place // channels
    h, w = rest // width + ph, rest % width + pw
    total = tl.zeros((BLOCK,), dtype=out.dtype.element_ty)
    for i in tl.static_range(kh):
        for j in tl.static_range(kw):
            oh, ow = (h - i) // sh, (w - j) // sw
            inside = (
                (place < size)
                & (h >= i)
                & (w >= j)
                & (oh * sh + i == h)
                & (ow * sw + j == w)
                & (oh < high)
                & (ow < wide)
            )
            offset = (((oh * wide + ow) * kh + i) * kw + j) * channels + c
            total += tl.load(slopes + image * patches_size + offset, mask=inside, other=0.0)
    tl.store(out + image * size + place, total, mask=place < size)


@triton.jit
def _pool(
    x,
    out,
    codes,
    width: tl.constexpr,
    channels: tl.constexpr,
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
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = place < size
    c, rest = place % channels, place // channels
    first = image * image_size + ((rest // wide) * sh * width + (rest % wide) * sw) * channels + c
    best = tl.load(x + first, mask=known, other=0.0)
    code = tl.zeros((BLOCK,), dtype=tl.int32)
    for k in tl.static_range(1, kh * kw):
        value = tl.load(x + first + ((k // kw) * width + k % kw) * channels, mask=known, other=0.0)
        better = (value > best) | (value != value)
        best = tl.where(better, value, best)
        code = tl.where(better, k, code)
    if RECTIFY:
        nothing = best <= 0.0
        best = tl.where(nothing, 0.0, best)
        code = tl.where(nothing, -1, code)
    tl.store(out + image * size + place, best, mask=known)
    tl.store(codes + image * size + place, code.to(tl.int8), mask=known)


@triton.jit
def _unpool(
    slopes,
    codes,
    out,
    width: tl.constexpr,
    channels: tl.constexpr,
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
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    c, rest = place % channels, place // channels
    h, w = rest // width, rest % width
    total = tl.zeros((BLOCK,), dtype=out.dtype.element_ty)
    for i in tl.static_range(kh):
        for j in tl.static_range(kw):
            oh, ow = (h - i) // sh, (w - j) // sw
            inside = (
                (place < size)
                & (h >= i)
                & (w >= j)
                & (oh * sh + i == h)
                & (ow * sw + j == w)
                & (oh < high)
                & (ow < wide)
            )
            offset = image * pooled_size + (oh * wide + ow) * channels + c
            code = tl.load(codes + offset, mask=inside, other=-1).to(tl.int32)
            total += tl.load(slopes + offset, mask=inside & (code == i * kw + j), other=0.0)
    tl.store(out + image * size + place, total, mask=place < size)


@triton.jit
def _weigh(values, factors, out, examples, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    model = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    total = tl.zeros((COLUMNS,), dtype=tl.float64)
    for first in range(0, examples, ROWS):
        here = first + row
        inside = (here < examples)[:, None] & (column < width)[None, :]
        factor = tl.load(factors + model * examples + here, mask=here < examples, other=0.0)
        place = (model * examples + here)[:, None] * width + column[None, :]
        value = tl.load(values + place, mask=inside, other=0.0).to(tl.float64)
        total += tl.sum(value * factor[:, None], axis=0)
    tl.store(out + model * width + column, total, mask=column < width)
