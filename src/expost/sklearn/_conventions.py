"""What a search reads from an estimator: its privacy parameters, its guarantee, and its checks.

Parameters are found by name, in the estimator itself or in one step of a ``Pipeline``: ``epsilon``
(the privacy level), ``delta``, ``n_rows`` (a public number of rows) and ``target_bounds``. An
estimator states its guarantee with ``privacy_guarantee(n)`` and refuses bad rows with
``check_fit(X, y)``.

A ``Pipeline`` keeps the guarantee of its last step if the other steps learn nothing from the rows:
they are stateless (``requires_fit`` is false), a ``FrozenEstimator`` that was fitted on public
data, or "passthrough". They must treat each row alone.
Tests: ``tests/tuning/test_sklearn_search.py``.
"""

from __future__ import annotations

from typing import Any

from expost.errors import InvalidInput, MissingExtra
from expost.execution.calls import call_or_failure
from expost.privacy.guarantees import Guarantee
from expost.sklearn._rows import check_gaps

try:
    from sklearn.pipeline import Pipeline
    from sklearn.utils import get_tags
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None


def parameter(estimator: Any, name: str) -> str | None:
    """Return the full name of the parameter ``name``, or None if there is none or more than one."""
    known = [key for key in estimator.get_params() if key == name or key.endswith(f"__{name}")]
    if name in known:
        return name
    return known[0] if len(known) == 1 else None


def setting(estimator: Any, name: str) -> Any:
    """Return the value of the parameter ``name``; None if there is none."""
    full = parameter(estimator, name)
    return None if full is None else estimator.get_params()[full]


def guarantee_of(estimator: Any, n: int) -> Guarantee | None:
    """Return the guarantee that an estimator states for ``n`` rows, or None."""
    if isinstance(estimator, Pipeline):
        check_steps(estimator)
        return guarantee_of(estimator[-1], n)
    if hasattr(estimator, "privacy_guarantee"):
        stated = estimator.privacy_guarantee(n)
    else:
        own = getattr(estimator, "guarantee", None)
        stated = own() if callable(own) else own
    return stated if isinstance(stated, Guarantee) else None


def check_steps(pipeline: Any) -> None:
    """Refuse a step, other than the last, that is fitted on the rows."""
    for name, step in pipeline.steps[:-1]:
        if step is None or step == "passthrough" or type(step).__name__ == "FrozenEstimator":
            continue
        tags = call_or_failure(get_tags, step)
        if getattr(tags, "requires_fit", True):
            raise InvalidInput(
                f"step {name!r}",
                type(step).__name__,
                "it is fitted on the rows without noise; use a stateless step, or wrap one that "
                "was fitted on public data in sklearn.frozen.FrozenEstimator",
            )


def last_step(estimator: Any) -> Any:
    """Return the estimator, or the last step of a pipeline."""
    return estimator[-1] if isinstance(estimator, Pipeline) else estimator


def before_last_step(estimator: Any, X: Any) -> Any:
    """Return rows as the last step of a pipeline takes them; the other steps learn nothing."""
    if isinstance(estimator, Pipeline):
        for _, step in estimator.steps[:-1]:
            if step is not None and step != "passthrough":
                X = step.transform(X)
    return X


def check_fit(estimator: Any, X: Any, y: Any) -> None:
    """Refuse what a fit of the estimator would refuse, before anything is charged."""
    last, rows = last_step(estimator), before_last_step(estimator, X)
    if hasattr(last, "check_fit"):
        last.check_fit(rows, y)
    elif last is not estimator and not hasattr(rows, "toarray"):
        check_gaps(last, rows)
