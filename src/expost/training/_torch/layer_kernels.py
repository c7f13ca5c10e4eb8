"""Layers of many models on CUDA: Triton kernels that read each number once.

Patches, pooling, norms and weighted sums are first, convolutions and group normalisation second.

Images have the channels first, and one program computes a part of one image. Pooling includes a
preceding ReLU: max(relu(x)) = relu(max(x)) holds for values and slopes, so a window whose largest
value is not positive has slope 0. Sums over windows are gathered and never added atomically, so
results are reproducible.

**Convolutions.** A tile of a product is made of the pixels that it needs, which are read where they
are: no patch is written to memory. One program makes a part of the output and loops over the terms.
Products of float32 are sums of three products of TF32 (``tf32x3``): the high parts of both factors,
and each high part with the other's low part. The error is that of float32, a few units in the last
place of the sum of absolute terms, not that of TF32. It affects which gradient is computed, not its
norm: the norm is taken of the numbers that are summed afterwards.

The same functions in plain torch are in :mod:`expost.training._torch.layer_chain`.
Tests: ``tests/training/test_device_kernels.py`` (in Triton's interpreter if there is no CUDA
device).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

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


_WARPS = 4  # of a tile of a convolution
_TERMS = 16  # of a tile, where a channel is read at one place of the kernel after the other
_LINE = 1024  # numbers of a channel that are read at once


def convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Shape,
    padding: Shape,
) -> torch.Tensor:
    """Return the convolutions of images (models × examples × channels × height × width).

    ``weight`` is models × outputs × channels × kernel height × kernel width, ``bias`` is models ×
    outputs.
    """
    models, examples, channels, height, width = x.shape
    outputs, (kh, kw) = weight.shape[1], weight.shape[3:]
    high, wide = (
        (size + 2 * pad - kernel) // step + 1
        for size, pad, kernel, step in zip((height, width), padding, (kh, kw), stride, strict=True)
    )
    out = torch.empty(models, examples, outputs, high, wide, dtype=x.dtype, device=x.device)
    rows, positions = _block(outputs), high * wide
    by_places = channels >= _TERMS
    # few terms: one product makes them all
    few = not by_places and channels * kh * kw <= 32
    pixels, terms = (256, 32) if few else (128, _TERMS)
    grid = (triton.cdiv(examples * positions, pixels), models, triton.cdiv(outputs, rows))
    order = (0, 3, 4, 1, 2) if by_places else (0, 1, 2, 3, 4)
    _convolve[grid](
        x, weight.permute(*order).contiguous(), weight if bias is None else bias, out,
        examples, 0 if bias is None else bias.stride(0),
        channels, height, width, outputs, wide, positions, kh, kw, *stride, *padding,
        BIASED=bias is not None, BY_PLACES=by_places, WIDE=_wide(x, out),
        ROWS=rows, TERMS=terms, PIXELS=pixels, PRECISION=_precision(),
        num_warps=_WARPS, num_stages=1,
    )  # fmt: skip
    return out


def convolution_slopes(
    slopes: torch.Tensor, weight: torch.Tensor, size: Shape, stride: Shape, padding: Shape
) -> torch.Tensor:
    """Return the slopes at the images, whose height and width are ``size``, from the outputs'."""
    models, examples, outputs, high, wide = slopes.shape
    channels, (kh, kw) = weight.shape[2], weight.shape[3:]
    around = kh - 1 - padding[0], kw - 1 - padding[1]
    if tuple(stride) == (1, 1) and min(around) >= 0:
        # a convolution with the kernel turned by half a turn
        return convolve(slopes, weight.flip(3, 4).transpose(1, 2), None, stride, around)
    # the slopes of the patches, of which each pixel collects its own
    turned = slopes.flatten(3).transpose(1, 2).reshape(models, outputs, -1)
    patches = torch.bmm(weight.flatten(2).transpose(1, 2), turned)
    height, width = size
    out = torch.empty(
        models, examples, channels, height, width, dtype=slopes.dtype, device=slopes.device
    )
    pixels = channels * height * width
    _collect[(models * examples, triton.cdiv(pixels, _LINE))](
        patches, out, examples, height, width, high, wide, kh, kw, *stride, *padding, pixels,
        channels * kh * kw, WIDE=_wide(patches), LINE=_LINE,
    )  # fmt: skip
    return out


