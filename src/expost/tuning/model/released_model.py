"""Tuned models: parameters, the encoding of rows, and a safe file format.

``model.npz`` contains the parameters and a JSON header
with strings and numbers only: the kind of model, and the schema by which rows are encoded (names,
bounds, categories, fill values, classes). It contains no pickle, so reading it runs no code.

**Outputs of a linear model** depend on one row alone, whatever rows are computed with it. A matrix
product in floating point rounds in an order that may depend on the number of rows, so that one row
more could change the outputs of others in the last digits, and with them a count of correct rows.
Here an output is the exact real number xᵀw + b, rounded to a multiple of a step u, with u a power
of two that depends on the model and on this row only. The product is computed in floating point,
with an error of at most (d + 4)·2^{−52}·s for d features and s = m·Σ|w_j| + |b|, where m ≥ 1 bounds
the entries of the row. If this error cannot change the rounding, done. Otherwise (about one in
2^{25}/d outputs) the number is computed in rational arithmetic.

Tests: ``tests/tuning/test_model.py``, ``tests/tuning/test_linear_outputs.py``.
"""

from __future__ import annotations

import json
import math
import warnings
import zipfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from expost.arrays import Array, Floats
from expost.errors import InvalidInput
from expost.features import Features, features_from_dict
from expost.features.columns import TableSchema
from expost.features.functions import function_names
from expost.tables.cells import Label
from expost.training.configuration import OWN
from expost.training.lattice_rows import ROW_BITS, CompactRows, rounded_rows
from expost.tuning.request.factories import FeatureFunction, factory_of, takes
from expost.tuning.request.settings import Settings
from expost.tuning.request.tune_request import LINEAR
from expost.tuning.rows.job_columns import features_for, scaled_numbers
from expost.tuning.rows.job_tables import cells_for

PART = 512
"""Number of rows of which a torch module computes the outputs together."""


@dataclass(frozen=True)
class Recipe:
    """Description of a model without its parameters. All of it is public."""

    kind: str
    loss: str
    schema: TableSchema
    input_shape: tuple[int, ...] | None = None
    factory: Callable[[], Any] | None = field(default=None, compare=False, repr=False)
    features: Features | None = None
    centred: bool = True  # False: in a file of a version whose modules got numbers from 0 to 1

    @classmethod
    def of(
        cls, settings: Settings, schema: TableSchema, shape: tuple[int, ...] | None = None
    ) -> Recipe:
        """Return the recipe of a job. This imports the user's module, if there is one."""
        model = settings.model
        factory = None
        if model.kind not in LINEAR:
            factory = factory_of(
                model.kind,
                settings.folder,
                given=model.given,
                arguments=model.arguments,
                integers=schema.integers,
            )
        features = None
        if model.training != "dp-sgd" and model.loss != OWN:
            pictures = settings.data.shape or model.input_shape or shape
            features = features_for(model.features, schema, pictures, settings.folder)
        return cls(
            model.kind,
            model.loss,
            schema,
            model.input_shape or (None if model.kind in LINEAR else shape),
            factory,
            features,
        )

    @property
    def classes(self) -> int | tuple[Label, ...] | None:
        """The number of classes or their labels; None for a regression."""
        return self.schema.classes

    @property
    def target_bounds(self) -> tuple[float, float] | None:
        """Public bounds of the target of a regression; None for a classifier."""
        return self.schema.target_bounds

    @property
    def class_count(self) -> int | None:
        """Number of classes; None for a regression."""
        return self.schema.class_count

    def encode(self, X: Any) -> Array:
        """Return raw rows as the numbers that the model takes."""
        columns = self.schema.columns
        cells = cells_for(X, self.schema.names, len(columns))
        rows = self.schema.encode(cells)
        if np.isnan(rows).any():
            parts = zip(columns, cells.T if isinstance(cells, np.ndarray) else cells, strict=True)
            odd = [
                repr(column.name) for column, part in parts if np.isnan(column.encode(part)).any()
            ]
            where = "" if self.schema.names is None else f" in {', '.join(odd[:10])}"
            raise InvalidInput(
                "X",
                f"rows with values that cannot be read{where}",
                "give finite numbers and ISO dates, leave these rows out, or train with a public "
                "value for missing ones (data.missing)",
            )
        return rows.astype(np.int64) if self.schema.integers else rows

    def shaped(self, X: Array) -> Array:
        """Return scaled rows as a module takes them: numbers of a table centred, or reshaped."""
        if self.input_shape is None:
            if not self.centred or self.kind in LINEAR or self.schema.integers:
                return X
            rows, middle = np.array(X), [column for column, *_ in scaled_numbers(self.schema)]
            rows[:, middle] = 2 * rows[:, middle] - 1  # every row by itself
            return rows
        if int(np.prod(self.input_shape)) != X.shape[1]:
            raise InvalidInput(
                "model.input_shape",
                self.input_shape,
                f"a row has {X.shape[1]} features; give a shape with as many entries",
            )
        return X.reshape(len(X), *self.input_shape)

    def outputs(self, parameters: Mapping[str, Array], X: Array) -> Array:
        """Return the raw outputs for scaled rows, as an array of shape (rows, outputs)."""
        if not len(X):
            return np.zeros((0, 1))
        if self.kind in LINEAR:
            if self.features is not None:
                X = rounded_rows(self.features.transform_cells(X))  # as in training
            return linear_outputs(X, parameters["weight"], parameters["bias"])
        return _module_outputs(self, parameters, X)

    def decide(self, parameters: Mapping[str, Array], X: Array) -> Array:
        """Return class numbers, or predictions in the target's unit, for scaled rows."""
        raw = self.outputs(parameters, X)
        if self.loss == "softmax":
            used = raw[:, : self.class_count]  # a module may have more outputs than classes
            return np.asarray(used.argmax(axis=1))
        if self.loss == OWN:
            return np.asarray(raw[:, 0])
        if self.loss == "logistic":
            return (raw[:, 0] > 0).astype(np.int64)
        assert self.target_bounds is not None
        low, high = self.target_bounds
        return np.asarray(low + raw[:, 0] * (high - low))

    def probabilities(self, parameters: Mapping[str, Array], X: Array) -> Array:
        """Return the probability of each class for scaled rows; of a classifier only."""
        raw = self.outputs(parameters, X)
        if not len(raw):
            return np.zeros((0, self.class_count or 0))
        one = self.loss == "logistic"
        return probabilities_of(raw[:, :1] if one else raw[:, : self.class_count])


