"""Tapped convolutions: of one model by torch's kernels, and of many models at once.

See :mod:`expost.training._torch.tapped_layers`. Tests: ``tests/training/test_module_taps.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from expost.training._torch.convolutions import Convolution
from expost.training._torch.gradient_parts import Part, Positions
from expost.training._torch.tapped_layers import Call, TappedLayer, Untappable, joined

Tensor = torch.Tensor


class TappedConvolution(TappedLayer):
    """``nn.Conv1d`` and ``nn.Conv2d`` of one model, by torch's convolutions."""

    def __init__(self, layer: nn.Module, *arguments: Any, **options: Any) -> None:
        super().__init__(layer, *arguments, **options)
        self.flat = isinstance(layer, nn.Conv1d)
        names = ("kernel_size", "stride", "padding", "dilation")
        self.settings = [
            [*([1 if name != "padding" else 0] if self.flat else []), *getattr(layer, name)]
            for name in names
        ]

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        weight, bias = self.values["weight"][0], self.values.get("bias")
        images = self._images(x)
        _, stride, padding, dilation = self.settings
        out = functional.conv2d(
            images,
            self._kernel(weight),
            None if bias is None else bias[0],
            stride,
            padding,
            dilation,
            self.layer.groups,
        )
        if self.flat:
            out = out.squeeze(2)
        axes = 2 if self.flat else 3  # of one example's image, with its channels
        return out.reshape(*x.shape[:-axes], *out.shape[1:]), ()

    def _images(self, x: Tensor) -> Tensor:
        """Return one image (channels × height × width) per row."""
        if self.flat:
            x = x.unsqueeze(-2)
        return x.reshape(-1, *x.shape[-3:])

    def _kernel(self, weight: Tensor) -> Tensor:
        return weight.unsqueeze(2) if self.flat else weight

    def backward(self, call: Call) -> Tensor:
        images, slopes = self._images(call.inputs), self._images(call.slope)
        _, stride, padding, dilation = self.settings
        before: Tensor = torch.ops.aten.convolution_backward(
            slopes,
            images,
            self._kernel(self.values["weight"][0]),
            None,
            stride,
            padding,
            dilation,
            False,
            [0, 0],
            self.layer.groups,
            [True, False, False],
        )[0]
        return before.view(call.inputs.shape)

    def gradients(self) -> list[Part]:
        biases = [
            self._images(call.slope)
            .sum((2, 3))
            .view(1, call.slope.shape[1], -1, self.layer.out_channels)
            .sum(2)
            for call in self.calls
        ]
        gradients = self.stored("bias", biases)
        if "weight" not in self.trained:
            return gradients
        plain = self.layer.groups == 1 and self.settings[3] == [1, 1]
        weights = self.stored(
            "weight", [self._direct(call) if plain else self._unfolded(call) for call in self.calls]
        )
        if plain:
            weights[0].order = self._order
        return [*weights, *gradients]

    def _order(self, total: Tensor) -> Tensor:
        """Rearrange a sum from (height, width, inputs, outputs) to the order of the weight."""
        outputs, inputs = self.layer.out_channels, self.layer.in_channels
        return total.view(-1, *self.settings[0], inputs, outputs).permute(0, 4, 3, 1, 2).flatten(1)

    def _direct(self, call: Call) -> Tensor:
        """Return the gradients of the weight with the channels last: one model × examples × size.

        Patches are read directly from the images.
        """
        from expost.training._native.gradient_sums import write_convolution_gradients

        images, slopes = self._images(call.inputs), self._images(call.slope)
        kernel, stride, padding, _ = self.settings
        bordered, shape = _channels_last(images, padding)
        turned, out_shape = _channels_last(slopes, [0, 0])
        patches = torch.empty(len(images), self.values["weight"][0].numel(), dtype=images.dtype)
        write_convolution_gradients(
            bordered.numpy(), turned.numpy(), shape, out_shape, tuple(kernel), tuple(stride),
            patches.numpy(),
        )  # fmt: skip
        viewed = patches.view(1, call.inputs.shape[1], -1, patches.shape[1])
        return viewed[:, :, 0] if viewed.shape[2] == 1 else viewed.sum(2)

    def _unfolded(self, call: Call) -> Tensor:
        """Return the same in the order of the weight, for groups and dilated kernels."""
        images, slopes = self._images(call.inputs), self._images(call.slope)
        kernel, stride, padding, dilation = (tuple(setting) for setting in self.settings)
        patches = functional.unfold(images, kernel, dilation, padding, stride)
        groups, examples = self.layer.groups, call.inputs.shape[1]
        products = torch.bmm(
            slopes.reshape(len(slopes) * groups, -1, patches.shape[2]),
            patches.view(len(patches) * groups, -1, patches.shape[2]).transpose(1, 2),
        )
        viewed = products.view(1, examples, -1, self.values["weight"][0].numel())
        return viewed[:, :, 0] if viewed.shape[2] == 1 else viewed.sum(2)


class TappedConvolutions(TappedLayer):
    """``nn.Conv2d`` of many models at once."""

    def __init__(self, layer: nn.Module, *arguments: Any, **options: Any) -> None:
        super().__init__(layer, *arguments, **options)
        self.convolution = Convolution(layer, self.kernels)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        if x.ndim == 6 and x.shape[2] != 1:  # several images of one example
            raise Untappable(self)
        outputs = self.convolution.forward(_images(x), self._weight(), self.values.get("bias"))
        return outputs.view(*x.shape[:-3], *outputs.shape[2:]), ()

    def _weight(self) -> Tensor:
        return self.values["weight"].flatten(2)

    def backward(self, call: Call) -> Tensor:
        slopes = self.convolution.slopes(
            _images(call.slope), self._weight(), call.inputs.shape[-2:]
        )
        return slopes.view(call.inputs.shape)

    def gradients(self) -> list[Part]:
        both = [(_images(call.inputs), _images(call.slope)) for call in self.calls]
        gradients = self.stored("bias", [slope.sum((3, 4)) for _, slope in both])
        if "weight" not in self.trained:
            return gradients
        positions = sum(slope.shape[3] * slope.shape[4] for _, slope in both)
        if not self.convolution.ghost(both[0][0], positions):
            products = [self.convolution.gradients(x, slope) for x, slope in both]
            return [*self.stored("weight", products), *gradients]
        inputs = joined([self.convolution.patches(x).transpose(2, 3) for x, _ in both])
        slopes = joined([slope.flatten(3).transpose(2, 3) for _, slope in both])
        return [Positions(self.trained["weight"], inputs, slopes), *gradients]


def _images(x: Tensor) -> Tensor:
    """Return models × examples × channels × height × width."""
    return x.reshape(*x.shape[:2], *x.shape[-3:])


def _channels_last(images: Tensor, border: Sequence[int]) -> tuple[Tensor, tuple[int, int, int]]:
    """Return images with a border of zeros and the channels last, flat, and the shape of one.

    One vector of padding follows the last image.
    """
    from expost.training._native.gradient_sums import channels_last
    from expost.training._native.vector_products import VECTOR

    count, channels, height, width = images.shape
    shape = (height + 2 * border[0], width + 2 * border[1], channels)
    flat = images.new_empty(count * math.prod(shape) + VECTOR)
    channels_last(images.contiguous().numpy(), (border[0], border[1]), flat.numpy())
    return flat, shape
