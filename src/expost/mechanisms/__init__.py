"""Mechanisms: a privacy guarantee and a call ``(data, randomness) -> output``.

``protocol``        what a mechanism is; estimates with their noise; FAILED and NOTHING
``discrete_noise``  discrete Laplace and Gaussian noise on integers and on a rational grid
``noise_paths``     one query at several noise levels, coarse to fine, for the price of the last one
"""

from expost.mechanisms.discrete_noise import DiscreteGaussian, DiscreteLaplace, Query
from expost.mechanisms.protocol import Estimate, Mechanism

__all__ = ["DiscreteGaussian", "DiscreteLaplace", "Estimate", "Mechanism", "Query"]
