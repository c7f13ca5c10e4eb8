"""Convolutions of many models on a torch device, and the gradients of their weights per example.

Images are models × examples × channels × height × width. With Triton, float32 is convolved by the
kernels of :mod:`expost.training._torch.layer_kernels`, which write no patches. Otherwise a
convolution is a matrix product over the patches. Tests: ``tests/training/test_layer_chain.py`` and
``tests/training/test_device_kernels.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from expost.training._torch.plain_chain import pair

Tensor = torch.Tensor


class Convolution:
    """``nn.Conv2d`` without groups or dilation; weights are models × outputs × terms of a patch."""

    def __init__(self, layer: nn.Conv2d, kernels: Any) -> None:
        self.kernel, self.stride, self.padding = (
            (setting[0], setting[1])
            for setting in (pair(layer.kernel_size), pair(layer.stride), pair(layer.padding))
        )
        self.inputs, self.outputs, self.kernels = layer.in_channels, layer.out_channels, kernels
        self.patch = self.kernel[0] * self.kernel[1] * self.inputs

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolutions: models × examples × outputs × height × width."""
        kernels = fused(self.kernels, x)
        if kernels is not None:
            whole = weight.view(-1, self.outputs, self.inputs, *self.kernel)
            convolved: Tensor = kernels.convolve(
                x.contiguous(), whole, bias, self.stride, self.padding
            )
            return convolved
        product = torch.matmul(weight[:, None], self.patches(x))
        product = product if bias is None else product + bias[:, None, :, None]
        return product.view(*product.shape[:3], *self._positions(x))

    def slopes(self, slope: Tensor, weight: Tensor, size: tuple[int, ...]) -> Tensor:
        """Return the slopes at the images, whose height and width are ``size``."""
        kernels = fused(self.kernels, slope)
        if kernels is not None:
            whole = weight.view(-1, self.outputs, self.inputs, *self.kernel)
            slopes: Tensor = kernels.convolution_slopes(
                slope.contiguous(), whole, size, self.stride, self.padding
            )
            return slopes
        product = torch.matmul(weight.transpose(1, 2)[:, None], slope.flatten(3))
        folded = functional.fold(
            product.flatten(0, 1), size, self.kernel, padding=self.padding, stride=self.stride
        )
        return folded.view(*slope.shape[:2], *folded.shape[1:])

    def gradients(self, x: Tensor, slope: Tensor) -> Tensor:
        """Return the gradient of the weight of every example: models × examples × size."""
        kernels = fused(self.kernels, x)
        if kernels is not None:
            gradients: Tensor = kernels.convolution_gradients(
                x.contiguous(), slope.contiguous(), self.kernel, self.stride, self.padding
            )
            return gradients
        return torch.matmul(slope.flatten(3), self.patches(x).transpose(2, 3)).flatten(2)

    def patches(self, x: Tensor) -> Tensor:
        """Return the patches: models × examples × terms of a patch × positions."""
        images = x.flatten(0, 1)
        if self.kernels is not None:
            patches = self.kernels.gather_patches(
                images.contiguous(), self.kernel, self.stride, self.padding
            )
        else:
            patches = functional.unfold(
                images, self.kernel, padding=self.padding, stride=self.stride
            )
        viewed: Tensor = patches.view(*x.shape[:2], *patches.shape[1:])
        return viewed

    def ghost(self, x: Tensor, positions: int) -> bool:
        """Whether the two Gram matrices are much smaller than the gradient.

        In float64 the gradient is stored always: the bound on the rounding of sums
        (:func:`expost.training.exact_noise.rounding_slack`) rests on the error of float32.
        """
        small = 16 * positions**2 < self.patch * self.outputs
        return bool(small and x.dtype == torch.float32)

    def _positions(self, x: Tensor) -> list[int]:
        """Return height and width of the output."""
        sizes = zip(x.shape[3:], self.padding, self.kernel, self.stride, strict=True)
        return [(size + 2 * pad - kernel) // step + 1 for size, pad, kernel, step in sizes]


def fused(kernels: Any, x: Tensor) -> Any:
    """Return the kernels of convolutions and group normalisation, or None if ``x`` has none."""
    return None if x.dtype != torch.float32 else kernels


def kernels_of(device: str) -> Any:
    """Return the module of fused CUDA kernels, or None where it is not available."""
    if device == "cpu":
        return None
    try:
        from expost.training._torch import layer_kernels
    except ImportError:
        return None
    return layer_kernels


def ghost_square(patches: Tensor, slopes: Tensor, patch: int, outputs: int) -> Tensor:
    """Return ‖Σ_p slope_p ⊗ patch_p‖² from Gram matrices (examples × p × p), never too small.

    The terms may cancel, and the rounded result could then be far below the true norm. So the
    largest possible error of these sums is added: (number of operations)·u·(Σ_p
    ‖patch_p‖·‖slope_p‖)², where u is the precision. For products that underflow (below ``tiny``),
    tiny·(width of a patch)·(Σ_p ‖slope_p‖)² is added, and the same with patches and slopes
    exchanged. ``patch`` and ``outputs`` are the widths of patches and slopes.
    """
    positions, limits = patches.shape[1], torch.finfo(patches.dtype)
    operations = patch + outputs + positions**2 + 4
    lost = limits.tiny * patch, limits.tiny * outputs
    longs, steeps = (
        (gram.diagonal(dim1=1, dim2=2).to(torch.float64) + low).sqrt()
        for gram, low in zip((patches, slopes), lost, strict=True)
    )
    error = operations * limits.eps / 2 * (longs * steeps).sum(1).square()
    vanished = (
        lost[0] * steeps.sum(1).square()
        + lost[1] * longs.sum(1).square()
        + limits.tiny * positions**2
    )
    square: Tensor = (patches * slopes).sum((1, 2), dtype=torch.float64) + error + vanished
    return square


def squared_norms(values: Tensor) -> Tensor:
    """Return Σ x² over the last axis in float64, where no square of a float32 underflows."""
    kernels = kernels_of("cuda") if values.is_cuda and values.dtype == torch.float32 else None
    if kernels is not None:
        sums: Tensor = kernels.squares(values)
        return sums
    if values.is_cuda:
        norms: Tensor = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64)
        return norms.square()
    from expost.training._native.fixed_point import row_squares

    squares = torch.empty(values.shape[:-1], dtype=torch.float64)
    row_squares(values.reshape(-1, values.shape[-1]).contiguous().numpy(), squares.view(-1).numpy())
    return squares
