"""Which modules can be trained: checks by their layers and by zeros, without data.

Tests: ``tests/training/test_modules.py`` and ``tests/training/test_module_state.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.training._torch.reachable_state import ReachableState


def check_module(module: Any) -> nn.Module:
    """Return the module if it can be trained.

    Refuse a layer that mixes the examples of a batch, or that has no parameters yet (lazy layers),
    and hooks on parameters.
    """
    if not isinstance(module, nn.Module):
        raise InvalidInput(
            "model", type(module).__name__, "pass a function that returns a torch.nn.Module"
        )
    for name, layer in module.named_modules():
        coupled = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        remembers = (
            isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats
        )
        if coupled or remembers:
            raise InvalidInput(
                "model",
                f"{type(layer).__name__} at {name or 'the top'!r}",
                "it mixes the examples of a batch, so the gradient of one example cannot be "
                "bounded; use GroupNorm or LayerNorm",
            )
        if any(nn.parameter.is_lazy(parameter) for parameter in layer.parameters(recurse=False)):
            raise InvalidInput(
                "model",
                f"{type(layer).__name__} at {name!r}",
                "specify the sizes: lazy layers have no parameters yet",
            )
    for name, parameter in module.named_parameters():
        hooks: Any = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
        if any(hooks):
            raise InvalidInput(
                "model",
                f"a hook on the parameter {name!r}",
                "gradients are computed per example, where hooks on parameters are not called; "
                "remove it",
            )
    strange = {parameter.dtype for parameter in module.parameters()} - {
        torch.float32,
        torch.float64,
    }
    if strange:
        raise InvalidInput(
            "model",
            f"parameters of {strange.pop()}",
            "use float32 or float64: lower precision is too coarse for clipping",
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InvalidInput("model", type(module).__name__, "pass a module with parameters to train")
    return module


def takes_integers(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Return whether the module accepts rows of int64, such as tokens; found with zeros."""
    blank = torch.zeros((1, *shape), dtype=torch.int64, device=next(module.parameters()).device)
    try:
        with torch.no_grad(), ReachableState(module).kept():
            module(blank)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
        return False
    return True


def outputs_of(module: nn.Module, X: Array) -> int:
    """Return the number of outputs per example, found with zeros: no data is read.

    Rows are numbers of the module's precision, or int64 if ``X`` holds integers.
    """
    like = next(module.parameters())
    dtype = torch.int64 if X.dtype.kind in "iu" else like.dtype
    with torch.no_grad(), ReachableState(module).kept():
        blank = torch.zeros((1, *X.shape[1:]), dtype=dtype, device=like.device)
        try:
            made = module(blank)
            if isinstance(made, torch.Tensor):
                return int(made.numel())
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
            raise InvalidInput(
                "X",
                f"rows of shape {X.shape[1:]}",
                "the model does not accept rows of this shape; pass rows that fit its first layer",
            ) from None
    raise InvalidInput(
        "model",
        f"a module that returns {type(made).__name__}",
        "return one tensor: the outputs of each example",
    )
