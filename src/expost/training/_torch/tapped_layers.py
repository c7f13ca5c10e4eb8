"""Layers whose inputs and slopes are recorded, so that per-example gradients need not be formed.

A tapped layer computes its output on tensors of shape models × examples × (shape of one example),
with the parameters of every model. In the backward pass it keeps its input and its slope (the
gradient of the loss with respect to its output), and passes on the slope of its input. The
gradients of its parameters are computed afterwards from all of its calls together
(:meth:`TappedLayer.parts`). So a layer may be called any number of times. Parameters that are
frozen have no part.

With ``exact``, parts are those that can be summed in fixed point on a CPU. Otherwise they are
chosen for matrix products. Convolutions of one model use torch's kernels. Which layers of a module
are tapped is decided in :mod:`expost.training._torch.module_taps`. Tests:
``tests/training/test_module_taps.py``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from expost.arrays import Array
from expost.training._torch.clipped_sums import (
    Outer,
    Part,
    Positions,
    Products,
    Stored,
    Tokens,
    Written,
    added,
    convolution_part,
    joined,
)
from expost.training._torch.convolutions import Convolution, fused

Tensor = torch.Tensor


class Call(NamedTuple):
    """One call of a layer: its input, what its forward pass kept, and the slope of its output."""

    inputs: Tensor
    kept: tuple[Any, ...]
    slope: Tensor


class Untappable(Exception):
    """A call that a tapped layer does not support."""

    def __init__(self, layer: TappedLayer) -> None:
        super().__init__(type(layer).__name__)
        self.layer = layer


class TappedLayer(ABC):
    """A layer that records its calls."""

    def __init__(
        self,
        layer: nn.Module,
        held: dict[str, Tensor],
        trained: dict[str, str],
        *,
        exact: bool,
        kernels: Any,
    ) -> None:
        """``held`` are the parameters by role, ``trained`` the names of the trained ones."""
        self.layer: Any = layer
        self.held = held
        self.trained, self.exact, self.kernels = trained, exact, kernels
        self.calls: list[Call] = []
        self.values: dict[str, Tensor] = {}
        self.anchor: Tensor = torch.zeros(())

    def begin(self, values: dict[str, Tensor], models: int, anchor: Tensor) -> None:
        """Set the parameters of all models, by the names of the module, and forget all calls.

        ``anchor`` is a tensor that requires a gradient: it starts the backward pass.
        """
        self.calls, self.anchor = [], anchor
        self.values = {
            role: values[self.trained[role]]
            if role in self.trained
            else value.detach().expand(models, *value.shape)
            for role, value in self.held.items()
        }

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output on models × examples × …."""
        out: Tensor = _Recorded.apply(x, self.anchor, self)  # type: ignore[no-untyped-call]
        return out

    @abstractmethod
    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        """Return the output, and what the backward pass needs besides the input."""

    @abstractmethod
    def backward(self, call: Call) -> Tensor:
        """Return the slope of the input."""

    @abstractmethod
    def gradients(self) -> list[Part]:
        """Return the gradients of the trained parameters, from all calls; there is at least one."""

    def parts(self) -> list[Part]:
        """Return the gradients, and forget the calls and the parameters."""
        gradients = self.gradients() if self.calls else []
        self.calls, self.values = [], {}
        return gradients

    def stored(self, role: str, values: Sequence[Tensor]) -> list[Part]:
        """Return the sum of the gradients of several calls (models × examples × …) as a part."""
        if role not in self.trained:
            return []
        return [Stored(self.trained[role], added(values).flatten(2))]


