"""Tuned models: parameters, the conversion of rows to model input, and a safe file format.

``model.npz`` contains the parameters and a JSON header with strings and numbers only. It contains
no pickle, so reading it runs no code.

Tests: ``tests/tuning/test_model.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.tuning.data_settings import Bounds
from expost.tuning.factories import factory_of
from expost.tuning.model_settings import LINEAR
from expost.tuning.rows import scale
from expost.tuning.settings import Settings

_HEADER = "expost"
_SCHEMA = 1


@dataclass(frozen=True)
class Recipe:
    """Description of a model without its parameters. All of it is public.

    Parameters
    ----------
    kind : str
        The name of the model, as in ``model.kind``.
    loss : str
        ``"logistic"``, ``"softmax"`` or ``"squared"``.
    bounds : tuple of (float, float)
        Public bounds of the features: one pair for all, or one pair per feature.
    classes : int or tuple of str, optional
        The number of classes or their names. None for a regression.
    target_bounds : (float, float), optional
        Public bounds of the target of a regression.
    input_shape : tuple of int, optional
        Shape of one example. None if the model takes flat rows.
    factory : callable, optional
        Function that returns the torch module. None for linear models.
    """

    kind: str
    loss: str
    bounds: Bounds
    classes: int | tuple[str, ...] | None = None
    target_bounds: tuple[float, float] | None = None
    input_shape: tuple[int, ...] | None = None
    factory: Callable[[], Any] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, settings: Settings, bounds: Bounds) -> Recipe:
        """Return the recipe of a job. This imports the user's module, if there is one.

        Parameters
        ----------
        settings : Settings
            Settings of the job.
        bounds : tuple of (float, float)
            Public bounds of the features.
        """
        model, data = settings.model, settings.data
        factory = None
        if model.kind not in LINEAR:
            factory = factory_of(
                model.kind, settings.folder, given=model.given, arguments=model.arguments
            )
        return cls(
            model.kind,
            model.loss,
            bounds,
            data.classes,
            data.target_bounds,
            model.input_shape,
            factory,
        )

    @property
    def class_count(self) -> int | None:
        """Number of classes; None for a regression."""
        return len(self.classes) if isinstance(self.classes, tuple) else self.classes

    def shaped(self, X: Array) -> Array:
        """Reshape scaled rows to the model's input.

        Raises
        ------
        InvalidInput
            If a row does not have as many features as ``input_shape`` needs.
        """
        if self.input_shape is None:
            return X
        if int(np.prod(self.input_shape)) != X.shape[1]:
            raise InvalidInput(
                "model.input_shape",
                self.input_shape,
                f"a row has {X.shape[1]} features; give a shape with as many entries",
            )
        return X.reshape(len(X), *self.input_shape)

    def outputs(self, parameters: Mapping[str, Array], X: Array) -> Array:
        """Return the raw outputs for scaled rows, as an array of shape (rows, outputs)."""
        if self.kind in LINEAR:
            return np.asarray(X @ parameters["weight"].T + parameters["bias"])
        return _module_outputs(self, parameters, X)

    def decide(self, parameters: Mapping[str, Array], X: Array) -> Array:
        """Return class numbers, or predictions in the target's unit, for scaled rows."""
        raw = self.outputs(parameters, X)
        if self.loss == "softmax":
            used = raw[:, : self.class_count]  # a module may have more outputs than classes
            return np.asarray(used.argmax(axis=1))
        if self.loss == "logistic":
            return (raw[:, 0] > 0).astype(np.int64)
        assert self.target_bounds is not None
        low, high = self.target_bounds
        return np.asarray(low + raw[:, 0] * (high - low))


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model. It takes raw rows and clips and scales them as in training.

    Parameters
    ----------
    recipe : Recipe
        Description of the model.
    parameters : mapping of str to ndarray
        The trained parameters by name.
    """

    recipe: Recipe
    parameters: Mapping[str, Array] = field(repr=False)

    def predict(self, X: Any) -> Array:
        """Predict the class or the target of each row.

        Parameters
        ----------
        X : array_like of shape (rows, features)
            Raw rows, as in the data of the job.

        Returns
        -------
        ndarray of shape (rows,)
            Class numbers, class names if the job named the classes, or real predictions.
        """
        found = self.recipe.decide(self.parameters, scale(X, self.recipe.bounds))
        return (
            np.array(self.recipe.classes)[found]
            if isinstance(self.recipe.classes, tuple)
            else found
        )

    def save(self, path: str | Path) -> None:
        """Write the model to an ``.npz`` file that :func:`load_model` reads.

        Parameters
        ----------
        path : str or Path
            The file to write.
        """
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
    """Load a model that ``expost tune`` or :meth:`Model.save` wrote.

    Reading the file runs no code. Therefore a model of your own module needs its ``factory`` again.

    Parameters
    ----------
    path : str or Path
        The ``.npz`` file.
    factory : callable, optional
        Function that returns the torch module. Needed if the job used ``"module:factory"``.

    Returns
    -------
    Model
        The model, ready to predict.

    Raises
    ------
    InvalidInput
        If the file is not a model that expost saved, or if ``factory`` is missing.
    """
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
    if recipe.kind not in LINEAR:
        if factory is None and recipe.kind != "cnn":
            raise InvalidInput(
                "factory", None, f"this model was made by {recipe.kind!r}; pass that function"
            )
        recipe = replace(recipe, factory=factory or factory_of("cnn", Path()))
    return Model(recipe, parameters)


def _module_outputs(recipe: Recipe, parameters: Mapping[str, Array], X: Array) -> Array:
    """Return the raw outputs of a torch module, computed in parts of 512 rows."""
    import torch
    from torch.func import functional_call, vmap

    assert recipe.factory is not None
    with torch.random.fork_rng(devices=[]):
        # Frozen parameters and buffers are not saved; the fleet makes them with this seed, too.
        torch.manual_seed(0)
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
