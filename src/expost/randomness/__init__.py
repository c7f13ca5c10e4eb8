"""Random numbers for privacy: entropy of the operating system and exact samplers on rationals.

``source``          bits from the operating system; reproducible streams for runs and simulations
``coins``           Bernoulli, geometric, discrete Laplace and discrete Gaussian, one at a time
``samplers``        many exact draws at once
``inverse_cdf``     one exact draw from certified brackets (binomial, Poisson, …); random subsets
``exact_gaussian``  exactly normal noise, rounded to a lattice
"""

from expost.randomness.source import Randomness, SimulationRandomness

__all__ = ["Randomness", "SimulationRandomness"]
