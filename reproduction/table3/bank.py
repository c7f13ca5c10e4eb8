"""A bank of real trainings: what each setting of a grid scored at each level, several times over.

Trials of Table 3 draw from it, with replacement, instead of training anew. It holds scores of *all* trainings, on public rows: data of an
experiment, not a release. Trainings take their noise from the operating system and cannot be repeated; the file says how they were made.
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
_MOST = 1e9  # what a model that diverged scores (MSE)


@dataclass(frozen=True, eq=False)
class Bank:
    """Scores by level, setting and repeat.

    ``n``        training rows, which fix the promises
    ``delta``    the δ to which noise was calibrated at each level
    ``scores``   level → one list a setting (in the order of ``settings``), one number a training made so far
    ``details``  how it was made
    """

    task: str
    n: int
    delta: float
    settings: tuple[GridSetting, ...]
    scores: dict[float, list[list[float]]] = field(repr=False)
    details: dict[str, Any] = field(default_factory=dict, repr=False)

    def level(self, epsilon: float) -> list[list[float]]:
        """Scores at a level, for which every setting was trained at least once."""
        found = self.scores.get(epsilon)
        if found is None or not all(found):
            whole = [level for level, scores in sorted(self.scores.items()) if all(scores)]
            raise InvalidInput(
                "bank",
                f"level {epsilon:g}",
                f"not every setting was trained at it; complete: {whole}",
            )
        return found

    def repeats(self, epsilon: float) -> int:
        """Trainings of every setting at a level."""
        return min(len(each) for each in self.scores.get(epsilon, [[]]))

    def add(self, epsilon: float, place: int, score: float) -> None:
        """Write down one training."""
        cells = self.scores.setdefault(epsilon, [[] for _ in self.settings])
        cells[place].append(float(f"{score:.6g}") if math.isfinite(score) else _MOST)

    def save(self, path: Path) -> None:
        """Write the bank in one go: a reader never sees half a file."""
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
        """The bank that :meth:`save` wrote."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except OSError:
            raise InvalidInput(
                "bank",
                str(path),
                "there is no such file; reproduction/table3/make_bank.py makes one",
            ) from None
        except ValueError:
            raise InvalidInput(
                "bank", str(path), "give a JSON file written by reproduction/table3/make_bank.py"
            ) from None
        if not isinstance(record, dict) or record.pop("schema", None) != _SCHEMA:
            raise InvalidInput(
                "bank",
                str(path),
                f"give a bank of schema {_SCHEMA}, as written by reproduction/table3/make_bank.py",
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
                "bank", str(path), f"a damaged bank ({type(error).__name__}: {error})"
            ) from None
        return cls(task, n, delta, settings, scores, record)


def _setting(values: Sequence[float]) -> GridSetting:
    rate, epochs, batch, clip = values
    return GridSetting(float(rate), int(epochs), int(batch), float(clip))


def _cells(cells: Sequence[Sequence[float]], settings: int) -> list[list[float]]:
    found = [[float(score) for score in cell] for cell in cells]
    if len(found) != settings or not all(math.isfinite(score) for cell in found for score in cell):
        raise ValueError("every level needs a list of finite scores for each setting")
    return found