def probabilities_of(logits: Array) -> Array:
    """Return class probabilities (rows × classes); a single logit is that of the second class."""
    if logits.shape[1] == 1:
        logits = np.column_stack([np.zeros(len(logits)), logits])
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A trained model. It takes raw rows and clips and scales them as in training.

    Parameters
    ----------
    recipe : Recipe
        Description of the model.
    parameters : mapping of str to ndarray
        The trained parameters by name.
    passed : bool, optional
        Whether the model reached the goal of its job. False: it was released as *missed*. None:
        there was no goal, or it is not known.
    """

    recipe: Recipe
    parameters: Mapping[str, Array]
    passed: bool | None = None

    def __repr__(self) -> str:
        """Return the kind of the model, its columns and its labels in one line."""
        schema = self.recipe.schema
        columns = list(schema.names) if schema.names is not None else len(schema.columns)
        text = f"Model(kind={self.recipe.kind!r}, columns={columns}"
        text += ", passed=False" if self.passed is False else ""
        known = self.recipe.classes
        labels = list(known) if isinstance(known, tuple) else known
        return text + (")" if known is None else f", classes={labels})")

    @property
    def classes(self) -> list[Label] | None:
        """The labels in the order of :meth:`predict_proba`; None for a regression."""
        known = self.recipe.classes
        if known is None:
            return None
        return list(range(known)) if isinstance(known, int) else list(known)

    def predict(self, X: Any) -> Array:
        """Predict the class or the target of each row.

        Parameters
        ----------
        X : array_like of shape (rows, features), or data frame
            Raw rows, as in the data of the job. Columns of a data frame are found by name if the
            job knew their names; further columns are ignored.

        Returns
        -------
        ndarray of shape (rows,)
            The labels of the job, class numbers if it gave the number of classes only, or real
            predictions. Of a module with a loss of its own: the loss of each row.

        Raises
        ------
        InvalidInput
            If columns are missing, the width is wrong, or a value cannot be read and has no fill.
        """
        return self.recipe.schema.labels(self.recipe.decide(self.parameters, self.recipe.encode(X)))

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class.

        Parameters
        ----------
        X : array_like of shape (rows, features), or data frame
            Raw rows, as in :meth:`predict`.

        Returns
        -------
        ndarray of shape (rows, classes)
            In the order of :attr:`classes`.

        Raises
        ------
        InvalidInput
            If the model is a regression, or as in :meth:`predict`.
        """
        if self.recipe.class_count is None or self.recipe.loss == OWN:
            raise InvalidInput("model", self.recipe.loss, "it has no classes; call predict")
        return self.recipe.probabilities(self.parameters, self.recipe.encode(X))

    def inputs(self, X: Any) -> Array:
        """Return rows as a module of your own takes them.

        Parameters
        ----------
        X : array_like of shape (rows, features), or data frame
            Raw rows, as in :meth:`predict`.

        Returns
        -------
        ndarray
            Numbers of a table from −1 to 1, a column of 0 and 1 for each category. Rows of 200
            numbers or more without names, and rows with an input shape, have values from 0 to 1;
            token ids are whole numbers.

        Raises
        ------
        InvalidInput
            As in :meth:`predict`.
        """
        return self.recipe.shaped(self.recipe.encode(X))

    def save(self, path: str | Path) -> None:
        """Write the model to an ``.npz`` file that :func:`load_model` reads.

        Parameters
        ----------
        path : str or Path
            The file to write.
        """
        recipe = self.recipe
        header = {
            "kind": recipe.kind,
            "loss": recipe.loss,
            "table": recipe.schema.as_dict(),
            "input_shape": recipe.input_shape,
            "arguments": dict(getattr(recipe.factory, "arguments", {})),
            "features": None if recipe.features is None else recipe.features.as_dict(),
            "passed": self.passed,
            "centred": recipe.centred,
        }
        write_model(Path(path), header, self.parameters)


