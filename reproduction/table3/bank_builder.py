"""Fill a bank: train every setting at every level with real DP-SGD, on a GPU or a CPU.

The work is divided into slices of one batch size and a few levels: lowest levels first, largest
batches first. ``save`` is called after each slice, so a time limit loses at most one slice. Needs
torch and numpy only (on a CPU also numba). Tests: ``tests/reproduction/test_table3.py``.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from expost._version import __version__
from expost.arrays import Array
from expost.errors import InvalidInput, MissingExtra
from expost.privacy.dpsgd import LOSS_DISTRIBUTION
from expost.training.configuration import Configuration
from expost.training.fleet import Fleet
from reproduction.table3.bank import Bank
from reproduction.table3.tasks import DELTA, GridSetting, Split, TableTask

_IMAGES = 10_000  # test images evaluated at once


class Piece(NamedTuple):
    """One training to make."""

    epsilon: float
    place: int
    setting: GridSetting


@dataclass(frozen=True, eq=False)
class Builder:
    """Trains on ``split`` and adds the scores to ``bank``.

    Parameters
    ----------
    task : TableTask
        The task.
    split : Split
        Rows that train and rows that score.
    bank : Bank
        The bank to fill.
    save : callable
        Called with the bank after each slice.
    device : str, default="cpu"
        "cpu" or a CUDA device.
    together : int, default=256
        Approximate number of models that a slice trains side by side.
    seconds : float, optional
        No slice is started that would probably end later than this.
    say : callable, optional
        Called with lines that report progress.
    """

    task: TableTask
    split: Split
    bank: Bank
    save: Callable[[Bank], None]
    device: str = "cpu"
    together: int = 256
    seconds: float | None = None
    say: Callable[[str], None] = lambda line: None

    def build(self, epsilons: Sequence[float], repeats: int) -> bool:
        """Train what the bank lacks; return whether it is complete now."""
        scorer = _scorer(self.task, self.split, self.device)
        started, done = time.perf_counter(), 0.0
        slices = self.slices(epsilons, repeats)
        total = sum(map(self.examples, slices))
        self.say(
            f"{sum(map(len, slices))} trainings in {len(slices)} slices, "
            f"{total / 1e6:.0f} million examples"
        )
        for number, pieces in enumerate(slices):
            spent = time.perf_counter() - started
            ahead = spent * self.examples(pieces) / done if done else 0.0
            if self.seconds is not None and spent + ahead > self.seconds:
                self.say(
                    f"stopped after {spent:.0f} s: the next slice would take about {ahead:.0f} s"
                )
                return False
            self._train(pieces, scorer)
            done += self.examples(pieces)
            now = time.perf_counter() - started
            self.bank.details["seconds"] = round(
                self.bank.details.get("seconds", 0.0) + now - spent, 1
            )
            self.save(self.bank)
            levels = sorted({piece.epsilon for piece in pieces})
            self.say(
                f"slice {number + 1}/{len(slices)}: batch {pieces[0].setting.batch_size}, "
                f"ε {levels[0]:g}–{levels[-1]:g}, {len(pieces)} models, {now - spent:.1f} s, "
                f"{self.examples(pieces) / (now - spent) / 1e6:.3g} M examples/s; "
                f"{100 * done / total:.0f} % done, about {now * (total - done) / done:.0f} s left"
            )
        return True

    def slices(self, epsilons: Sequence[float], repeats: int) -> list[list[Piece]]:
        """Return the missing trainings by level bands (ascending) and batch size (descending)."""
        batches = sorted({setting.batch_size for setting in self.bank.settings}, reverse=True)
        levels = sorted(set(epsilons))
        widest = max(
            sum(setting.batch_size == batch for setting in self.bank.settings) for batch in batches
        )
        band = max(1, self.together // (widest * repeats))
        made = []
        for first in range(0, len(levels), band):
            for batch in batches:
                missing = [
                    Piece(epsilon, place, setting)
                    for epsilon in levels[first : first + band]
                    for place, setting in enumerate(self.bank.settings)
                    if setting.batch_size == batch
                    for _ in range(
                        repeats
                        - len(self.bank.scores.get(epsilon, [[]] * len(self.bank.settings))[place])
                    )
                ]
                made += [
                    missing[start : start + 2 * self.together]
                    for start in range(0, len(missing), 2 * self.together)
                ]
        return made

    def examples(self, pieces: Sequence[Piece]) -> float:
        """Return the expected number of examples that the trainings process."""
        return float(sum(piece.setting.epochs for piece in pieces) * len(self.split.X))

    def _train(
        self,
        pieces: Sequence[Piece],
        scorer: Callable[[Sequence[Mapping[str, Array]]], Sequence[float]],
    ) -> None:
        """Train one slice and record its scores."""
        configurations = [
            Configuration(
                piece.setting.learning_rate,
                piece.setting.epochs,
                piece.setting.batch_size,
                piece.setting.clip,
                epsilon=piece.epsilon,
                delta=self.bank.delta,
            )
            for piece in pieces
        ]
        model: Any = self.task.model
        if model == "cnn":
            from expost.training._torch.modules import mnist_cnn

            model = mnist_cnn
        trained = Fleet(model, configurations).train(self.split.X, self.split.y, device=self.device)
        for piece, score in zip(pieces, scorer([each.parameters for each in trained]), strict=True):
            self.bank.add(piece.epsilon, piece.place, score)


def empty_bank(
    task: TableTask,
    split: Split,
    settings: Sequence[GridSetting],
    sha256: Mapping[str, str],
    device: str,
) -> Bank:
    """Return a bank without trainings."""
    return Bank(
        task.name, len(split.X), DELTA, tuple(settings), {}, _details(task, split, sha256, device)
    )


def check_resumed(bank: Bank, fresh: Bank) -> Bank:
    """Return a bank to continue; raise an error if its task, grid or data differ."""
    for name in ("task", "n", "delta", "settings"):
        if getattr(bank, name) != getattr(fresh, name):
            raise InvalidInput(
                "resume",
                name,
                "the file was made for another task, grid or number of rows; pass another --out",
            )
    if bank.details.get("sha256") != fresh.details["sha256"]:
        raise InvalidInput(
            "resume", "sha256", "the file was made from other data; pass another --out"
        )
    return bank


def _details(
    task: TableTask, split: Split, sha256: Mapping[str, str], device: str
) -> dict[str, Any]:
    """Describe how the bank is made."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("torch", "torch") from None
    name = torch.cuda.get_device_name(device) if device != "cpu" else "CPU"
    return {
        "exactness": task.exactness,
        "accountant": LOSS_DISTRIBUTION,
        "metric": task.metric,
        "target_variance": float(np.var(split.test_y)) if task.metric == "mse" else None,
        "preparation": task.preparation,
        "scored_on": f"{len(split.test_X)} public rows",
        "seeds": "none: noise, samples and first parameters come from OS entropy; "
        "trainings cannot be repeated",
        "sha256": dict(sha256),
        "made_with": {
            "expost": __version__,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
            "device": name,
        },
        "seconds": 0.0,
    }


