"""Estimators and a private search with scikit-learn's interface (extra ``[sklearn]``)."""

from expost.sklearn._estimators import DPLinearRegression, DPLogisticRegression
from expost.sklearn._search import ExPostSearch

__all__ = ["DPLinearRegression", "DPLogisticRegression", "ExPostSearch"]