def load_model(
    path: str | Path,
    factory: Callable[..., Any] | str | None = None,
    *,
    functions: Mapping[str, Callable[..., Any]] | Collection[str] | None = None,
) -> Model:
    """Load a model that ``expost tune`` or :meth:`Model.save` wrote.

    Reading the file runs no code. Therefore a model of your own module needs its ``factory`` again,
    and features by your own function or encoder need that function.

    Parameters
    ----------
    path : str or Path
        The ``.npz`` file, or the folder of a job that contains ``model.npz`` or, if the goal was
        missed, ``missed-model.npz``.
    factory : callable or str, optional
        The function or class of the job, its name as in the job (``"nets.py:Net"``, from the
        current folder), or a function without arguments that returns an equal torch module. Needed
        if the model is a module of your own. The job's ``arguments`` are in
        the file; they are passed if the function takes them.
    functions : mapping of str to callable, or collection of str, optional
        The functions and encoders of the model's features by the names in the file
        (``{"maps:edges": edges}``); or the names alone (``["maps.py:edges"]``), which are then
        imported, from the current folder first. A name that is not listed is never imported.

    Returns
    -------
    Model
        The model, ready to predict. Its ``passed`` is False if it missed the goal of its job; a
        warning then says so.

    Raises
    ------
    InvalidInput
        If there is no such file, if it is not a model that expost saved, if ``factory`` is missing
        or makes a module with other parameters, or if a function is missing from ``functions``.
    """
    header, parameters = read_model_file(Path(path))
    shape = header["input_shape"]
    recipe = Recipe(
        header["kind"],
        header["loss"],
        TableSchema.from_dict(header["table"]),
        None if shape is None else tuple(shape),
        features=None if (known := header.get("features")) is None else _trusted(known, functions),
        centred=bool(header.get("centred", False)),
    )
    if recipe.kind not in LINEAR:
        if factory is None and recipe.kind != "cnn":
            raise InvalidInput(
                "factory",
                None,
                f"this model was made by {recipe.kind!r}; pass that function or class: "
                "load_model(path, function)",
            )
        arguments = header.get("arguments") or {}
        given, kind = (None, factory) if isinstance(factory, str) else (factory, recipe.kind)
        if given is not None and not isinstance(given, type) and hasattr(given, "state_dict"):
            raise InvalidInput(
                "factory",
                f"a {type(given).__name__}",
                "this is one module; pass the class or the function that makes it",
            )
        made = factory_of(
            kind,
            Path(),
            given=given,
            arguments=arguments if takes(given, arguments) else None,
            integers=recipe.schema.integers,
        )
        recipe = replace(recipe, factory=made)
        _check_parameters(recipe, parameters)
    return Model(recipe, parameters, header.get("passed"))


