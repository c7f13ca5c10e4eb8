"""Features of several parts: side by side, or one after the other.

Tests: ``tests/features/test_columns.py``, ``tests/features/test_choice.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.features.feature_map import Cells, Features, column_list
from expost.tables.cells import frame_of


@dataclass(eq=False)
class Columns(Features):
    """Features of different columns side by side, scaled together.

    Parameters
    ----------
    parts : sequence of (column, Features)
        Each part is a column, or a sequence of columns, and the features of it. A column is a name
        (for data frames) or a position. The parts' own ``constant`` and ``norm`` are not used.
    names : sequence of str, optional
        The names of all columns in order, if the parts use names and rows may come as arrays.
    constant, norm
        As in :class:`Features`.

    Examples
    --------
    >>> from expost.features import Columns, Numbers, OneHot
    >>> features = Columns([(0, Numbers((0, 100))), (1, OneHot(["red", "green"]))])
    >>> features.transform([[50, "red"], [None, "red"]]).round(2)
    array([[ 0.  ,  0.92,  0.  ,  0.  ,  0.39],
           [ 0.  ,  0.  ,  0.  ,  0.  ,  0.  ]])
    """

    kind: ClassVar[str] = "columns"
    parts: Any
    names: Any = None

    def _check(self) -> None:
        if not isinstance(self.parts, (list, tuple)) or not self.parts:
            raise InvalidInput("parts", type(self.parts).__name__, "give (column, features) pairs")
        for part in self.parts:
            if not (isinstance(part, (list, tuple)) and len(part) == 2) or not isinstance(
                part[1], Features
            ):
                raise InvalidInput("parts", "an entry", "give (column, features) pairs")
        for positions, part in self._located:
            if part.columns not in (None, len(positions)):
                raise InvalidInput(
                    "parts", f"{len(positions)} columns", f"the features take {part.columns}"
                )

    @cached_property
    def _located(self) -> list[tuple[list[int], Features]]:
        """Positions of the columns of each part."""
        known = {name: index for index, name in enumerate(self._columns)}
        located = []
        for wanted, part in self.parts:
            several = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
            if not several or not all(column in known for column in several):
                raise InvalidInput("parts", wanted, "give names that `names` lists, or positions")
            located.append(([known[column] for column in several], part))
        return located

    @cached_property
    def _columns(self) -> list[Any]:
        """Names of all columns, or positions."""
        if self.names is not None:
            return [str(name) for name in self.names]
        used: list[Any] = []
        for wanted, _ in self.parts:
            used += list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
        if all(isinstance(column, (int, np.integer)) for column in used):
            return list(range(max(used, default=-1) + 1))
        return list(dict.fromkeys(used))

    @property
    def columns(self) -> int:
        """Number of columns of a row."""
        return len(self._columns)

    def _width(self, columns: int) -> int:
        return sum(part._width(len(positions)) for positions, part in self._located)

    def _bound(self, columns: int) -> float:
        return sqrt(sum(part._bound(len(positions)) ** 2 for positions, part in self._located))

    def _read(self, X: Any) -> Cells:
        frame = frame_of(X)
        if frame is None or isinstance(self._columns[0], int):
            return super()._read(X)
        absent = [name for name in self._columns if name not in frame.names]
        if absent:
            raise InvalidInput("X", "a table", f"add the column {absent[0]!r}")
        return [frame.column(frame.names.index(name)) for name in self._columns]

    def _values(self, cells: Cells) -> Floats:
        columns = column_list(cells)
        return np.concatenate(
            [part._values([columns[index] for index in at]) for at, part in self._located], axis=1
        )

    def _names(self, names: Sequence[str]) -> list[str]:
        if not isinstance(self._columns[0], int):
            names = self._columns
        return [name for at, part in self._located for name in part._names([names[i] for i in at])]

    def _words(self) -> str:
        kinds = list(dict.fromkeys(part._words() for _, part in self.parts))
        return f"{self.columns} columns: " + ", ".join(kinds)


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
