"""Random numbers for privacy: entropy of the operating system and exact samplers on rationals.

``source``    bits from the operating system; reproducible streams for runs and simulations
``coins``     one exact draw: coins, discrete noise, laws known by certified brackets; subsets
``samplers``  many exact draws at once; exactly normal noise, rounded to a lattice
"""

from expost.randomness.source import Randomness, SimulationRandomness

__all__ = ["Randomness", "SimulationRandomness"]