def convolution_gradients(
    x: torch.Tensor, slopes: torch.Tensor, kernel: Shape, stride: Shape, padding: Shape
) -> torch.Tensor:
    """Return the gradient of the weight for every example: models × examples × size."""
    models, examples, channels, height, width = x.shape
    outputs, wide, positions = slopes.shape[2], slopes.shape[4], slopes[0, 0, 0].numel()
    terms = channels * kernel[0] * kernel[1]
    out = torch.empty(models, examples, outputs * terms, dtype=x.dtype, device=x.device)
    rows, columns = _block(outputs), 64 if terms % 64 == 0 else 32
    grid = (models * examples, triton.cdiv(terms, columns), triton.cdiv(outputs, rows))
    _gradients[grid](
        x, slopes, out, channels, height, width, outputs, wide, positions,
        *kernel, *stride, *padding,
        ROWS=rows, COLUMNS=columns, PIXELS=32, PRECISION=_precision(), num_warps=2,
    )  # fmt: skip
    return out


def group_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the normalised images (models × examples × channels × pixels), means and scales.

    ``weight`` and ``bias`` are models × channels. Means and scales are (images · groups).
    """
    models, examples, channels, pixels = x.shape
    out = torch.empty_like(x)
    mean, scale = (x.new_empty(models * examples * groups) for _ in range(2))
    line = _line(pixels)
    _group_norm[(models * examples, groups)](
        x, weight, bias, out, mean, scale, examples, weight.stride(0), bias.stride(0), eps,
        groups, channels // groups, pixels, LINE=line, num_warps=max(1, line // 256),
    )  # fmt: skip
    return out, mean, scale


def group_norm_slopes(
    slopes: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    groups: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the slopes at the images, and the gradients of weight and bias for every example."""
    models, examples, channels, pixels = x.shape
    out = torch.empty_like(x)
    weights, biases = (x.new_empty(models, examples, channels) for _ in range(2))
    line = _line(pixels)
    _group_norm_slopes[(models * examples, groups)](
        slopes, x, mean, scale, weight, out, weights, biases, examples, weight.stride(0),
        groups, channels // groups, pixels, LINE=line, num_warps=max(1, line // 256),
    )  # fmt: skip
    return out, weights, biases


@cache
def _precision() -> str:
    """Return how products of float32 are made: older and other devices have no TF32."""
    if not torch.cuda.is_available():
        return "tf32x3"  # the interpreter
    known = torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)
    return "tf32x3" if known else "ieee"


def _block(size: int) -> int:
    """Return the rows of a tile: a power of two between 16 and 64."""
    return int(min(64, max(16, triton.next_power_of_2(size))))


def _line(pixels: int) -> int:
    return int(min(_LINE, max(32, triton.next_power_of_2(pixels))))


def _wide(*images: torch.Tensor) -> bool:
    """Return whether the numbers of one model need more than 31 bits to count."""
    return max(image[0].numel() for image in images) >= 1 << 31


