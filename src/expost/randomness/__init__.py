"""Coins nobody can predict or distort: OS entropy through exact samplers on rationals.

``source``     where bits come from (OS entropy; a seeded stream for simulations only)
``coins``      Bernoulli, geometric, discrete Laplace and Gaussian, one draw at a time
``laws``       probability laws as certified brackets, to any precision
``inversion``  one exact draw from such a law (binomial, Poisson, …), and random subsets
``vectorised`` many exact draws at once
"""

from expost.randomness.source import Randomness, SimulationRandomness

__all__ = ["Randomness", "SimulationRandomness"]