def _trusted(record: Any, functions: Any) -> Features:
    """Return the features of a file, with the functions that the caller gave or named."""
    if functions is not None and not isinstance(functions, Mapping):
        listed = [functions] if isinstance(functions, str) else list(functions)
        used = function_names(record)
        functions = {name: FeatureFunction(name) for name in listed if name in used}
    try:
        return features_from_dict(record, functions)
    except InvalidInput as error:
        if error.field != "functions":
            raise
        names = sorted(function_names(record))
        raise InvalidInput(
            "functions",
            error.value,
            f"the features of this model use {', '.join(names)}, and the file holds no code: pass "
            + "functions={"
            + ", ".join(f"{name!r}: function" for name in names)
            + f"}}, or functions={names} to import what has this name",
        ) from None


def _made(recipe: Recipe) -> Any:
    """Return the module with the frozen parameters and buffers that the fleet used."""
    import torch

    assert recipe.factory is not None
    with torch.random.fork_rng(devices=[]):
        # Frozen parameters and buffers are not saved; the fleet makes them with this seed, too.
        torch.manual_seed(0)
        return recipe.factory().eval()


def module_of(model: Model) -> Any:
    """Return the torch module of a model, with its parameters."""
    import torch

    if model.recipe.factory is None:
        raise InvalidInput("model", model.recipe.kind, "only a module of your own has a module")
    module = _made(model.recipe)
    held = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in model.parameters.items():
            held[name].copy_(torch.from_numpy(np.ascontiguousarray(value)))
    return module


def _check_parameters(recipe: Recipe, parameters: Mapping[str, Array]) -> None:
    """Refuse a factory whose module has no such parameters: it would predict something else."""
    known = {name: tuple(parameter.shape) for name, parameter in _made(recipe).named_parameters()}
    for name, value in parameters.items():
        if known.get(name) != value.shape:
            held = f"{name!r} of shape {known[name]}" if name in known else f"no {name!r}"
            raise InvalidInput(
                "factory",
                f"a module with {held}",
                f"the file has the shape {value.shape}; pass the function (and arguments) of the "
                "job",
            )


def _module_outputs(recipe: Recipe, parameters: Mapping[str, Array], X: Array) -> Array:
    """Return the raw outputs of a torch module, computed in parts of 512 rows."""
    import torch
    from torch.func import functional_call, vmap

    from expost.training._torch.module_state import ReachableState, RowError, RowsApart
    from expost.training._torch.module_taps import make_batchable

    module = _made(recipe)
    like = next(module.parameters())
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in parameters.items()
    }
    rows = torch.from_numpy(recipe.shaped(X)).to(like.dtype)
    state = ReachableState(module, tensors)
    errors: list[tuple[str, str]] | None = None  # of a pass over zeros
    raised: list[tuple[str, str]] = []

    def one_row(row: Any) -> Any:
        """Apply the module to one row, as a batch of its own: it cannot see the others."""
        return functional_call(module, tensors, (row[None],)).flatten()

    def each_row(part: Any) -> Any:
        """Apply it to some rows; every row gets the same random numbers, if there are any.

        Zeros are added up to a multiple of 16 rows: torch may round small batches differently.
        """
        torch.default_generator.manual_seed(0)
        padded = torch.cat([part, part.new_zeros(-len(part) % 16, *part.shape[1:])])
        apart = RowsApart()
        with state.kept(), apart:
            make_batchable(module)
            outputs = vmap(one_row, randomness="same")(padded)[: len(part)]
        if errors is not None and apart.errors != errors:
            raise RowError
        raised[:] = apart.errors
        return outputs

    def total(part: Any) -> Any:
        """Apply it to some rows; a row on which it raises has the outputs NaN.

        Whether a model can be scored must not depend on a row. Such rows are found by halving, with
        zeros in place of the other rows: the shape, and so the rounding, stays the same.
        """
        try:
            return each_row(part)
        except MemoryError:
            raise
        except Exception:
            outputs = torch.full_like(each_row(torch.zeros_like(part)), torch.nan)  # or it raises
        pending = [(0, len(part))]
        while pending:
            first, end = pending.pop()
            kept = torch.zeros_like(part)
            kept[first:end] = part[first:end]
            try:
                outputs[first:end] = each_row(kept)[first:end]
            except MemoryError:
                raise
            except Exception:
                middle = (first + end) // 2
                if end - first > 1:
                    pending += [(first, middle), (middle, end)]
        return outputs

    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # fused attention cannot be batched over rows
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            each_row(torch.zeros_like(rows[:1]))
            errors, state.watching = list(raised), False
            parts = [total(part) for part in torch.split(rows, PART)]
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    return np.asarray(torch.cat(parts).to(torch.float64).numpy())


