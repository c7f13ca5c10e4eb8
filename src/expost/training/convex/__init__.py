"""Linear models by regularised convex minimisation, with a certified sensitivity.

=================  =================================================================================
preprocessing      rows to norm at most 1, by public rules; bad rows become zero rows
problem            loss, gradient, smoothness and Lipschitz bounds of logistic, softmax and squared
solver             a point whose distance to the minimiser is bounded by a public tolerance
class_moments      classification by least squares, from the second moments of the rows
sufficient_sums    regression by least squares, from the second moments of rows and target
=================  =================================================================================

The noise that makes these private is added by :class:`expost.selection.noise_path.NoisePath`.
"""

from expost.training.convex.class_moments import ClassMoments
from expost.training.convex.preprocessing import Preprocessing
from expost.training.convex.problem import ConvexProblem
from expost.training.convex.solver import minimise
from expost.training.convex.sufficient_sums import SecondMoments

__all__ = ["ClassMoments", "ConvexProblem", "Preprocessing", "SecondMoments", "minimise"]
