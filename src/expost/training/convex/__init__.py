"""Least squares from noisy second moments, for classification and regression.

=================  =================================================================================
preprocessing      rows to norm at most 1, by public rules; bad rows become zero rows
moments            solving noisy normal equations
class_moments      classification by least squares, from the second moments of the rows
sufficient_sums    regression by least squares, from the second moments of rows and target
=================  =================================================================================

The noise that makes these private is added by :class:`expost.selection.noise_path.NoisePath`.
"""

from expost.training.convex.class_moments import ClassMoments
from expost.training.convex.preprocessing import Preprocessing
from expost.training.convex.sufficient_sums import SecondMoments

__all__ = ["ClassMoments", "Preprocessing", "SecondMoments"]
