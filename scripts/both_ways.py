"""The bill of both ways side by side: the digits job by noise reduction, by DP-SGD, and by auto.

A simulation with seeded randomness, so that it can be repeated: ``python -m scripts.both_ways``.
"""

from __future__ import annotations

import warnings

import expost
from expost.randomness.source import SimulationRandomness
from scripts.noise_reduction import job_of


def main() -> None:
    """Run the three jobs once and print what each cost."""
    warnings.simplefilter("ignore")
    print(f"{'training':<18}{'passed':<8}{'ε spent':>9}{'requests':>10}   setting")
    for training in ("noise-reduction", "dp-sgd", "auto"):
        result = expost.tune(
            job_of("digits", training), randomness=SimulationRandomness(1), simulation=True
        )
        setting = ", ".join(f"{key} = {value:.3g}" for key, value in result.params.items())
        passed = "yes" if result.passed else "no"
        spent, requests = result.spent.epsilon, len(result.attempts)
        print(f"{training:<18}{passed:<8}{spent:>9.3f}{requests:>10}   {setting}")


if __name__ == "__main__":
    main()
