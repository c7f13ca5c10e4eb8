"""Running together: a mechanism like a fleet gives what single runs would give.

It also stops, records and fails like single runs.
"""

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


def test_a_target_stops_at_the_first_pass():
    """Catches a lookahead that changes the winner."""
    _, candidates = fleet(range(100))
    release = select(RandomDropping(overhead=50, target=40), candidates)
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