class _Recorded(torch.autograd.Function):
    """A call of a tapped layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: TappedLayer) -> Tensor:
        out, ctx.kept = layer.forward(x)
        ctx.layer = layer
        ctx.save_for_backward(x)  # refuses an input that was changed in place afterwards
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, None, None]:
        call = Call(ctx.saved_tensors[0].detach(), ctx.kept, slope.detach())
        ctx.layer.calls.append(call)
        before = ctx.layer.backward(call) if ctx.needs_input_grad[0] else None
        return before, None, None


def product_parts(layer: TappedLayer, inputs: Tensor, slopes: Tensor) -> list[Part]:
    """Return the part of a weight: Σ_p slope_p ⊗ input_p.

    Inputs and slopes are models × examples × positions × ….
    """
    if "weight" not in layer.trained:
        return []
    name, positions = layer.trained["weight"], inputs.shape[2]
    width, outputs = inputs.shape[3], slopes.shape[3]
    if positions == 1:
        return [Outer(name, inputs[:, :, 0], slopes[:, :, 0])]
    if not layer.exact and 16 * positions**2 < width * outputs and inputs.dtype == torch.float32:
        return [Positions(name, inputs, slopes)]
    models, examples = inputs.shape[:2]
    if layer.exact:  # slope_p ⊗ input_p: the slopes take the place of the images
        images, slope = _flat(slopes), _flat(inputs, padded=True)
        shapes = (1, positions, outputs), (1, positions, width)
        return [Written(name, [Products(images, slope, *shapes, (1, 1), (1, 1), 1)], examples)]
    product = torch.bmm(slopes.flatten(0, 1).transpose(1, 2), inputs.flatten(0, 1))
    return [Stored(name, product.view(models, examples, -1))]


class TappedLinear(TappedLayer):
    """``nn.Linear`` on inputs of any number of axes."""

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        weight, bias = self.values["weight"], self.values.get("bias")
        if len(weight) == 1:
            out = functional.linear(x[0], weight[0], None if bias is None else bias[0])[None]
            return out, ()
        rows, turned = x.reshape(len(x), -1, x.shape[-1]), weight.transpose(1, 2)
        outputs = torch.bmm(rows, turned) if bias is None else torch.baddbmm(
            bias[:, None], rows, turned
        )  # fmt: skip
        return outputs.view(*x.shape[:-1], -1), ()

    def backward(self, call: Call) -> Tensor:
        weight, slope = self.values["weight"], call.slope
        if len(weight) == 1:
            return torch.matmul(slope[0], weight[0])[None]
        slopes = torch.bmm(slope.reshape(len(slope), -1, slope.shape[-1]), weight)
        return slopes.view(*slope.shape[:-1], -1)

    def gradients(self) -> list[Part]:
        inputs, slopes = (
            joined([_positions(getattr(call, name)) for call in self.calls])
            for name in ("inputs", "slope")
        )
        biases = [slopes.sum(2) if slopes.shape[2] > 1 else slopes[:, :, 0]]
        return [*product_parts(self, inputs, slopes), *self.stored("bias", biases)]


class TappedEmbedding(TappedLayer):
    """``nn.Embedding``."""

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        weight = self.values["weight"]
        if len(weight) == 1:
            return functional.embedding(x[0], weight[0])[None], ()
        models, number, width = weight.shape
        starts = torch.arange(models, device=x.device).view(-1, *[1] * (x.ndim - 1)) * number
        return functional.embedding(x + starts, weight.reshape(models * number, width)), ()

    def backward(self, call: Call) -> Tensor:
        raise RuntimeError("tokens have no slope")

    def gradients(self) -> list[Part]:
        tokens = joined([call.inputs.flatten(2).to(torch.int64) for call in self.calls])
        slopes = joined([_positions(call.slope) for call in self.calls])
        if self.layer.padding_idx is not None:
            tokens = torch.where(tokens == self.layer.padding_idx, -1, tokens)
        return [Tokens(self.trained["weight"], tokens, slopes, self.layer.num_embeddings)]


class TappedLayerNorm(TappedLayer):
    """``nn.LayerNorm`` with parameters."""

    def _affine(self, x: Tensor, role: str) -> Tensor:
        """Return a parameter in a shape that fits the activations."""
        value = self.values[role]
        return value.view(len(value), *[1] * (x.ndim - value.ndim), *value.shape[1:])

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        shape, eps, weight = self.layer.normalized_shape, self.layer.eps, self.values["weight"]
        bias = self.values.get("bias")
        if len(weight) == 1:
            out, mean, deviation = torch.native_layer_norm(
                x, shape, weight[0], None if bias is None else bias[0], eps
            )
            return out, (mean, deviation)
        out, mean, deviation = torch.native_layer_norm(x, shape, None, None, eps)
        out = out * self._affine(x, "weight")
        return out if bias is None else out + self._affine(x, "bias"), (mean, deviation)

    def backward(self, call: Call) -> Tensor:
        weight, slope = self.values["weight"], call.slope
        if len(weight) > 1:
            slope = slope * self._affine(slope, "weight")
        before: Tensor = torch.ops.aten.native_layer_norm_backward(
            slope.contiguous(),
            call.inputs.contiguous(),
            self.layer.normalized_shape,
            *call.kept,
            weight[0] if len(weight) == 1 else None,
            None,
            [True, False, False],
        )[0]
        return before

    def gradients(self) -> list[Part]:
        weights, biases = [], []
        for call in self.calls:
            axes = tuple(range(2, call.slope.ndim - len(self.layer.normalized_shape)))
            scaled = call.slope * (call.inputs - call.kept[0]) * call.kept[1]
            weights.append(scaled.sum(axes) if axes else scaled)
            biases.append(call.slope.sum(axes) if axes else call.slope)
        return [*self.stored("weight", weights), *self.stored("bias", biases)]


class TappedGroupNorm(TappedLayer):
    """``nn.GroupNorm`` with parameters."""

    def _sizes(self, x: Tensor) -> tuple[int, int, int]:
        """Return the numbers of images, channels and pixels."""
        channels = self.layer.num_channels
        images = x.shape[0] * x.shape[1] * x.shape[2]
        return images, channels, x.numel() // max(1, images * channels)

    def _lines(self, x: Tensor) -> Tensor:
        """Return models × images × channels × pixels."""
        _, channels, pixels = self._sizes(x)
        return x.reshape(len(x), -1, channels, pixels)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        weight, bias = self.values["weight"], self.values["bias"]
        alone, kernels = len(weight) == 1, fused(self.kernels, x)
        if kernels is not None:
            out, *kept = kernels.group_norm(
                self._lines(x).contiguous(), weight, bias, self.layer.num_groups, self.layer.eps
            )
            return out.view(x.shape), (*kept, {})
        out, mean, deviation = torch.native_group_norm(
            x.contiguous().flatten(0, 2),
            weight[0] if alone else None,
            bias[0] if alone else None,
            *self._sizes(x),
            self.layer.num_groups,
            self.layer.eps,
        )
        out = out.view(x.shape)
        if not alone:
            out = out * self._affine(x, weight) + self._affine(x, bias)
        return out, (mean, deviation)

    def _affine(self, x: Tensor, value: Tensor) -> Tensor:
        return value.view(len(value), 1, 1, -1, *[1] * (x.ndim - 4))

    def backward(self, call: Call) -> Tensor:
        weight, slope = self.values["weight"], call.slope
        kernels = fused(self.kernels, slope)
        if kernels is not None:
            mean, deviation, sums = call.kept
            slopes, *sums["parts"] = kernels.group_norm_slopes(
                self._lines(slope).contiguous(),
                self._lines(call.inputs).contiguous(),
                mean,
                deviation,
                weight,
                self.layer.num_groups,
            )
            viewed: Tensor = slopes.view(slope.shape)
            return viewed
        if len(weight) > 1:
            slope = slope * self._affine(slope, weight)
        before: Tensor = torch.ops.aten.native_group_norm_backward(
            slope.contiguous().flatten(0, 2),
            call.inputs.contiguous().flatten(0, 2),
            *call.kept,
            weight[0] if len(weight) == 1 else None,
            *self._sizes(slope),
            self.layer.num_groups,
            [True, False, False],
        )[0]
        return before.view(slope.shape)

    def gradients(self) -> list[Part]:
        gradients = [self._of_call(call) for call in self.calls]
        return [
            *self.stored("weight", [weight for weight, _ in gradients]),
            *self.stored("bias", [bias for _, bias in gradients]),
        ]

    def _of_call(self, call: Call) -> tuple[Tensor, Tensor]:
        """Return the gradients of weight and bias of one call: models × examples × channels."""
        shape = call.slope.shape[:4]
        if fused(self.kernels, call.slope) is not None:
            sums = call.kept[2]
            if not sums:  # the layer before needs no slope
                self.backward(call)
            weights, biases = (part.view(shape).sum(2) for part in sums["parts"])
            return weights, biases
        images, channels, _ = self._sizes(call.slope)
        slope, x = (tensor.reshape(images * channels, -1) for tensor in (call.slope, call.inputs))
        plain, product = (
            total.view(images, channels)
            for total in (_sums(slope, x) if self.exact else (slope.sum(1), (slope * x).sum(1)))
        )
        mean, deviation = (
            tensor.view(images, -1, 1)
            .expand(-1, -1, channels // self.layer.num_groups)
            .reshape(images, channels)
            for tensor in call.kept
        )
        weights = ((product - mean * plain) * deviation).view(shape).sum(2)
        return weights, plain.view(shape).sum(2)


def _sums(slopes: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of slopes and of slopes · inputs over each line, on a CPU."""
    from expost.training._native.fixed_point import channel_sums

    plain, product = slopes.new_zeros(len(slopes)), slopes.new_zeros(len(slopes))
    channel_sums(
        slopes.contiguous().numpy(), inputs.contiguous().numpy(), plain.numpy(), product.numpy()
    )
    return plain, product


