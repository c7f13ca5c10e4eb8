"""A bank of real trainings: several scores of each setting of a grid at each level.

The trials of Table 3 draw from it, with replacement, instead of training again. It holds the scores
of *all* trainings on public rows: it is experimental data, not a private release. The trainings
take their noise from the operating system and cannot be repeated; the file states how they were
made. Tests: ``tests/reproduction/test_table3.py``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from expost.errors import InvalidInput
from reproduction.table3.tasks import GridSetting

_SCHEMA = 1
_MOST = 1e9  # score (MSE) of a model that diverged


@dataclass(frozen=True, eq=False)
class Bank:
    """Scores by level, setting and repeat.

    Parameters
    ----------
    task : str
        Name of the task.
    n : int
        Number of training rows, which determines the promises.
    delta : float
        The δ to which the noise was calibrated at each level.
    settings : tuple of GridSetting
        The grid.
    scores : dict
        Maps each level to one list per setting, with one number per training.
    details : dict
        How the bank was made.
    """

    task: str
    n: int
    delta: float
    settings: tuple[GridSetting, ...]
    scores: dict[float, list[list[float]]] = field(repr=False)
    details: dict[str, Any] = field(default_factory=dict, repr=False)

    def level(self, epsilon: float) -> list[list[float]]:
        """Return the scores at a level; every setting must be trained there at least once."""
        found = self.scores.get(epsilon)
        if found is None or not all(found):
            whole = [f"{level:g}" for level, each in sorted(self.scores.items()) if all(each)]
            raise InvalidInput(
                "bank",
                f"level {epsilon:g}",
                "not every setting was trained at this level; complete levels: "
                + (", ".join(whole) or "none"),
            )
        return found

    def repeats(self, epsilon: float) -> int:
        """Return the number of trainings that every setting has at a level."""
        return min(len(each) for each in self.scores.get(epsilon, [[]]))

    def add(self, epsilon: float, place: int, score: float) -> None:
        """Record the score of one training."""
        cells = self.scores.setdefault(epsilon, [[] for _ in self.settings])
        cells[place].append(float(f"{score:.6g}") if math.isfinite(score) else _MOST)

    def save(self, path: Path) -> None:
        """Write the bank atomically: a reader never sees an incomplete file."""
        record = {
            "schema": _SCHEMA,
            "task": self.task,
            "n": self.n,
            "delta": self.delta,
            **self.details,
            "settings": {
                "order": list(GridSetting._fields),
                "values": [list(setting) for setting in self.settings],
            },
            "scores": {f"{level:g}": self.scores[level] for level in sorted(self.scores)},
        }
        temporary = path.with_name(f".{path.name}.part")
        temporary.write_text(
            json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: Path) -> Bank:
        """Read a bank that :meth:`save` wrote."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except OSError:
            raise InvalidInput(
                "bank",
                str(path),
                "there is no such file; reproduction/table3/make_bank.py trains one",
            ) from None
        except ValueError:
            raise InvalidInput(
                "bank", str(path), "pass a JSON file written by reproduction/table3/make_bank.py"
            ) from None
        if not isinstance(record, dict) or record.pop("schema", None) != _SCHEMA:
            raise InvalidInput(
                "bank",
                str(path),
                f"pass a bank of schema {_SCHEMA}, as written by reproduction/table3/make_bank.py",
            )
        try:
            task, n, delta = (
                str(record.pop("task")),
                int(record.pop("n")),
                float(record.pop("delta")),
            )
            settings = tuple(_setting(each) for each in record.pop("settings")["values"])
            scores = {
                float(level): _cells(cells, len(settings))
                for level, cells in record.pop("scores").items()
            }
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(
                "bank", str(path), f"the file is damaged ({type(error).__name__}: {error})"
            ) from None
        return cls(task, n, delta, settings, scores, record)


def _setting(values: Sequence[float]) -> GridSetting:
    """Read a setting."""
    rate, epochs, batch, clip = values
    return GridSetting(float(rate), int(epochs), int(batch), float(clip))


def _cells(cells: Sequence[Sequence[float]], settings: int) -> list[list[float]]:
    """Read the scores of a level."""
    found = [[float(score) for score in cell] for cell in cells]
    if len(found) != settings or not all(math.isfinite(score) for cell in found for score in cell):
        raise ValueError("every level needs a list of finite scores for each setting")
    return found