_BITS = 26  # u is about 2^{−26} times the largest possible output
_MOST = 2.0**500


def linear_outputs(X: Array | CompactRows, weight: Array, bias: Array) -> Floats:
    """Return the outputs of each row."""
    rows: Any = X if isinstance(X, CompactRows) else np.asarray(X, dtype=np.float64)
    weight, bias = np.asarray(weight, dtype=np.float64), np.asarray(bias, dtype=np.float64)
    with np.errstate(all="ignore"):
        sums = np.abs(weight).sum(axis=1)
        if not (sums < _MOST).all() or not (np.abs(bias) < _MOST).all():
            return np.full((len(rows), len(bias)), np.nan)
        if isinstance(rows, CompactRows):
            most, product = np.ones(len(rows)), rows.products(weight.T) * 2.0**-ROW_BITS
        else:
            most = np.maximum(1.0, np.abs(rows).max(axis=1, initial=0.0))
            product = rows @ weight.T
        largest = most[:, None] * sums + np.abs(bias) + 2.0**-500
        exponents = np.frexp(largest)[1] - _BITS
        scaled = np.ldexp(product + bias, -exponents)
        whole = np.rint(scaled)
        error = (weight.shape[1] + 4) * 2.0**-52 * np.ldexp(largest, -exponents)
        undecided = ~(0.5 - np.abs(scaled - whole) > error)
    if isinstance(rows, CompactRows) and undecided.any():
        rows = rows.whole() * 2.0**-ROW_BITS
    for row, output in np.argwhere(undecided).tolist():
        exact = Fraction(float(bias[output])) + sum(
            Fraction(x) * Fraction(w)
            for x, w in zip(rows[row].tolist(), weight[output].tolist(), strict=True)
        )
        unit = Fraction(2) ** int(exponents[row, output])
        whole[row, output] = math.floor(exact / unit + Fraction(1, 2))
    return np.asarray(np.ldexp(whole, exponents))


MODEL = "model.npz"
"""Name of the file in the folder of a job."""
MISSED_MODEL = "missed-model.npz"
"""Name of the file if the model missed the goal."""

_HEADER = "expost"
_SCHEMA = 2
_PREFIX = "parameter:"


def write_model(path: Path, header: Mapping[str, Any], parameters: Mapping[str, Array]) -> None:
    """Write a header and parameters to a file."""
    arrays: dict[str, Any] = {f"{_PREFIX}{name}": value for name, value in parameters.items()}
    arrays[_HEADER] = np.array(json.dumps({"schema": _SCHEMA, **header}))
    with path.open("wb") as stream:
        np.savez(stream, **arrays)


def read_model_file(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the header and the parameters of a file, or of the model in a job's folder."""
    file = path
    if path.is_dir():
        file = path / MODEL if (path / MODEL).is_file() else path / MISSED_MODEL
        if not file.is_file():
            raise InvalidInput(
                "path",
                str(path),
                f"the folder has no {MODEL}: the job released no model, or is not finished",
            )
    if not file.is_file():
        raise InvalidInput("path", str(path), f"there is no such file; give {MODEL} or its folder")
    try:
        if not zipfile.is_zipfile(file):
            raise ValueError
        with np.load(file, allow_pickle=False) as archive:
            header = json.loads(str(archive[_HEADER]))
            parameters = {
                name.removeprefix(_PREFIX): archive[name]
                for name in archive.files
                if name != _HEADER
            }
        schema = header["schema"]
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile):
        # The error of numpy would advise to read the file unsafely.
        raise InvalidInput(
            "path", str(path), f"not a model that expost saved; give {MODEL} or its folder"
        ) from None
    if schema != _SCHEMA:
        raise InvalidInput("schema", schema, f"this version reads models of schema {_SCHEMA}")
    if header.get("passed") is False:
        warnings.warn(f"{file}: this model missed the goal of its job", stacklevel=3)
    return header, parameters
