"""Noise reduction as a selector: one query at several noise levels, from coarse to fine.

Only the last level that was looked at is paid. The guarantee, the assumptions and the tests are
stated in :class:`NoiseReduction`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from expost.errors import InvalidCandidate, InvalidInput
from expost.execution.calls import call_or_failure, settle_failure
from expost.execution.engine import Outcome, ReleaseRule, Run
from expost.mechanisms.discrete_noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    DiscreteNoise,
    gaussian_path,
    laplace_path,
)
from expost.privacy.charges import Charges
from expost.randomness.source import Randomness, require_protection
from expost.selection.candidate import check_goal, check_noise_levels
from expost.selection.release import Release
from expost.selection.selector import Candidates, Draws, Selector


@dataclass(frozen=True)
class NoiseReduction(Selector):
    """Refine one noisy answer until its score reaches ``at_least``, and release that answer.

    The candidates are the same ``Query`` under ``DiscreteLaplace`` with increasing ε, or under
    ``DiscreteGaussian`` with increasing ρ.

    Parameters
    ----------
    at_least : float, optional
        The score that an answer must reach. Required by :meth:`select`; :meth:`refine` does not use
        it.

    Notes
    -----
    The noise of the levels is coupled (:mod:`expost.mechanisms.discrete_noise`), so outcome i costs
    ε_i (or ρ_i), and "nothing" costs the last. The score receives an ``Estimate``, which carries
    its noise scale.

    It is assumed that the query's sensitivity (ℓ1 for Laplace, ℓ2 for Gaussian) is as stated.
    Tests: ``tests/theorems/test_pure.py``, ``tests/mechanisms/test_noise_paths.py``.
    """

    at_least: float | None = None
    name: ClassVar[str] = "noise-reduction"

    def __post_init__(self) -> None:
        check_goal(self.at_least)

    def refine(
        self,
        candidates: Candidates,
        data: Any,
        *,
        randomness: Randomness | None = None,
        simulation: bool = False,
    ) -> Iterator[Release]:
        """Yield the answers from coarse to fine, on demand.

        Stop when an answer is good enough, and pay for that one only.

        Parameters
        ----------
        candidates : sequence of Candidate
            The noise levels.
        data : object
            Passed to the query as is.
        randomness : Randomness, optional
            Source of the noise; by default the entropy of the operating system.
        simulation : bool
            True allows seeded randomness.

        Yields
        ------
        Release
            The answer of the next level, without a score, and its charge.
        """
        checked = self._check(candidates)
        charges = self._price(checked)
        source = require_protection(randomness, simulation=simulation)
        for run in self._runs(checked, charges, self._draw(checked, source)):
            value = settle_failure(call_or_failure(run.call, data, source), run.index, None)
            yield self._release(checked, charges, Outcome(run.index, value, None, None), source)

    def _price(self, candidates: Candidates) -> Charges:
        """Charge each level its own guarantee; "nothing" costs the last."""
        _levels(candidates)
        guarantees = [candidate.guarantee for candidate in candidates]
        return Charges.from_list(guarantees, guarantees[-1])

    def _theorem(self, candidates: Candidates) -> str:
        """Return the name of the result for Laplace or Gaussian noise."""
        if _levels(candidates)[0].law == "laplace":
            return (
                "Laplace noise reduction (Koufogiannis et al. 2016; Whitehouse et al. 2019), "
                "discrete form"
            )
        return "Brownian noise reduction (Whitehouse et al. 2022), discrete Gaussian increments"

    def _draw(self, candidates: Candidates, randomness: Randomness) -> Draws:
        """Draw one coupled noise path per dimension of the query."""
        levels = _levels(candidates)
        path = laplace_path if levels[0].law == "laplace" else gaussian_path
        spreads = [level.spread for level in levels]
        paths = [path(spreads, randomness) for _ in range(levels[0].query.dimension)]
        return {
            "noise": [[z.as_integer_ratio() for z in level] for level in zip(*paths, strict=True)]
        }

    def _runs(self, candidates: Candidates, charges: Charges, draws: Draws) -> Sequence[Run]:
        """Return one run per level, from coarse to fine."""
        return [
            Run(index, _Level(level, tuple(Fraction(*ratio) for ratio in noise)))
            for index, (level, noise) in enumerate(
                zip(_levels(candidates), draws["noise"], strict=True)
            )
        ]

    def _rule(self, candidates: Candidates) -> ReleaseRule:
        """Release the first level that passes, or nothing."""
        if self.at_least is None:
            raise InvalidInput(
                "at_least", None, "give the number that a score must reach, or use refine()"
            )
        return ReleaseRule.FIRST_PASS_OR_NOTHING


@dataclass(frozen=True, repr=False)
class _Level:
    """The answer of one level with its part of the noise path; secret, so it has no repr."""

    level: DiscreteNoise
    noise: tuple[Fraction, ...]

    def __call__(self, data: Any, randomness: Randomness) -> Any:
        return self.level.answer(data, self.noise)


def _levels(candidates: Candidates) -> list[DiscreteNoise]:
    """Return the candidates' mechanisms if they are one query at increasing ε (or ρ)."""
    levels = [
        candidate.mechanism
        for candidate in candidates
        if isinstance(candidate.mechanism, (DiscreteLaplace, DiscreteGaussian))
    ]
    if len(levels) < len(candidates) or len({type(level) for level in levels}) > 1:
        raise InvalidCandidate(
            "mechanism", "other mechanisms", "give only DiscreteLaplace, or only DiscreteGaussian"
        )
    if any(level.query != levels[0].query for level in levels):
        raise InvalidCandidate("query", "several queries", "all levels must ask the same Query")
    check_noise_levels(candidates)
    return list(levels)
