"""Doubling: run one candidate after another and pay for all (the paper's baseline).

The guarantee, the assumptions and the tests are stated in :class:`Doubling`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from expost.errors import InvalidInput
from expost.execution.engine import ReleaseRule
from expost.privacy.charges import Charges
from expost.randomness.source import Randomness
from expost.selection.candidate import all_copies, check_goal
from expost.selection.selector import Candidates, Draws, Selector


@dataclass(frozen=True)
class Doubling(Selector):
    """Run the candidates in order until one reaches ``at_least``, release it, and pay for all.

    Parameters
    ----------
    at_least : float
        The score that a run must reach to be released.

    Notes
    -----
    The guarantee is sequential composition with a stopping rule. Outcome i costs the sum of the
    guarantees up to candidate i (all its copies), "nothing" the sum of all. For (ε, δ) guarantees
    every outcome carries the δ of the whole list, because the ex-post definition has one δ. The
    method is called doubling because each candidate usually has twice the ε of the one before.

    It is assumed that candidates keep their guarantees and that scores depend on outputs alone.
    Charges are rounded up. Tests: ``tests/theorems/test_pure.py``.

    References
    ----------
    Whitehouse et al. 2019.
    """

    at_least: float
    name: ClassVar[str] = "doubling"
    rule: ClassVar[ReleaseRule] = ReleaseRule.FIRST_PASS_OR_NOTHING

    def __post_init__(self) -> None:
        if self.at_least is None:
            raise InvalidInput("at_least", None, "give the number that a score must reach")
        check_goal(self.at_least)

    def _price(self, candidates: Candidates) -> Charges:
        """Charge the sum of the guarantees up to each candidate."""
        all_copies(candidates)
        charges = list(
            accumulate(candidate.guarantee * candidate.repeats for candidate in candidates)
        )
        total = charges[-1]
        if total.shared_delta is not None:
            charges = [charge.to_approx(total.shared_delta) for charge in charges]
        return Charges.from_list(charges, total)

    def _theorem(self, candidates: Candidates) -> str:
        """Return the name of the result."""
        return "sequential composition, stopped at the first pass"

    def _draw(self, candidates: Candidates, randomness: Randomness) -> Draws:
        """Draw nothing: every copy is run until one passes."""
        return {}
