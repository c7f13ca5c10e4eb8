"""Rows of large tables, and of jobs with an executor: a step and a look are sums over parts.

The rows are read once, encoded, mapped to features and rounded, piece by piece. What is kept are
whole numbers (:mod:`expost.training.lattice_rows`) in parts (:mod:`expost.execution.parts`). Second
moments are added up while the rows are read. Gradients, moments and counts are exact integers, so
the model is the same to the last bit as with arrays in memory, whatever the pieces, the number of
threads and the executor.

All rows are read before anything is charged. Later, nothing can fail because of a file.

Tests: ``tests/tuning/test_large_tables.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from expost.arrays import Array, Floats, Integers
from expost.execution.parts import Parts, for_each
from expost.features import Features
from expost.selection.held_out import SHARES
from expost.training.lattice_rows import CompactRows, whole_rows
from expost.training.progressive import LinearTraining, ProgressivePath, TrainingRows
from expost.training.second_moments import SecondMoments
from expost.tuning.rows.job_rows import JobRows, Piece
from expost.tuning.runs.run_attempts import Step

LARGE = 2**30
"""Features that would need more bytes as doubles are kept as compact rows in parts."""


def in_parts(rows: JobRows, features: Features | None, executor: Any) -> bool:
    """Return whether rows are kept in parts; by public facts alone."""
    total = (rows.places if rows.public else rows.places + rows.score_places) * rows.most
    columns = prod(rows.X.shape[1:])
    width = columns if features is None else features.width(columns)
    return executor is not None or total * width * 8 > LARGE


class SpreadRows:
    """The rows of a job in parts, for each of the features that its requests use.

    A context manager: leaving the block deletes the rows.
    """

    def __init__(self, executor: Any = None, threads: int | None = None) -> None:
        self._executor, self._threads = executor, threads
        self._open = ExitStack()
        self._training: dict[Features, tuple[LinearTraining, Parts]] = {}
        self._scoring: dict[Features | None, Parts] = {}  # None: rows as they are encoded
        self._moments: dict[SecondMoments, Integers] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> SpreadRows:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self._training, self._scoring, self._moments = {}, {}, {}

    def read(self, rows: JobRows, steps: Sequence[Step]) -> None:
        """Read the rows, once, for all requests of a job."""
        for step in steps:
            path: Any = step.candidates[0].mechanism.path  # type: ignore[union-attr]
            features = None
            if isinstance(path, ProgressivePath):
                features = path.rows.features  # type: ignore[attr-defined]
                assert isinstance(path.training, LinearTraining)  # networks keep whole rows
                # Class weights do not matter for which targets are valid.
                training = replace(path.training, class_weights=None)
                self._training.setdefault(features, (training, self._new_parts()))
            else:
                moments = path.statistic.moments
                self._moments[moments] = np.zeros(1, dtype=np.int64)
            if features not in self._scoring:
                self._scoring[features] = self._new_parts()
        for_each(self._add, rows.pieces(), self._threads)

    def training(self, features: Features) -> SpreadTraining:
        """Return the training rows with some features."""
        return SpreadTraining(self._training[features][1])

    def moments(self, moments: SecondMoments) -> Floats:
        """Return the second moments of the training rows."""
        total = self._moments[moments]
        none = moments.whole_sums(np.zeros((0, moments.features)), np.zeros(0))
        return moments.from_whole(none + total)

    def count(
        self, features: Features | None, function: Callable[..., int], *arguments: Any
    ) -> int:
        """Return the sum of ``function(X, y, shares, …)`` over the held-out rows in parts."""
        return sum(self._scoring[features].map(_count, function, *arguments))

    def _new_parts(self) -> Parts:
        return self._open.enter_context(Parts(self._executor, self._threads))

    def _add(self, piece: Piece) -> None:
        """Add a piece of the rows to everything that is made of them."""
        X, y, score_X, score_y, *both = piece()
        shares, held = both or (None, None)
        for features, parts in self._scoring.items():
            if len(score_X) and features is None:
                parts.add((score_X, score_y, held))
            elif len(score_X):
                assert features is not None
                parts.add((CompactRows.of(whole_rows(_features(features, score_X))), score_y, held))
        for features, (training, parts) in self._training.items():
            part = None if shares is None else shares / SHARES
            rows = TrainingRows.of(_features(features, X), y, training, shares=part, compact=True)
            parts.add(rows)
        for moments in self._moments:
            some = moments.whole_sums(X, y, None if shares is None else shares / SHARES)
            with self._lock:
                self._moments[moments] = self._moments[moments] + some


class SpreadTraining:
    """Training rows in parts; the gradient is the sum over the parts."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def gradient_sum(self, weights: Floats, training: LinearTraining) -> Integers:
        """Return the sum of the clipped gradients, as :meth:`TrainingRows.gradient_sum` does."""
        total = np.zeros((training.width, training.outputs), dtype=object)
        for part in self._parts.map(TrainingRows.gradient_sum, weights, training):
            total = total + part
        return total


def _features(features: Features, X: Array) -> Floats:
    """Return the features of encoded rows."""
    return features.transform_cells(X.reshape(len(X), prod(X.shape[1:])))


def _count(part: tuple[Any, ...], function: Callable[..., int], *arguments: Any) -> int:
    """Return what a function counts in one part."""
    return function(*part, *arguments)
