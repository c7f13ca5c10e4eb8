"""A tuned model: parameters, how rows become its input, and a file format that runs no code when read.

``model.npz`` holds the parameters and a JSON header (texts and numbers only; no pickle). Tests: ``tests/tuning/test_model.py``.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput, MissingExtra
from expost.tuning.rows import scale
from expost.tuning.settings import Bounds, Settings

_HEADER = "expost"
_SCHEMA = 1
_LINEAR = ("logistic", "softmax", "linear")


@dataclass(frozen=True)
class Recipe:
    """What a model is, apart from its parameters; all of it public."""

    kind: str
    loss: str
    bounds: Bounds
    classes: int | tuple[str, ...] | None = None
    target_bounds: tuple[float, float] | None = None
    input_shape: tuple[int, ...] | None = None
    factory: Callable[[], Any] | None = field(default=None, compare=False, repr=False)
    folder: Path | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, settings: Settings, bounds: Bounds) -> Recipe:
        """The recipe of a job; a module of the user's own is imported here."""
        model, data = settings.model, settings.data
        factory = None if model.kind in _LINEAR else find_factory(model.kind, settings.folder)
        return cls(
            model.kind,
            model.loss,
            bounds,
            data.classes,
            data.target_bounds,
            model.input_shape,
            factory,
            settings.folder.resolve(),
        )

    def __getstate__(self) -> dict[str, Any]:
        """For workers: the function behind a module of the user's own goes by name, and is looked for in the job's folder there."""
        return vars(self) if self.folder is None else {**vars(self), "factory": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.folder is not None and self.kind not in _LINEAR:
            vars(self)["factory"] = find_factory(self.kind, self.folder)

    @property
    def class_count(self) -> int | None:
        return len(self.classes) if isinstance(self.classes, tuple) else self.classes

    def shaped(self, X: Array) -> Array:
        """Scaled rows in the shape of the model's input."""
        if self.input_shape is None:
            return X
        if int(np.prod(self.input_shape)) != X.shape[1]:
            raise InvalidInput(
                "model.input_shape", self.input_shape, f"a row has {X.shape[1]} features"
            )
        return X.reshape(len(X), *self.input_shape)

    def outputs(self, parameters: Mapping[str, Array], X: Array) -> Array:
        """Raw outputs for scaled rows, rows × outputs."""
        if self.kind in _LINEAR:
            return np.asarray(X @ parameters["weight"].T + parameters["bias"])
        return _module_outputs(self, parameters, X)

    def decide(self, parameters: Mapping[str, Array], X: Array) -> Array:
        """Class numbers, or predictions on the target's own scale, for scaled rows."""
        raw = self.outputs(parameters, X)
        if self.loss == "softmax":
            return np.asarray(
                raw[:, : self.class_count].argmax(axis=1)
            )  # a module may have more outputs
        if self.loss == "logistic":
            return (raw[:, 0] > 0).astype(np.int64)
        assert self.target_bounds is not None
        low, high = self.target_bounds
        return np.asarray(low + raw[:, 0] * (high - low))


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model that takes raw rows: it clips and scales them as in training."""

    recipe: Recipe
    parameters: Mapping[str, Array] = field(repr=False)

    def predict(self, X: Any) -> Array:
        """Class numbers (or names, where classes were named), or real predictions."""
        found = self.recipe.decide(self.parameters, scale(X, self.recipe.bounds))
        return (
            np.array(self.recipe.classes)[found]
            if isinstance(self.recipe.classes, tuple)
            else found
        )

    def save(self, path: str | Path) -> None:
        """Write the model to an ``.npz`` file."""
        recipe = self.recipe
        header = {
            "schema": _SCHEMA,
            "kind": recipe.kind,
            "loss": recipe.loss,
            "bounds": recipe.bounds,
            "classes": recipe.classes,
            "target_bounds": recipe.target_bounds,
            "input_shape": recipe.input_shape,
        }
        with Path(path).open("wb") as stream:
            arrays: dict[str, Any] = {
                f"parameter:{name}": value for name, value in self.parameters.items()
            }
            arrays[_HEADER] = np.array(json.dumps(header))
            np.savez(stream, **arrays)


def load_model(path: str | Path, factory: Callable[[], Any] | None = None) -> Model:
    """The model that ``expost tune`` saved. A file runs no code: for a module of your own give its ``factory`` again."""
    with np.load(Path(path), allow_pickle=False) as archive:
        if _HEADER not in archive.files:
            raise InvalidInput("path", str(path), "not a model that expost saved")
        header = json.loads(str(archive[_HEADER]))
        parameters = {
            name.partition(":")[2]: archive[name] for name in archive.files if name != _HEADER
        }
    if header.get("schema") != _SCHEMA:
        raise InvalidInput(
            "schema", header.get("schema"), f"this version reads models of schema {_SCHEMA}"
        )
    classes, shape, bounds = header["classes"], header["input_shape"], header["target_bounds"]
    recipe = Recipe(
        header["kind"],
        header["loss"],
        tuple((low, high) for low, high in header["bounds"]),
        tuple(classes) if isinstance(classes, list) else classes,
        None if bounds is None else (bounds[0], bounds[1]),
        None if shape is None else tuple(shape),
    )
    if recipe.kind not in _LINEAR:
        if factory is None and recipe.kind != "cnn":
            raise InvalidInput(
                "factory", None, f"this model was made by {recipe.kind!r}; give that function"
            )
        recipe = replace(recipe, factory=factory or find_factory("cnn", Path()))
    return Model(recipe, parameters)


def find_factory(kind: str, folder: Path) -> Callable[[], Any]:
    """The function behind "cnn" or "module:factory"; modules next to the TOML file are found."""
    need_torch()
    if kind == "cnn":
        from expost.training._torch.modules import mnist_cnn

        return mnist_cnn
    module, _, name = kind.partition(":")
    sys.path.insert(0, str(folder.resolve()))
    try:
        factory = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise InvalidInput(
            "model.kind", kind, f"the module cannot be imported ({error.name or module})"
        ) from None
    except Exception as error:  # whatever the module raises, or a name that can be none
        raise InvalidInput(
            "model.kind", kind, f"importing the module raises {type(error).__name__}"
        ) from None
    finally:
        sys.path.remove(str(folder.resolve()))
    if not callable(factory):
        raise InvalidInput("model.kind", kind, f"the module has no function {name!r}")
    return factory  # type: ignore[no-any-return]


def need_torch() -> None:
    """Refuse early what needs torch where there is none."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtra("torch", "torch") from None


def _module_outputs(recipe: Recipe, parameters: Mapping[str, Array], X: Array) -> Array:
    import torch
    from torch.func import functional_call, vmap

    assert recipe.factory is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(
            0
        )  # frozen parameters and buffers are not among the trained ones; the fleet made them like this, too
        module = recipe.factory().eval()
    like = next(module.parameters())
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in parameters.items()
    }
    rows = torch.from_numpy(recipe.shaped(X)).to(like.dtype)

    def one_row(row: Any) -> Any:
        """Apply the module to one row, as a batch of its own: it cannot see the others."""
        return functional_call(module, tensors, (row[None],)).flatten()

    each_row = vmap(one_row, randomness="different")
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        parts = [each_row(part) for part in torch.split(rows, 512)]
    return np.asarray(torch.cat(parts).to(torch.float64).numpy())