@triton.jit
def _convolve(
    x, weight, bias, out, examples, bias_stride,
    channels: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
    outputs: tl.constexpr, wide: tl.constexpr, positions: tl.constexpr,
    kh: tl.constexpr, kw: tl.constexpr, sh: tl.constexpr, sw: tl.constexpr,
    ph: tl.constexpr, pw: tl.constexpr,
    BIASED: tl.constexpr, BY_PLACES: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, TERMS: tl.constexpr, PIXELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    known = pixel < examples * positions
    image, p = pixel // positions, pixel % positions
    top, left = (p // wide) * sh - ph, (p % wide) * sw - pw
    if WIDE:
        image = image.to(tl.int64)
    x += model * examples * (channels * height * width)
    out += model * examples * (outputs * positions)
    terms: tl.constexpr = channels * kh * kw
    weight += model * (outputs * terms)
    corner = image * (channels * height * width) + top * width + left
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    real = (row < outputs)[:, None]
    total = tl.zeros((ROWS, PIXELS), dtype=tl.float32)
    if BY_PLACES:
        # the weight is kernel height × kernel width × outputs × channels
        for tap in range(kh * kw):
            i, j = tap // kw, tap % kw
            h, w = top + i, left + j
            inside = (known & (h >= 0) & (h < height) & (w >= 0) & (w < width))[None, :]
            here = (corner + (i * width + j))[None, :]
            for first in range(0, channels, TERMS):
                c = first + tl.arange(0, TERMS)
                pixels = tl.load(
                    x + (here + c[:, None] * (height * width)),
                    mask=inside & (c < channels)[:, None], other=0.0,
                )  # fmt: skip
                weights = tl.load(
                    weight + (tap * (outputs * channels) + row[:, None] * channels + c[None, :]),
                    mask=real & (c < channels)[None, :], other=0.0,
                )  # fmt: skip
                total = tl.dot(weights, pixels, total, input_precision=PRECISION)
    else:
        for first in range(0, terms, TERMS):
            term = first + tl.arange(0, TERMS)
            c, rest = term // (kh * kw), term % (kh * kw)
            i, j = rest // kw, rest % kw
            h, w = top[None, :] + i[:, None], left[None, :] + j[:, None]
            inside = (h >= 0) & (h < height) & (w >= 0) & (w < width)
            inside = inside & known[None, :] & (term < terms)[:, None]
            offset = c * (height * width) + i * width + j
            pixels = tl.load(x + (corner[None, :] + offset[:, None]), mask=inside, other=0.0)
            weights = tl.load(
                weight + (row[:, None] * terms + term[None, :]),
                mask=real & (term < terms)[None, :], other=0.0,
            )  # fmt: skip
            total = tl.dot(weights, pixels, total, input_precision=PRECISION)
    if BIASED:
        offset = tl.load(bias + model * bias_stride + row, mask=row < outputs, other=0.0)
        total += offset[:, None]
    target = out + ((image * (outputs * positions) + p)[None, :] + row[:, None] * positions)
    tl.store(target, total, mask=real & known[None, :])


@triton.jit
def _collect(
    patches, out, examples, height: tl.constexpr, width: tl.constexpr, high: tl.constexpr,
    wide: tl.constexpr, kh: tl.constexpr, kw: tl.constexpr, sh: tl.constexpr, sw: tl.constexpr,
    ph: tl.constexpr, pw: tl.constexpr, pixels: tl.constexpr, terms: tl.constexpr,
    WIDE: tl.constexpr, LINE: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * LINE + tl.arange(0, LINE)
    line = column // width
    c, h, w = line // height, line % height + ph, column % width + pw
    # patches are models × terms × examples × positions
    size = examples * (high * wide)
    if WIDE:
        size = size.to(tl.int64)
    patches += (image // examples) * terms * size + (image % examples) * (high * wide)
    total = tl.zeros((LINE,), dtype=tl.float32)
    # a pixel is in the windows at its last place and before: h // sh, h // sh − 1, …
    for a in tl.static_range((kh + sh - 1) // sh):
        for b in tl.static_range((kw + sw - 1) // sw):
            i, j, oh, ow = h % sh + a * sh, w % sw + b * sw, h // sh - a, w // sw - b
            inside = (column < pixels) & (i < kh) & (j < kw)
            inside = inside & (oh >= 0) & (ow >= 0) & (oh < high) & (ow < wide)
            offset = (c * (kh * kw) + i * kw + j) * size + oh * wide + ow
            total += tl.load(patches + offset, mask=inside, other=0.0)
    tl.store(out + image * pixels + column, total, mask=column < pixels)


@triton.jit
def _gradients(
    x, slopes, out,
    channels: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
    outputs: tl.constexpr, wide: tl.constexpr, positions: tl.constexpr,
    kh: tl.constexpr, kw: tl.constexpr, sh: tl.constexpr, sw: tl.constexpr,
    ph: tl.constexpr, pw: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PIXELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    terms: tl.constexpr = channels * kh * kw
    term = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    c, rest = term // (kh * kw), term % (kh * kw)
    i, j = rest // kw - ph, rest % kw - pw
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    x += image * (channels * height * width)
    slopes += image * (outputs * positions)
    for first in range(0, positions, PIXELS):
        p = first + tl.arange(0, PIXELS)
        h = ((p // wide) * sh)[None, :] + i[:, None]
        w = ((p % wide) * sw)[None, :] + j[:, None]
        inside = (h >= 0) & (h < height) & (w >= 0) & (w < width)
        inside = inside & (p < positions)[None, :] & (term < terms)[:, None]
        offset = c[:, None] * (height * width) + h * width + w
        pixels = tl.load(x + offset, mask=inside, other=0.0)
        held = (row < outputs)[:, None] & (p < positions)[None, :]
        values = tl.load(slopes + (row[:, None] * positions + p[None, :]), mask=held, other=0.0)
        total = tl.dot(values, tl.trans(pixels), total, input_precision=PRECISION)
    target = out + image * (outputs * terms) + (row[:, None] * terms + term[None, :])
    tl.store(target, total, mask=(row < outputs)[:, None] & (term < terms)[None, :])


@triton.jit
def _group_norm(
    x, weight, bias, out, means, scales, examples, weight_stride, bias_stride, eps,
    groups: tl.constexpr, size: tl.constexpr, pixels: tl.constexpr, LINE: tl.constexpr,
):  # fmt: skip
    image, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    model = image // examples
    start = (image * groups + group) * (size * pixels)
    line = tl.arange(0, LINE)
    total = tl.zeros((LINE,), dtype=tl.float32)
    for first in range(0, size * pixels, LINE):
        here = first + line
        total += tl.load(x + start + here, mask=here < size * pixels, other=0.0)
    mean = tl.sum(total, axis=0) / (size * pixels)
    total = tl.zeros((LINE,), dtype=tl.float32)
    for first in range(0, size * pixels, LINE):
        here = first + line
        value = tl.load(x + start + here, mask=here < size * pixels, other=0.0) - mean
        value = tl.where(here < size * pixels, value, 0.0)
        total += value * value
    scale = 1.0 / tl.sqrt(tl.sum(total, axis=0) / (size * pixels) + eps)
    for first in range(0, size * pixels, LINE):
        here = first + line
        known = here < size * pixels
        channel = group * size + here // pixels
        value = (tl.load(x + start + here, mask=known, other=0.0) - mean) * scale
        value *= tl.load(weight + model * weight_stride + channel, mask=known, other=0.0)
        value += tl.load(bias + model * bias_stride + channel, mask=known, other=0.0)
        tl.store(out + start + here, value, mask=known)
    tl.store(means + image * groups + group, mean)
    tl.store(scales + image * groups + group, scale)


@triton.jit
def _group_norm_slopes(
    slopes, x, means, scales, weight, out, weights, biases, examples, weight_stride,
    groups: tl.constexpr, size: tl.constexpr, pixels: tl.constexpr, LINE: tl.constexpr,
):  # fmt: skip
    image, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    model = image // examples
    mean = tl.load(means + image * groups + group)
    scale = tl.load(scales + image * groups + group)
    line = tl.arange(0, LINE)
    all_plain, all_product = 0.0, 0.0
    for member in range(size):
        channel = group * size + member
        start = (image * (groups * size) + channel) * pixels
        plain, product = tl.zeros((LINE,), dtype=tl.float32), tl.zeros((LINE,), dtype=tl.float32)
        for first in range(0, pixels, LINE):
            here = first + line
            slope = tl.load(slopes + start + here, mask=here < pixels, other=0.0)
            value = (tl.load(x + start + here, mask=here < pixels, other=0.0) - mean) * scale
            plain += slope
            product += slope * value
        plain_sum, product_sum = tl.sum(plain, axis=0), tl.sum(product, axis=0)
        tl.store(biases + image * (groups * size) + channel, plain_sum)
        tl.store(weights + image * (groups * size) + channel, product_sum)
        factor = tl.load(weight + model * weight_stride + channel)
        all_plain += factor * plain_sum
        all_product += factor * product_sum
    all_plain /= size * pixels
    all_product /= size * pixels
    for member in range(size):
        channel = group * size + member
        start = (image * (groups * size) + channel) * pixels
        factor = tl.load(weight + model * weight_stride + channel)
        for first in range(0, pixels, LINE):
            here = first + line
            slope = tl.load(slopes + start + here, mask=here < pixels, other=0.0)
            value = (tl.load(x + start + here, mask=here < pixels, other=0.0) - mean) * scale
            before = (factor * slope - all_plain - value * all_product) * scale
            tl.store(out + start + here, before, mask=here < pixels)
