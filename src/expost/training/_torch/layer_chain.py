"""Chains of layers for many models at once: convolutions and fully connected layers as batched matrix products.

A convolution gathers its patches (channels last) and is one product a model, a whole batch at a time. Of the gradients only what clipping
needs is made. A fully connected layer's norm is ‖input‖·‖slope‖; a convolution with few positions and many parameters has its norm
from two small Gram matrices, one with many positions stores its (small) gradient. The clipped sum is then one more product.

An example whose norm is no finite number adds nothing, as everywhere; as that is rare, a stretch of steps is made without looking, and
again with care (:mod:`expost.training._torch.model_group`) should there have been one. Arithmetic is in the precision of the parameters (float32 as
a rule, never TF32, which would round what clipping bounds), but squared norms, clipping factors and the sums over examples are
float64: what is added is what the norm was taken of, and a sum in float32 could move by many clipping norms for one example (its rounding
depends on all that was added before).
Tests: ``tests/training/test_layer_chain.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from expost.arrays import Array
from expost.training._torch.clipping import ClippedSums, clip_factors, cut
from expost.training._torch.flat_parameters import Parameters

Tensor = torch.Tensor
_MOST_CODES = 128  # places in a pooling window that the kernels can tell apart


class UnsupportedChain(Exception):
    """A layer, or a setting of it, that is not known here."""


class Layer(ABC):
    """A layer on channels-last activations (models × examples × height × width × channels), its parameters in torch's order."""

    width = 0
    kept: Any  # what backward needs of forward, and the sums of both; forgotten after each call

    @abstractmethod
    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        """What the layer returns."""

    @abstractmethod
    def backward(
        self, slope: Tensor, parameters: Tensor, further: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """The slope at the input (if ``further`` layers need it), and the squared norm of each example's parameter gradient."""

    def clipped(self, factors: Tensor) -> Tensor:
        """Sums of the examples' gradients, each times its factor: models × width."""
        return factors.new_empty(len(factors), 0)

    @property
    def summed(self) -> tuple[str, ...]:
        """What of ``kept`` the sums are made from."""
        return ()

    def clear(self, good: Tensor) -> None:
        """Forget the examples that are not ``good`` (models × examples): zero times infinity would be no number."""
        for name in self.summed:
            kept = getattr(self.kept, name)
            setattr(
                self.kept,
                name,
                torch.where(good[:, :, None], kept.reshape(*good.shape, -1), 0.0).view(kept.shape),
            )


class Rectified(Layer):
    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        self.kept.out = out = functional.relu(x)
        return out

    def backward(
        self, slope: Tensor, parameters: Tensor, further: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        before: Tensor = torch.ops.aten.threshold_backward(slope, self.kept.out, 0)
        return before, None


class Flattened(Layer):
    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        self.kept.shape = x.shape
        return x.permute(0, 1, 4, 2, 3).reshape(*x.shape[:2], 1, 1, -1)

    def backward(
        self, slope: Tensor, parameters: Tensor, further: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        models, examples, height, width, channels = self.kept.shape
        return slope.reshape(models, examples, channels, height, width).permute(0, 1, 3, 4, 2), None


class Pooled(Layer):
    """Max-pooling, with the rectifier before it if there is one: max(relu(x)) = relu(max(x))."""

    def __init__(self, layer: nn.MaxPool2d, rectify: bool, kernels: Any) -> None:
        self.kernel, self.stride = _pair(layer.kernel_size), _pair(layer.stride)
        self.rectify = rectify
        self.kernels = kernels if self.kernel[0] * self.kernel[1] < _MOST_CODES else None

    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        images = x.flatten(0, 1)
        self.kept.shape = images.shape
        if self.kernels is not None:
            out, self.kept.codes = self.kernels.pool(
                images.contiguous(), self.kernel, self.stride, self.rectify
            )
        else:
            self.kept.x = images.permute(0, 3, 1, 2)
            out, self.kept.places = functional.max_pool2d(
                self.kept.x, self.kernel, self.stride, return_indices=True
            )
            out = (functional.relu(out) if self.rectify else out).permute(0, 2, 3, 1)
            self.kept.out = out
        pooled: Tensor = out.unflatten(0, x.shape[:2])
        return pooled

    def backward(
        self, slope: Tensor, parameters: Tensor, further: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        given = slope.flatten(0, 1)
        if self.kernels is not None:
            found = self.kernels.unpool(
                given.contiguous(), self.kept.codes, self.kept.shape, self.kernel, self.stride
            )
        else:
            if self.rectify:
                given = torch.where(self.kept.out > 0, given, 0.0)
            found = torch.ops.aten.max_pool2d_with_indices_backward(
                given.permute(0, 3, 1, 2),
                self.kept.x,
                self.kernel,
                self.stride,
                [0, 0],
                [1, 1],
                False,
                self.kept.places,
            ).permute(0, 2, 3, 1)
        before: Tensor = found.unflatten(0, slope.shape[:2])
        return before, None


class Connected(Layer):
    """weight (out × in), then bias."""

    def __init__(self, layer: nn.Linear) -> None:
        self.inputs, self.outputs = layer.in_features, layer.out_features
        self.width = self.outputs * (self.inputs + 1)

    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        self.kept.x = x.reshape(*x.shape[:2], self.inputs)
        bias = parameters[:, None, self.outputs * self.inputs :]
        return torch.baddbmm(bias, self.kept.x, self._weight(parameters).transpose(1, 2))[
            :, :, None, None
        ]

    def _weight(self, parameters: Tensor) -> Tensor:
        return parameters[:, : self.outputs * self.inputs].view(-1, self.outputs, self.inputs)

    def backward(
        self, slope: Tensor, parameters: Tensor, further: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        self.kept.slope = slope.reshape(*slope.shape[:2], self.outputs)
        square = (_squares(self.kept.x) + 1.0) * _squares(self.kept.slope)
        before = (
            torch.bmm(self.kept.slope, self._weight(parameters))[:, :, None, None]
            if further
            else None
        )
        return before, square

    @property
    def summed(self) -> tuple[str, ...]:
        return "x", "slope"

    def clipped(self, factors: Tensor) -> Tensor:
        scaled = self.kept.slope * factors[:, :, None]
        weight = torch.bmm(scaled.transpose(1, 2), self.kept.x.to(factors.dtype))
        return torch.cat([weight.flatten(1), scaled.sum(1)], dim=1)


class Convolved(Layer):
    """weight (out × in × height × width), then bias; patches and products have the channels last."""

    def __init__(self, layer: nn.Conv2d, kernels: Any) -> None:
        self.kernel, self.stride, self.padding = (
            _pair(layer.kernel_size),
            _pair(layer.stride),
            _pair(layer.padding),
        )
        self.inputs, self.outputs, self.kernels = layer.in_channels, layer.out_channels, kernels
        self.patch = self.kernel[0] * self.kernel[1] * self.inputs
        self.width = self.outputs * (self.patch + 1)

    def forward(self, x: Tensor, parameters: Tensor) -> Tensor:
        models, examples = x.shape[:2]
        self.kept.shape = (models * examples, *x.shape[2:])
        patches = self._gathered(x.flatten(0, 1))
        self.kept.out = patches.shape[1:3]
        self.kept.positions = patches.shape[1] * patches.shape[2]
        self.kept.patches = patches.reshape(models, examples * self.kept.positions, self.patch)
        bias = parameters[:, None, self.outputs * self.patch :]
        made = torch.baddbmm(bias, self.kept.patches, self._weight(parameters).transpose(1, 2))
        return made.view(models, examples, *self.kept.out, self.outputs)

    def _gathered(self, images: Tensor) -> Tensor:
        """Images × out height × out width × kernel height × kernel width × channels."""
        (top, left), (kh, kw), (sh, sw) = self.padding, self.kernel, self.stride
        if self.kernels is not None:
            found: Tensor = self.kernels.gather_patches(
                images.contiguous(), self.kernel, self.stride, self.padding
            )
            return found
        padded = functional.pad(images, (0, 0, left, left, top, top))
        return padded.unfold(1, kh, sh).unfold(2, kw, sw).permute(0, 1, 2, 4, 5, 3)

    def _weight(self, parameters: Tensor) -> Tensor:
        """models × out × patch, in the order of the patches."""
        given = parameters[:, : self.outputs * self.patch].view(
            -1, self.outputs, self.inputs, *self.kernel
        )
        return given.permute(0, 1, 3, 4, 2).reshape(-1, self.outputs, self.patch)

    @property
    def ghost(self) -> bool:
        """Whether two Gram matrices are much smaller than the gradient."""
        return bool(16 * self.kept.positions**2 < self.patch * self.outputs)

    def backward(
        self, slope: Tensor, parameters: Tensor, further: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        models, examples = slope.shape[:2]
        self.kept.slope = slope.reshape(models, examples * self.kept.positions, self.outputs)
        each = self.kept.slope.view(models * examples, self.kept.positions, self.outputs)
        patches = self.kept.patches.view(models * examples, self.kept.positions, self.patch)
        self.kept.biases = each.sum(1).view(models, examples, self.outputs)
        if self.ghost:
            square = self._ghost_square(
                torch.bmm(patches, patches.transpose(1, 2)), torch.bmm(each, each.transpose(1, 2))
            )
        else:
            self.kept.gradients = torch.bmm(each.transpose(1, 2), patches)
            square = _squares(self.kept.gradients.flatten(1))
        before = (
            self._scattered(torch.bmm(self.kept.slope, self._weight(parameters)))
            if further
            else None
        )
        return before, square.view(models, examples) + _squares(self.kept.biases)

    def _ghost_square(self, patches: Tensor, slopes: Tensor) -> Tensor:
        """‖Σ_p slope_p ⊗ patch_p‖² from the Gram matrices of patches and slopes, never too small.

        The terms may cancel, and what rounding leaves of them could be far below the norm; so the largest error of these sums is
        added: (number of operations)·u·(Σ_p ‖patch_p‖·‖slope_p‖)², u the precision, and for products that vanished (below ``tiny``)
        tiny·(width of a patch)·(Σ_p ‖slope_p‖)², and the same the other way round.
        """
        operations, limits = (
            self.patch + self.outputs + self.kept.positions**2 + 4,
            torch.finfo(patches.dtype),
        )
        lost = limits.tiny * self.patch, limits.tiny * self.outputs
        longs, steeps = (
            (gram.diagonal(dim1=1, dim2=2).to(torch.float64) + low).sqrt()
            for gram, low in zip((patches, slopes), lost, strict=True)
        )
        error = operations * limits.eps / 2 * (longs * steeps).sum(1).square()
        vanished = (
            lost[0] * steeps.sum(1).square()
            + lost[1] * longs.sum(1).square()
            + limits.tiny * self.kept.positions**2
        )
        square: Tensor = (patches * slopes).sum((1, 2), dtype=torch.float64) + error + vanished
        return square

    def _scattered(self, patch_slopes: Tensor) -> Tensor:
        """Each pixel's slope: the sum over the patches it is in."""
        images, height, width, channels = self.kept.shape
        (kh, kw), (sh, sw), (oh, ow), (top, left) = (
            self.kernel,
            self.stride,
            self.kept.out,
            self.padding,
        )
        given = patch_slopes.view(images, oh, ow, kh, kw, channels)
        if self.kernels is not None:
            found: Tensor = self.kernels.scatter_patches(
                given, self.kept.shape, self.stride, self.padding
            )
        else:
            size = (images, height + 2 * top, width + 2 * left, channels)
            found = torch.zeros(size, dtype=given.dtype, device=given.device)
            for i in range(kh):
                for j in range(kw):
                    found[:, i : i + sh * (oh - 1) + 1 : sh, j : j + sw * (ow - 1) + 1 : sw] += (
                        given[:, :, :, i, j]
                    )
            found = found[:, top : top + height, left : left + width].contiguous()
        return found.view(patch_slopes.shape[0], -1, height, width, channels)

    @property
    def summed(self) -> tuple[str, ...]:
        return ("patches", "slope", "biases") if self.ghost else ("gradients", "biases")

    def clipped(self, factors: Tensor) -> Tensor:
        models, examples = factors.shape
        if self.ghost:
            scaled = (self.kept.slope.view(models, examples, -1) * factors[:, :, None]).view(
                models, -1, self.outputs
            )
            weight = torch.bmm(scaled.transpose(1, 2), self.kept.patches.to(factors.dtype))
        else:
            weight = self._weighted(self.kept.gradients.view(models, examples, -1), factors)
        ordered = weight.view(models, self.outputs, *self.kernel, self.inputs).permute(
            0, 1, 4, 2, 3
        )
        return torch.cat([ordered.flatten(1), self._weighted(self.kept.biases, factors)], dim=1)

    def _weighted(self, values: Tensor, factors: Tensor) -> Tensor:
        """Σ over the examples, each times its factor, in float64."""
        if self.kernels is not None:
            found: Tensor = self.kernels.weighted_sums(values, factors)
            return found
        return torch.bmm(factors[:, None], values.to(factors.dtype))[:, 0]


class ChainSums(ClippedSums):
    """Sums of clipped gradients of models that are chains of the layers above."""

    fixed = True
    sound: Tensor

    def __init__(
        self,
        module: nn.Module,
        factory: Callable[[], Any],
        X: Array,
        y: Array,
        loss: str,
        device: str,
    ) -> None:
        self.layers = list(_layers(module, X.shape[1:], _kernels(device)))
        self.parameters = Parameters(module, factory, device)
        self.dtype, self.width, self.loss = self.parameters.dtype, self.parameters.width, loss
        if self.width != sum(layer.width for layer in self.layers):
            raise UnsupportedChain("parameters outside the layers")
        ordered = X.transpose(0, 2, 3, 1) if X.ndim == 4 else X.reshape(len(X), 1, 1, -1)
        self.X = torch.from_numpy(ordered).to(device, self.dtype).contiguous()
        self.y = torch.from_numpy(y).to(device)
        self.rows, self.classes = len(X), self.layers[-1].outputs  # type: ignore[attr-defined]
        self.sound = torch.ones((), dtype=torch.bool, device=device)
        self._bytes = self._measure(device)

    def start(self, seeds: Sequence[int]) -> Tensor:
        return self.parameters.start(seeds)

    def arrays(self, flat: Array) -> dict[str, Array]:
        return self.parameters.arrays(flat)

    def bytes_per_example(self) -> int:
        return self._bytes

    def _measure(self, device: str) -> int:
        """Bytes of what the layers return and keep for one example."""
        x, total = self.X[:1][None] * 0, 2 * self.X[0].numel()
        blank = torch.zeros(1, self.width, dtype=self.dtype, device=device)
        for layer, parameters in self._each(blank):
            layer.kept = SimpleNamespace()
            x = layer.forward(x, parameters)
            total += 4 * x.numel()
            if isinstance(layer, Convolved):
                positions = layer.kept.positions
                total += 2 * positions * layer.patch
                total += (
                    2 * positions * layer.patch + 8 * positions**2
                    if layer.ghost
                    else 3 * layer.width
                )
            if isinstance(layer, Connected):
                total += 4 * layer.inputs
        return total * self.X.element_size()

    def _each(self, parameters: Tensor) -> Iterator[tuple[Layer, Tensor]]:
        first = 0
        for layer in self.layers:
            yield layer, parameters[:, first : first + layer.width]
            first += layer.width

    def chunk(self, parameters: Tensor, rows: Tensor, taken: Tensor, clips: Tensor) -> Tensor:
        steps = list(self._each(parameters.to(self.dtype)))
        for layer in self.layers:
            layer.kept = SimpleNamespace()
        x = self.X[rows]
        for layer, values in steps:
            x = layer.forward(x, values)
        slope = self._slope(x.flatten(2), self.y[rows])[:, :, None, None]
        square = torch.zeros(rows.shape, dtype=torch.float64, device=rows.device)
        for depth in range(len(steps) - 1, -1, -1):
            layer, values = steps[depth]
            before, more = layer.backward(slope, values, depth > 0)
            square = square if more is None else square + more
            slope = slope if before is None else before
        good = torch.isfinite(square)
        self.sound &= good.all()
        if self.careful:
            for layer in self.layers:
                layer.clear(good)
        factors = cut(clip_factors(square.sqrt(), clips[:, None]) * taken)
        found = torch.cat([layer.clipped(factors) for layer in self.layers], dim=1)
        for layer in self.layers:
            layer.kept = SimpleNamespace()
        return found

    def _slope(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss' gradient at the outputs."""
        if self.loss == "squared":
            return 2.0 * (outputs - targets[:, :, None].to(self.dtype))
        if self.loss == "logistic":
            return torch.sigmoid(outputs) - targets[:, :, None].to(self.dtype)
        labels = functional.one_hot(targets.to(torch.int64), self.classes)
        return torch.softmax(outputs, dim=2) - labels.to(self.dtype)


def _squares(values: Tensor) -> Tensor:
    """Σ x² over the last axis in float64, where no square of a float32 vanishes."""
    norms: Tensor = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64)
    return norms.square()


def _kernels(device: str) -> Any:
    """The fused kernels, where there are any."""
    if device == "cpu":
        return None
    try:
        from expost.training._torch import layer_kernels
    except ImportError:
        return None
    return layer_kernels


def _layers(module: nn.Module, shape: tuple[int, ...], kernels: Any) -> Iterator[Layer]:
    """The chain's layers, refused where they are not of the kinds above."""
    if len(shape) not in (1, 3):
        raise UnsupportedChain("rows of this shape")
    leaves = list(_leaves(module))
    held = [parameter for leaf in leaves for parameter in leaf.parameters()]
    if len({id(parameter) for parameter in held}) < len(held):
        raise UnsupportedChain("layers that share parameters")
    if not leaves or type(leaves[-1]) is not nn.Linear:
        raise UnsupportedChain("a chain that does not end in a Linear")
    flat, skip = len(shape) == 1, False
    for leaf, following in zip(leaves, [*leaves[1:], None], strict=True):
        _check_leaf(leaf, flat)
        if isinstance(leaf, nn.ReLU):
            skip = isinstance(following, nn.MaxPool2d)
            if not skip:
                yield Rectified()
        elif isinstance(leaf, nn.Flatten):
            flat = True
            yield Flattened()
        elif isinstance(leaf, nn.Linear):
            yield Connected(leaf)
        elif isinstance(leaf, nn.MaxPool2d):
            yield Pooled(leaf, skip, kernels)
            skip = False
        else:
            yield Convolved(leaf, kernels)


def _check_leaf(leaf: Any, flat: bool) -> None:
    """Refuse a layer that is not exactly as it is computed here."""
    kind = type(leaf)
    if (
        leaf._forward_hooks
        or leaf._forward_pre_hooks
        or leaf._backward_hooks
        or not all(each.requires_grad for each in leaf.parameters())
    ):
        raise UnsupportedChain("hooks or frozen parameters")
    if kind in (nn.MaxPool2d, nn.Conv2d) and (flat or _pair(leaf.dilation) != [1, 1]):
        raise UnsupportedChain(kind.__name__)
    known = (
        kind is nn.ReLU
        or (kind is nn.Flatten and (leaf.start_dim, leaf.end_dim) == (1, -1))
        or (kind is nn.Linear and flat and leaf.bias is not None)
        or (
            kind is nn.MaxPool2d
            and _pair(leaf.padding) == [0, 0]
            and not leaf.ceil_mode
            and not leaf.return_indices
        )
        or (
            kind is nn.Conv2d
            and leaf.groups == 1
            and leaf.bias is not None
            and leaf.padding_mode == "zeros"
            and not isinstance(leaf.padding, str)
        )
    )
    if not known:
        raise UnsupportedChain(kind.__name__)


def _leaves(module: nn.Module) -> Iterator[Any]:
    if type(module) is not nn.Sequential:
        raise UnsupportedChain(type(module).__name__)
    for layer in module._modules.values():  # children() would leave out a layer that comes again
        if type(layer) is nn.Sequential:
            yield from _leaves(layer)
        elif type(layer) is not nn.Identity:
            yield layer


def _pair(value: Any) -> list[int]:
    return [int(value), int(value)] if isinstance(value, int) else [int(each) for each in value]
