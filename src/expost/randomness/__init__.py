"""Random numbers for privacy: entropy of the operating system and exact samplers on rationals.

``source``         random bits from the operating system; a seeded stream for simulations
``keyed``          reproducible randomness for each run, from the secret key of its selection
``coins``          Bernoulli, geometric, discrete Laplace and discrete Gaussian, one draw at a time
``distributions``  probabilities as certified brackets, to any precision
``inverse_cdf``    one exact draw from such a distribution (binomial, Poisson, …); random subsets
``samplers``       many exact draws at once
"""

from expost.randomness.source import Randomness, SimulationRandomness

__all__ = ["Randomness", "SimulationRandomness"]