def _positions(x: Tensor) -> Tensor:
    """Return models × examples × positions × width."""
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


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
        if self.layer.groups > 1 or self.settings[3] != [1, 1]:
            return [*self.stored("weight", [*map(self._unfolded, self.calls)]), *gradients]
        examples = self.calls[0].inputs.shape[1]
        weight = Written(self.trained["weight"], [*map(self._direct, self.calls)], examples)
        weight.order = self._order
        return [weight, *gradients]

    def _order(self, total: Tensor) -> Tensor:
        """Rearrange a sum from (height, width, inputs, outputs) to the order of the weight."""
        outputs, inputs = self.layer.out_channels, self.layer.in_channels
        return total.view(-1, *self.settings[0], inputs, outputs).permute(0, 4, 3, 1, 2).flatten(1)

    def _direct(self, call: Call) -> Products:
        """Return a call with the channels last; patches are read directly from the images."""
        images, slopes = self._images(call.inputs), self._images(call.slope)
        (height, width), (down, along), padding, _ = self.settings
        bordered, shape = _channels_last(images, padding)
        turned, out_shape = _channels_last(slopes, [0, 0])
        times = len(images) // call.inputs.shape[1]
        return Products(bordered, turned, shape, out_shape, (height, width), (down, along), times)

    def _unfolded(self, call: Call) -> Tensor:
        """Return the gradients of the weight of a call, for groups and dilated kernels."""
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
        return [convolution_part(self.trained["weight"], self.convolution, both), *gradients]


def _images(x: Tensor) -> Tensor:
    """Return models × examples × channels × height × width."""
    return x.reshape(*x.shape[:2], *x.shape[-3:])


def _flat(values: Tensor, *, padded: bool = False) -> Array:
    """Return a flat array; if wanted, one that may be read in whole vectors from any row on."""
    from expost.training._native.vector_products import VECTOR

    flat = values.contiguous().flatten()
    if padded and values.shape[-1] * values.element_size() % VECTOR:
        flat = torch.cat([flat, flat.new_zeros(VECTOR)])
    return np.asarray(flat.numpy())


def _channels_last(images: Tensor, border: Sequence[int]) -> tuple[Array, tuple[int, int, int]]:
    """Return images with a border of zeros and the channels last, flat, and the shape of one.

    One vector of padding follows the last image.
    """
    from expost.training._native.fixed_point import channels_last
    from expost.training._native.vector_products import VECTOR

    count, channels, height, width = images.shape
    shape = (height + 2 * border[0], width + 2 * border[1], channels)
    flat = np.empty(count * math.prod(shape) + VECTOR, dtype=images.numpy().dtype)
    channels_last(images.contiguous().numpy(), (border[0], border[1]), flat)
    return flat, shape
