"""Running together: a mechanism like a fleet gives what single runs would give.

It also stops, records and fails like single runs.
"""

import asyncio
from concurrent import futures
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest

from expost import FAILED, Candidate, PureDP, RandomDropping, SimulationRandomness


@dataclass
class Fleet:
    """Counts how often it was called; output = number."""

    number: float
    log: list = field(default_factory=list)
    guarantee = PureDP(0.001)
    together_key = "fleet"

    def checkpoint_identity(self):
        """What it has counted so far is not part of what it is."""
        return self.number

    def __call__(self, data, randomness):
        raise AssertionError("a fleet is not run one by one")

    def run_together(self, calls, data, randomness):
        self.log.append(len(calls))
        return [FAILED if call.number == 13 else call.number for call in calls]


def fleet(numbers):
    log = []
    return log, [Candidate(Fleet(number, log), {"number": number}) for number in numbers]


def select(selector, candidates, **more):
    return selector.select(
        candidates, None, randomness=SimulationRandomness(3), simulation=True, **more
    )


def test_all_survivors_go_together_and_the_best_wins():
    log, candidates = fleet(range(10))
    release = select(RandomDropping(overhead=5), candidates)
    assert len(log) == 1
    assert release.value == release.params["number"]
    assert release.value == 9


def test_a_failed_member_is_an_outcome_and_the_others_count():
    _, candidates = fleet([13, 1, 2])
    assert select(RandomDropping(overhead=50), candidates).value == 2
    _, candidates = fleet([13])
    assert select(RandomDropping(overhead=50), candidates).value is FAILED


@pytest.mark.parametrize("numbers", [[13, 1], [1, 13]])
def test_if_nothing_passes_a_run_that_did_not_fail_is_released(numbers):
    """One order of the runs has the failure first, the other has it last."""
    _, candidates = fleet(numbers)
    missed = RandomDropping(overhead=50, at_least=100)
    for seed in range(20):
        release = missed.select(
            candidates, None, randomness=SimulationRandomness(seed), simulation=True
        )
        assert release.value == 1
        assert not release.passed


def test_a_target_stops_at_the_first_pass():
    """Catches a lookahead that changes the winner."""
    _, candidates = fleet(range(100))
    release = select(RandomDropping(overhead=50, at_least=40), candidates)
    assert release.value == 40
    assert release.passed


def test_a_fleet_that_raises_fails_all_its_members():
    @dataclass
    class Broken(Fleet):
        def run_together(self, calls, data, randomness):
            raise RuntimeError("canary")

    seen = []
    release = select(
        RandomDropping(overhead=50),
        [Candidate(Broken(1.0))],
        on_failure=lambda index, error: seen.append(error),
    )
    assert release.value is FAILED
    assert len(seen) == 1


def test_outputs_made_together_are_recorded(tmp_path):
    """Catches a checkpoint that loses members of a fleet: a crash must not repeat training."""
    log, candidates = fleet(range(5))
    path = tmp_path / "checkpoint"
    calls = []

    def stop(done, total):
        calls.append(done)
        raise KeyboardInterrupt

    selector = RandomDropping(overhead=50)
    with pytest.raises(KeyboardInterrupt):
        selector.select(candidates, None, checkpoint=path, progress=stop)
    made = list(log)
    release = selector.select(candidates, None, checkpoint=path)
    assert log == made
    assert release.value == 4


class Panic(BaseException):
    """Like the panic of a compiled library: not an ``Exception``."""


ERRORS = [
    ValueError("row 7"),
    SystemExit("row 7"),
    GeneratorExit("row 7"),
    asyncio.CancelledError("row 7"),
    futures.CancelledError("row 7"),
    StopIteration("row 7"),
    MemoryError("row 7"),
    Panic("row 7"),
]
errors = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


def raising(error):
    def call(*_):
        raise error

    return call


@errors
@pytest.mark.parametrize("pool", [None, futures.ThreadPoolExecutor])
def test_every_exception_of_a_candidate_is_an_outcome(error, pool):
    """Catches an exception that leaves ``select`` with a row's text because of its class."""
    seen = []
    loser = Candidate(raising(error), guarantee=PureDP(0))
    winner = Candidate(lambda data, randomness: 5, guarantee=PureDP(0))
    with pool(1) if pool else nullcontext() as executor:
        release = select(
            RandomDropping(1.0),
            [loser, winner],
            executor=executor,
            on_failure=lambda index, error: seen.append((index, type(error).__name__)),
        )
        alone = select(RandomDropping(1.0), [loser], executor=executor)
    assert release.value == 5
    assert [index for index, _ in seen] == [0]
    assert alone.value is FAILED


@errors
def test_every_exception_of_a_score_is_an_outcome(error):
    candidate = Candidate(lambda data, randomness: 5, guarantee=PureDP(0))
    release = select(RandomDropping(1.0), [candidate], score=raising(error))
    assert release.value is FAILED


class Untold(Panic):
    """Cannot be turned into text."""

    def __str__(self):
        raise Panic


def test_an_exception_without_a_text_is_an_outcome():
    seen = []
    with futures.ThreadPoolExecutor(1) as pool:
        release = select(
            RandomDropping(1.0),
            [Candidate(raising(Untold()), guarantee=PureDP(0))],
            executor=pool,
            on_failure=lambda index, error: seen.append(str(error)),
        )
    assert release.value is FAILED
    assert seen == ["Untold"]


def test_the_curator_can_interrupt():
    """Catches a rule that catches too much."""
    with pytest.raises(KeyboardInterrupt):
        select(RandomDropping(1.0), [Candidate(raising(KeyboardInterrupt()), guarantee=PureDP(0))])


@dataclass(frozen=True)
class Company:
    """Runs together; one of them raises in company and alone, if the data say so."""

    number: int
    guarantee: PureDP = field(default_factory=lambda: PureDP(0))
    together_key: str = "company"

    def __call__(self, data, randomness):
        if data == "hostile" and self.number == 0:
            raise RuntimeError("row 7")
        return self.number + randomness.below(1000) / 1000

    def run_together(self, calls, data, randomness):
        return [call(data, source) for call, source in zip(calls, randomness, strict=True)]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("data", ["hostile", "benign"])
def test_the_failure_of_one_is_not_the_failure_of_all(workers, data):
    """Catches a dear candidate's failure that is released at a cheap one's price.

    The release must be the same for every executor, which puts other runs together.
    """
    given = [Candidate(Company(number), {"number": number}) for number in range(6)]

    def run(candidates, workers):
        with futures.ThreadPoolExecutor(workers) if workers else nullcontext() as executor:
            return RandomDropping(1.0).select(
                candidates,
                data,
                randomness=SimulationRandomness(3),
                simulation=True,
                executor=executor,
            )

    alone = [
        Candidate(lambda d, r, m=each.mechanism: m(d, r), each.params, guarantee=PureDP(0))
        for each in given
    ]
    release = run(given, workers)
    assert release.value == run(alone, 0).value
    assert release.params == {"number": 5}
    first = run(given[:1], workers)
    assert (first.value is FAILED) == (data == "hostile")


def test_wrong_numbers_of_outputs_are_made_again_alone():
    class Short(Company):
        def run_together(self, calls, data, randomness):
            for source in randomness:
                source.below(10)  # what was drawn in company must not count
            return []

    given = [Candidate(Short(number)) for number in range(3)]
    single = [Candidate(Company(number), guarantee=None) for number in range(3)]
    assert select(RandomDropping(1.0), given).value == select(RandomDropping(1.0), single).value
