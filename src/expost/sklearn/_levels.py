"""How the candidates of a search are sorted into privacy levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from expost.errors import InvalidInput
from expost.selection.candidate import Candidate


def level_by(parameter: str | None, delta: float | None) -> Callable[[Candidate], float]:
    """Return a function that names the level of a candidate.

    Under Rényi DP it is the value of ``parameter``, if there is one. Otherwise it is the ε of the
    candidate's promise: its own under pure DP, else that at ``delta``.
    """
    if parameter is not None and delta is not None:
        return lambda each: float(each.params[parameter])

    def by_promise(candidate: Candidate) -> float:
        pure = candidate.guarantee.as_pure()
        if pure is not None:
            return pure.epsilon
        return float(f"{candidate.guarantee.to_approx(delta or 0).epsilon:.6g}")

    return by_promise


def check_delta(candidates: Sequence[Candidate], delta: float | None) -> None:
    """Raise an error if promises other than pure DP come without a δ."""
    if delta is None and candidates[0].guarantee.as_pure() is None:
        raise InvalidInput("delta", None, "pass it: the estimators promise Rényi DP or zCDP")
