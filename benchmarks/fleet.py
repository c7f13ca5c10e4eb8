"""The fleet against Opacus: time per example, measured in turns in one run.

Run: python -m benchmarks.fleet --device cpu|cuda [--quick | --grid]

The data is synthetic, with the shapes of (a) a linear regression of 100,000 × 77, (b) the CNN of
Opacus' MNIST example, (c) a linear classifier of 6,000 × 5,000. Every batch size is measured at the
largest fleet, every fleet size at batch 256.

Opacus runs in three ways: as documented (``PrivacyEngine``, ``DPDataLoader``); hand-fed with
``X[idx]`` from Poisson samples drawn beforehand, which is faster; and hand-fed by one process per
core, all at once. In one process it uses the number of torch threads (1 or all) that is faster on
this machine.

The time of the fleet includes everything that ``train`` does: checks, sampling, cryptographic
noise, promises (cached after the first call). On a busy machine, wall time is unfair to whoever
uses more cores, so CPU time is measured too. The least work per example (``least_work`` in
benchmarks/fleet_cases.py) is compared with the speed of a large matrix product, and of a large copy
or sum, measured in every turn of the same run.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.fleet_cases import Case, Peaks, case_of, least_work
from benchmarks.measure import Contender, Floor, Row, clocked, interleaved
from benchmarks.opacus_peers import Crew, better_threads, documented, hand_fed
from expost.randomness.source import Randomness, SimulationRandomness
from expost.training import Configuration, Fleet

TARGETS = {
    "cpu": {("a", 256): "≥ 40×", ("b", 256): "≥ 2.5×", ("c", 256): "≥ 12×"},
    "cuda": {
        ("a", 256): "≥ 1000×",
        ("b", 256): "≥ 70×",
        ("b", 1000): "≥ 18×",
        ("c", 256): "≥ 300×",
    },
}
SIZES = {"cpu": (1, 4, 16, 64), "cuda": (1, 8, 64, 512)}
CUDA_EPOCHS, CUDA_EXAMPLES = (
    {"a": 5, "b": 1, "c": 20},
    {"a": 256_000_000, "b": 31_000_000, "c": 60_000_000},
)
QUICK_SIZES = {"cpu": {"a": 16, "b": 4, "c": 16}, "cuda": {"a": 512, "b": 64, "c": 512}}


def fleet(
    case: Case, batch: int, models: int, device: str, randomness: Randomness | None = None
) -> Contender:
    """Return a run of the fleet; the number of examples is the expected one."""
    each = max(batch, case.fleet_examples // models)
    if device != "cpu":
        # About one real training, so that copying data and recording graphs are realistic.
        each = max(
            30 * batch, min(CUDA_EPOCHS[case.key] * len(case.X), CUDA_EXAMPLES[case.key] // models)
        )
    settings = Configuration(0.1, each / len(case.X), batch, 1.0, noise_multiplier=1.0)
    together = Fleet(
        case.model, [settings] * models, loss=case.loss if callable(case.model) else None
    )

    def run() -> None:
        together.train(
            case.X, case.y, device=device, randomness=randomness, simulation=randomness is not None
        )

    return Contender("expost", run, models * settings.plan(len(case.X)).steps * batch)


def compare(
    case: Case, batch: int, models: int, device: str, turns: int, crew: Crew, peaks: Peaks
) -> Iterator[Row]:
    """Compare the fleet with each way to run Opacus, in turns."""
    ours, fed, loaded = (
        fleet(case, batch, models, device),
        hand_fed(case, batch, device),
        documented(case, batch, device),
    )
    peers = [fed, loaded, crew.contender(case, batch)]
    torch.set_num_threads(better_threads(fed.run) if device == "cpu" else torch.get_num_threads())
    (wall, cpu), *others, _ = clocked(
        [ours, *peers, Contender("a look at the peaks", peaks.look, 1)], turns
    )
    flops, moved = least_work(case)
    floor = Floor(flops, moved, flops / wall / peaks.flops, moved / wall / peaks.bytes)
    plural = "s" if models > 1 else ""
    what = f"({case.key}) {case.name}, batch {batch}, {models} model{plural}, an example"
    for place, (peer, (peer_wall, peer_cpu)) in enumerate(zip(peers, others, strict=True)):
        aimed = place == 0 and models >= QUICK_SIZES[device][case.key]
        target = TARGETS[device].get((case.key, batch), "–") if aimed else "–"
        # With a GPU, the CPU time of the host says little.
        times = (cpu, peer_cpu) if device == "cpu" else (None, None)
        yield Row(what, wall, peer.name, peer_wall, target, *times, floor)


def strength(case: Case, turns: int) -> Iterator[Row]:
    """Measure the cost of cryptographic noise: Gaussians alone, and in a training."""
    from expost.training._native.noise import add_lattice_noise, streams
    from expost.training.exact_noise import lattice_of

    out, open_, lattice = np.zeros(100_000), np.zeros(100_000, dtype=np.uint8), lattice_of(1.0, 1.0)
    strong, fast = streams([Randomness()])[0], streams([SimulationRandomness(0)])[0]
    seconds = interleaved(
        lambda: add_lattice_noise(strong, out, open_, lattice),
        lambda: add_lattice_noise(fast, out, open_, lattice),
        turns=5 * turns,
    )
    yield Row(
        "an exact rounded Gaussian, ChaCha20",
        seconds[0] / len(out),
        "xoshiro256++",
        seconds[1] / len(out),
    )
    ours, simulated = (
        fleet(case, 256, 16, "cpu"),
        fleet(case, 256, 16, "cpu", SimulationRandomness(0)),
    )
    (wall, cpu), (other_wall, other_cpu) = clocked([ours, simulated], turns)
    what = f"({case.key}) batch 256 with ChaCha20, an example"
    yield Row(
        what, wall, "with xoshiro256++", other_wall, cpu_seconds=cpu, peer_cpu_seconds=other_cpu
    )


def grid() -> Row:
    """Measure a grid of 1,620 configurations of (a), 864 million examples, with calibration."""
    case = case_of("a", True)
    settings = [
        Configuration(rate, epochs, batch, clip, epsilon=epsilon, delta=1e-6)
        for rate in (0.001, 0.01, 0.1)
        for epochs in (1, 5, 10)
        for batch in (32, 64, 128, 256, 512, 1000)
        for clip in (0.1, 1.0, 10.0)
        for epsilon in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    ]
    start = time.perf_counter(), time.process_time()
    Fleet("linear", settings).train(case.X, case.y)
    wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    what = f"(a) grid of {len(settings):,} configurations, end to end with calibration"
    return Row(what, wall, target="≤ 180 s", cpu_seconds=cpu)


def rows() -> Iterator[Row]:
    """Yield the rows of the short version, for ``make bench``."""
    yield from measure("cpu", quick=True)


def measure(
    device: str, *, quick: bool, keys: str = "abc", turns: int | None = None
) -> Iterator[Row]:
    """Yield all rows; batch 256 at the largest fleet comes first, in case the run is cut short."""
    warnings.filterwarnings("ignore", message="Full backward hook|Secure RNG")
    turns, peaks = turns or ((3 if quick else 5) if device == "cpu" else 2), Peaks(device)
    *smaller, largest = SIZES[device]
    shapes = [
        (256, largest),
        (1000, largest),
        *((256, models) for models in reversed(smaller)),
        (32, largest),
    ]
    cases = {key: case_of(key, quick) for key in keys}
    with Crew(device, quick) as crew:
        for batch, models in shapes[:1] if quick else shapes:
            for key, case in cases.items():
                together = QUICK_SIZES[device][key] if quick else models
                yield from compare(case, batch, together, device, turns, crew, peaks)
    if device == "cpu" and "a" in cases:
        yield from strength(cases["a"], turns)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device")
    parser.add_argument(
        "--quick", action="store_true", help="only batch 256 and one fleet size, with fewer turns"
    )
    parser.add_argument(
        "--grid", action="store_true", help="only the whole grid of (a), end to end, on the CPU"
    )
    parser.add_argument("--cases", default="abc", help="the letters of the cases, e.g. b")
    parser.add_argument("--turns", type=int, help="turns of each contender")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    table: dict[tuple[str, str], dict[str, object]] = {}
    if arguments.json and arguments.json.is_file() and arguments.cases != "abc":
        # rows of cases that are not measured now stay
        known = json.loads(arguments.json.read_text(encoding="utf-8"))
        table = {(row["what"], row["peer"]): row for row in known}
    for row in (
        [grid()]
        if arguments.grid
        else measure(
            arguments.device, quick=arguments.quick, keys=arguments.cases, turns=arguments.turns
        )
    ):
        print(
            "  ".join((*row.cells(), f"{1 / row.seconds:,.0f} per second", *row.more_cells())),
            flush=True,
        )
        table[row.what, row.peer] = row.as_dict()
        if arguments.json:
            text = json.dumps(list(table.values()), indent=2) + "\n"
            arguments.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
