"""Features of features, and features that a file describes.

Tests: ``tests/features/test_choice.py``, ``tests/features/test_functions.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.features.columns import Columns, EncodedColumns
from expost.features.feature_map import Cells, Features
from expost.features.functions import Encoder, Function, RandomFourier
from expost.features.pictures import OrientedGradients
from expost.features.text import HashedText


@dataclass(eq=False)
class Chain(Features):
    """Features of features: each step gets the rows that the step before it returned.

    Parameters
    ----------
    steps : sequence of Features
        The steps in order. Rows between steps are scaled and have a constant column. The scaling of
        the last step is that of the result.

    Examples
    --------
    >>> from expost.features import Chain, OrientedGradients, RandomFourier
    >>> Chain([OrientedGradients("28x28"), RandomFourier(2000, 2.0, seed=1)]).width()
    2001
    """

    kind: ClassVar[str] = "chain"
    steps: Any

    def _check(self) -> None:
        steps = self.steps
        if (
            not isinstance(steps, (list, tuple))
            or not steps
            or not all(isinstance(step, Features) for step in steps)
        ):
            raise InvalidInput("steps", type(steps).__name__, "give a list of features")
        if steps[0].columns is not None:
            self.width()

    @property
    def columns(self) -> int | None:
        """Number of values of a row of the first step."""
        return self.steps[0].columns  # type: ignore[no-any-return]

    def _width(self, columns: int) -> int:
        for step in self.steps:
            if columns != (step.columns or columns):
                raise InvalidInput("steps", step.kind, f"it takes rows of {step.columns} values")
            columns = step._width(columns) + 1
        return columns - 1

    def _bound(self, columns: int) -> float:
        for step in self.steps[:-1]:
            columns = step._width(columns) + 1
        return self.steps[-1]._bound(columns)  # type: ignore[no-any-return]

    def _read(self, X: Any) -> Cells:
        return self.steps[0]._read(X)  # type: ignore[no-any-return]

    def _values(self, cells: Cells) -> Floats:
        for step in self.steps[:-1]:
            rows = step.transform_cells(cells)
            rows[rows[:, -1] == 0] = float("nan")  # a row that cannot be read stays so
            cells = rows
        return self.steps[-1]._values(cells)  # type: ignore[no-any-return]

    def _names(self, names: Sequence[str]) -> list[str]:
        for step in self.steps:
            names = [*step._names(names), "constant"]
        return list(names[:-1])

    def _words(self) -> str:
        return ", then ".join(step._words() for step in self.steps)


_KINDS: dict[str, type[Features]] = {
    features.kind: features
    for features in (
        Chain,
        Columns,
        EncodedColumns,
        Encoder,
        Function,
        HashedText,
        OrientedGradients,
        RandomFourier,
    )
}


def features_from_dict(
    record: Mapping[str, Any], functions: Mapping[str, Any] | None = None
) -> Features:
    """Return the features that ``as_dict`` described. Nothing is imported and no code runs.

    Parameters
    ----------
    record : mapping
        What :meth:`Features.as_dict` returned, perhaps read from JSON.
    functions : mapping of str to callable, optional
        The functions and encoders that the features use, by the names in the record. A record
        holds no code, and a name in it is never imported.

    Returns
    -------
    Features
        Equal features.

    Raises
    ------
    InvalidInput
        If it does not describe features that this version knows, or a function is not given.
    """
    kind = record.get("features") if isinstance(record, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidInput("features", kind, "this version knows " + ", ".join(_KINDS))
    known = functions or {}
    absent = sorted(function_names(record) - set(known))
    if absent:
        pairs = ", ".join(f"{name!r}: …" for name in absent)
        raise InvalidInput(
            "functions",
            sorted(known) or None,
            f"the features use {', '.join(map(repr, absent))}, and a file holds no code: pass "
            f"functions={{{pairs}}}",
        )
    parameters = {
        name: _given(value, functions) for name, value in record.items() if name != "features"
    }
    if "function" in parameters:
        parameters["function"] = known[str(parameters["function"])]
    try:
        return _KINDS[kind](**parameters)
    except TypeError:
        raise InvalidInput("features", "a record", "it has other parameters") from None


def function_names(record: Any) -> set[str]:
    """Return the names of the functions and encoders in a record of features, at any depth."""
    if isinstance(record, Mapping):
        inner = [function_names(value) for name, value in record.items() if name != "function"]
        own = {str(record["function"])} if "function" in record else set()
        return own.union(*inner)
    if isinstance(record, (list, tuple)):
        return set().union(*map(function_names, record))
    return set()


def _given(value: Any, functions: Mapping[str, Any] | None) -> Any:
    """Return a parameter from its JSON form."""
    if isinstance(value, Mapping):
        return features_from_dict(value, functions)
    if isinstance(value, (list, tuple)):
        return tuple(_given(item, functions) for item in value)
    return value
