"""The Optuna door with a row that makes a candidate raise: the study keeps the claim."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

pytest.importorskip("optuna")

import optuna
from optuna.distributions import CategoricalDistribution

from expost import Candidate, PureDP, RandomDropping
from expost.integrations.optuna import PrivateStudy
from tests.hostile.acts import SECRET
from tests.hostile.judge import within_claim

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Raises:
    """Raises with probability 0.8 or 0.2, as a row says: ln 4-DP."""

    guarantee = PureDP(math.log(4))

    def __call__(self, data: Any, randomness: Any) -> float:
        if random.SystemRandom().random() < (0.8 if max(data) > 0.5 else 0.2):
            raise ValueError(SECRET)
        return 1.0


def test_a_row_that_makes_candidates_raise() -> None:
    """What the study stores tells as much as the release, and quotes nothing."""
    space = {"depth": CategoricalDistribution([1, 2])}

    def request(rows: Any, randomness: Any) -> Any:
        study = PrivateStudy(space)
        release = study.search(
            lambda params: Candidate(Raises(), params), RandomDropping(0.5), rows, score=float
        )
        (trial,) = study.study.trials
        assert (trial.value is None) == (release.score is None)
        assert SECRET not in str(trial)
        return release

    within_claim(
        request,
        [0.0] * 6,
        [0.0] * 5 + [1.0],
        runs=80,
        events=lambda value: value == 1.0,
        simulation_seed=None,
    )
