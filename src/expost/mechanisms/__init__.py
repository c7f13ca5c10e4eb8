"""Mechanisms: a privacy guarantee and a call ``(data, randomness) -> output``.

``protocol``        what a mechanism is; FAILED and NOTHING
``discrete_noise``  discrete Laplace and Gaussian noise on integers and on a rational grid; paths of
                    noise: one query at several levels, for the charge of the last one
"""

from expost.mechanisms.discrete_noise import DiscreteGaussian, DiscreteLaplace, Estimate, Query
from expost.mechanisms.protocol import Mechanism

__all__ = ["DiscreteGaussian", "DiscreteLaplace", "Estimate", "Mechanism", "Query"]
