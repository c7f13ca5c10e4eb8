"""Accounting: calibration of the paper's grid against dp_accounting, and pricing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import dp_accounting
import numpy as np

from benchmarks.measure import Row, interleaved
from expost import ZCDP, Candidate, RandomDropping
from expost.privacy.dpsgd import RENYI, calibrate_noise, gaussian_for
from expost.privacy.loss_distribution import least_noise

ROWS, DELTA = 60_000, 1e-6
GRID = [
    (batch / ROWS, math.ceil(epochs * ROWS / batch), level / 10)
    for batch, epochs, level in product((32, 64, 128, 256, 512, 1000), (1, 5, 10), range(1, 11))
]


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    yield calibration()
    yield loss_distributions()
    yield from pricing()


def calibration() -> Row:
    """Calibrate the 180 distinct (rate, steps, ε) of the paper's grid.

    dp_accounting does six of them, with its default orders; its time is scaled to all 180.
    """
    rates, steps, epsilons = (np.array(column) for column in zip(*GRID, strict=True))
    sample = GRID[:: len(GRID) // 6][:6]

    def theirs() -> None:
        for rate, count, epsilon in sample:
            dp_accounting.calibrate_dp_mechanism(
                dp_accounting.rdp.RdpAccountant,
                lambda noise, rate=rate, count=count: dp_accounting.SelfComposedDpEvent(
                    dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)),
                    count,
                ),
                epsilon,
                DELTA,
            )

    ours, peer = interleaved(
        lambda: calibrate_noise(
            sampling_rates=rates, steps=steps, epsilons=epsilons, delta=DELTA, accountant=RENYI
        ),
        theirs,
        turns=3,
    )
    what = "noise for the paper's 180 DP-SGD settings, 201 orders"
    return Row(
        what,
        ours,
        "dp_accounting, 156 orders, 6 of 180 scaled",
        peer * len(GRID) / len(sample),
        "≥ 40×",
    )


def loss_distributions() -> Row:
    """Calibrate the same settings by privacy loss distributions.

    Ours does all 180, with nothing kept from an earlier turn. dp_accounting does six of them, with
    its default lattice of 1e-4; its time is scaled to all 180. Its noise must not be lower than
    ours by more than 1e-4: that is the equal accuracy.
    """
    rates, steps, epsilons = (np.array(column) for column in zip(*GRID, strict=True))
    places = [len(GRID) * part // 6 + 15 for part in range(6)]
    noises: dict[str, Any] = {}

    def ours() -> None:
        least_noise.cache_clear()
        noises["ours"] = calibrate_noise(
            sampling_rates=rates, steps=steps, epsilons=epsilons, delta=DELTA
        )

    def theirs() -> None:
        noises["theirs"] = [
            dp_accounting.calibrate_dp_mechanism(
                dp_accounting.pld.PLDAccountant,
                lambda noise, rate=rate, count=count: dp_accounting.SelfComposedDpEvent(
                    dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)),
                    count,
                ),
                epsilon,
                DELTA,
            )
            for rate, count, epsilon in (GRID[place] for place in places)
        ]

    seconds, peer = interleaved(ours, theirs, turns=1)
    assert np.all(noises["ours"][places] <= np.array(noises["theirs"]) * (1 + 1e-4))
    return Row(
        "noise for the paper's 180 DP-SGD settings, privacy loss distributions",
        seconds,
        "dp_accounting's privacy loss accountant, 6 of 180 scaled",
        peer * len(GRID) / len(places),
        "≥ 20×",
    )


def pricing() -> Iterator[Row]:
    """Price 1,620 candidates in ten groups, and 10^6 candidates in a thousand groups."""
    promises = [gaussian_for(level / 10, DELTA) for level in range(1, 11)]
    ten = [Candidate(_never, guarantee=promise) for promise in promises for _ in range(162)]
    for method, target in (("closed-form", "≈ 0.1 s"), ("sharp", "≈ 1 s")):
        selector = RandomDropping(overhead=0.0026, delta=DELTA, method=method)
        (seconds,) = interleaved(lambda selector=selector: selector.charges(ten), turns=3)
        yield Row(
            f"Rényi charges of 1,620 candidates in 10 groups, {method}", seconds, target=target
        )
    many = [ZCDP(float(rho)) for rho in np.geomspace(1e-4, 1e-1, 1000)]
    million = [Candidate(_never, repeats=1000, guarantee=promise) for promise in many]
    for method in ("closed-form", "sharp"):
        selector = RandomDropping(overhead=0.0026, delta=DELTA, method=method)
        (seconds,) = interleaved(lambda selector=selector: selector.charges(million), turns=1)
        yield Row(
            f"Rényi charges of 10^6 candidates in 10^3 groups, {method}",
            seconds,
            target="seconds to a minute",
        )


def _never(data: Any, randomness: Any) -> float:
    """Stand in for a mechanism that is priced but never run."""
    raise AssertionError("pricing runs nothing")