def _scorer(
    task: TableTask, split: Split, device: str
) -> Callable[[Sequence[Mapping[str, Array]]], Sequence[float]]:
    """Return a function that scores models on the public rows."""
    return _images_scorer(split, device) if task.model == "cnn" else _linear_scorer(task, split)


def _linear_scorer(
    task: TableTask, split: Split
) -> Callable[[Sequence[Mapping[str, Array]]], Sequence[float]]:
    """Return a function that scores linear models."""

    def score(models: Sequence[Mapping[str, Array]]) -> Sequence[float]:
        weights = np.stack([model["weight"][0] for model in models], axis=1).astype(np.float32)
        with np.errstate(all="ignore"):
            outputs = split.test_X @ weights + np.array(
                [model["bias"][0] for model in models], dtype=np.float32
            )
            if task.metric == "mse":
                return [
                    float(each)
                    for each in np.square(outputs.astype(np.float64) - split.test_y[:, None]).mean(
                        axis=0
                    )
                ]
            return [float(each) for each in ((outputs > 0) == split.test_y[:, None]).mean(axis=0)]

    return score


def _images_scorer(
    split: Split, device: str
) -> Callable[[Sequence[Mapping[str, Array]]], Sequence[float]]:
    """Return a function that scores convolutional networks."""
    import torch
    from torch.func import functional_call

    from expost.training._torch.modules import mnist_cnn

    network = mnist_cnn().to(device).eval()
    images = torch.from_numpy(split.test_X).to(device)
    labels = torch.from_numpy(split.test_y.astype(np.int64)).to(device)

    def score(models: Sequence[Mapping[str, Array]]) -> Sequence[float]:
        found = []
        with torch.inference_mode():
            for model in models:
                parameters = {
                    name: torch.from_numpy(value).to(device) for name, value in model.items()
                }
                right = [
                    (
                        functional_call(
                            network, parameters, (images[first : first + _IMAGES],)
                        ).argmax(1)
                        == labels[first : first + _IMAGES]
                    ).sum()
                    for first in range(0, len(images), _IMAGES)
                ]
                found.append(torch.stack(right).sum())
        return [float(count) / len(labels) for count in torch.stack(found).cpu()]

    return score
