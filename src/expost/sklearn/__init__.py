"""Estimators and a private hyperparameter search with scikit-learn's interface.

Needs the extra ``sklearn``: ``pip install 'expost[sklearn]'``.

* :class:`ExPostSearch`: private grid search over estimators that keep a privacy guarantee.
* :class:`DPLogisticRegression`, :class:`DPLinearRegression`: differentially private linear models.
* :func:`public_baseline`: the score of the non-private counterpart on public rows.

Raises ``MissingExtra`` at import if scikit-learn is not installed.
"""

from expost.errors import MissingExtra

try:
    from expost.sklearn._estimators import (
        DPLinearRegression,
        DPLogisticRegression,
        public_baseline,
    )
    from expost.sklearn._search import ExPostSearch
except ModuleNotFoundError as error:
    if not str(error.name).startswith("sklearn"):
        raise
    raise MissingExtra("scikit-learn", "sklearn") from None

__all__ = ["DPLinearRegression", "DPLogisticRegression", "ExPostSearch", "public_baseline"]
