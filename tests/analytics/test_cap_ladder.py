"""The choice of a cap on all groups together: what it costs, what it tells, and is that true?

Simulations have fixed seeds and reject at 1e-6 a check.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

import expost
from expost import SimulationRandomness
from expost.analytics import cap_ladder
from expost.analytics.cap_ladder import (
    MOST_SHARE,
    CapSearch,
    ChosenCap,
    LadderTerms,
    StepAmounts,
    caps_between,
    doubling_steps,
)
from expost.certificates.verify import verify_certificate

FALSE_ALARM = 1e-6
STEPS = doubling_steps(1, 2**17)


def terms(law: str = "laplace", total: float = 1.0, **more: Any) -> LadderTerms:
    usual: dict[str, Any] = {"within": 0.05, "confidence": 0.9, "groups": 5, "corrected": True}
    usual |= {"clips": True, "largest": 2**12}
    return LadderTerms(law, Fraction(total), **(usual | more))


def ladder(sizes: list[int], beyond: list[int] | None = None) -> StepAmounts:
    """What persons with these amounts make."""
    numbers, clipped = np.array(sizes, dtype=np.int64), np.array(beyond or [0], dtype=np.int64)
    lows = [0, *STEPS]
    amounts = [
        int(np.clip(numbers - low, 0, high - low).sum())
        for low, high in zip(lows, STEPS, strict=False)
    ]
    caps = [int(np.minimum(clipped, cap).sum()) for cap in caps_between(STEPS)]
    return StepAmounts(STEPS, tuple(amounts), tuple(caps))


class Recorded(CapSearch):
    """A search that writes down what it looked at, with forced outputs if there are any."""

    def __init__(
        self, table: StepAmounts, asked: LadderTerms, forced: list[float] | None, seed: int
    ) -> None:
        self.paid, self.outputs, self.losses, self.forced = Fraction(0), [], [], forced
        super().__init__(table, asked, self.add, SimulationRandomness(seed))

    def add(self, cost: Fraction) -> None:
        self.paid += cost

    def _look(self, value: int, sensitivity: int, cost: Fraction) -> tuple[float, float]:
        told, deviation = super()._look(value, sensitivity, cost)
        if self.forced is not None:
            told = self.forced[len(self.outputs)]
        self.outputs.append(told)
        self.losses.append((value, told, deviation))
        return told, deviation


def log_ratio(here: Recorded, there: Recorded, law: str) -> float:
    """ln of the ratio of the chances of one transcript; of Gaussian noise the ρ that it needs."""
    total = 0.0
    for (value, told, deviation), (other, same, width) in zip(
        here.losses, there.losses, strict=True
    ):
        assert told == same
        assert deviation == width  # decided by released values only
        if law == "laplace":
            scale = deviation / math.sqrt(2)
            total += (abs(told - other) - abs(told - value)) / scale
        else:
            total += (value - other) ** 2 / (2 * deviation**2)
    return total


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("person", [1, 3, 50, 10**6])
@pytest.mark.parametrize("clipped", [0, 7, 10**6])
def test_no_transcript_tells_more_than_it_cost(law, person, clipped):
    """One person more or less, whatever they have: every look with the same output, both ways.

    The path, its costs and the cap are the same where the outputs are, and the log ratio of the
    chances is at most what was paid.
    """
    generator = np.random.default_rng(person + clipped)
    closest = 0.0
    for seed in range(12):
        sizes = np.ceil(generator.lognormal(1.0, 1.2, 2000)).astype(int).tolist()
        asked = terms(law, total=1.0 if law == "laplace" else 0.05)
        less, more = ladder(sizes), ladder([*sizes, person], [0] * 2000 + [clipped])
        for one, other in ((less, more), (more, less)):
            here = Recorded(one, asked, None, seed)
            chosen = here.run()
            there = Recorded(other, asked, here.outputs, seed)
            assert there.run() == chosen
            assert there.paid == here.paid <= asked.total * MOST_SHARE
            loss = log_ratio(here, there, law)
            assert loss <= float(here.paid) * (1 + 1e-9)
            closest = max(closest, loss / float(here.paid))
    if law == "laplace" and person == 10**6:
        assert closest > 0.5  # such a person is in every step


def test_a_step_without_its_width_would_tell_more(monkeypatch):
    """The mutant must fail: noise for a change of half of the width."""
    whole = CapSearch._look

    def half(self: CapSearch, value: int, sensitivity: int, cost: Fraction) -> Any:
        told, deviation = whole(self, value, sensitivity, cost)
        return told, deviation / 2

    monkeypatch.setattr(CapSearch, "_look", half)
    sizes = [3] * 3000
    here = Recorded(ladder([*sizes, 10**6]), terms(), None, 1)
    here.run()
    there = Recorded(ladder(sizes), terms(), here.outputs, 1)
    there.run()
    low = sum(abs(a[0] - b[0]) / a[2] for a, b in zip(here.losses, there.losses, strict=True))
    assert low * math.sqrt(2) > float(here.paid) * 1.2


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_looks_have_the_noise_that_is_paid(law):
    """The deviation of outputs is the one that counts for the bias."""
    asked = terms(law)
    search = CapSearch(ladder([1]), asked, lambda cost: None, SimulationRandomness(3))
    looks = [search._look(1000, 7, Fraction(1, 10)) for _ in range(3000)]
    deviation = looks[0][1]
    expected = math.sqrt(2) * 70 if law == "laplace" else 7 / math.sqrt(0.2)
    assert deviation == pytest.approx(expected)
    values = np.array([told for told, _ in looks])
    assert values.mean() == pytest.approx(1000, abs=6 * deviation / math.sqrt(3000))
    assert values.std() == pytest.approx(deviation, rel=0.15)


DISTRIBUTIONS = {
    "one": lambda generator, n: np.ones(n, dtype=int),
    "light": lambda generator, n: generator.geometric(1 / 6, n),
    "log-normal": lambda generator, n: np.ceil(generator.lognormal(1.0, 1.2, n)).astype(int),
    "bots": lambda generator, n: np.where(generator.random(n) < 1 / 200, 100, 1),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("groups", [1, 10])
def test_the_error_of_a_clear_cap_is_as_stated(name, groups):
    """Where a cap is accepted, what it removes is within its stated error in nine of ten runs."""
    generator = np.random.default_rng(7)
    sizes = DISTRIBUTIONS[name](generator, 40_000)
    table, wrong, clear, runs = ladder(sizes.tolist()), 0, 0, 60
    for seed in range(runs):
        asked = terms(groups=groups, total=2.0)
        chosen = CapSearch(table, asked, lambda cost: None, SimulationRandomness(seed)).run()
        kept = float(np.minimum(sizes, chosen.cap).sum())
        removed = float(sizes.sum()) / kept - 1
        clear += chosen.clear
        wrong += chosen.clear and abs(chosen.removed - removed) > chosen.error
    assert name == "bots" or clear > 0.6 * runs  # those need more looks than are paid
    assert stats.binomtest(wrong, runs, 0.1, alternative="greater").pvalue > FALSE_ALARM


def test_nothing_is_accepted_that_may_be_wrong():
    """Bias and error leave room for noise, or the cap is not clear."""
    generator = np.random.default_rng(1)
    sizes = np.minimum(np.ceil(generator.pareto(1.1, 3000) + 0.5), 10_000).astype(int)
    for seed in range(20):
        chosen = CapSearch(
            ladder(sizes.tolist()), terms(), lambda cost: None, SimulationRandomness(seed)
        ).run()
        assert chosen.clear == (chosen.bias < 0.9 * 0.05)
        assert chosen.bias >= chosen.error
        share = chosen.share(0.9)
        assert 0 <= share["low"] <= share["estimate"] <= share["high"] <= 1


def test_few_persons_with_far_more_are_found():
    """A two-hundredth with a hundred rows, all others with one: the wide look finds them."""
    sizes = [1] * 40_000 + [100] * 200
    wrong = 0
    for seed in range(20):
        chosen = CapSearch(
            ladder(sizes), terms(total=1.0), lambda cost: None, SimulationRandomness(seed)
        ).run()
        wrong += chosen.clear and chosen.cap < 50
    assert wrong <= 2  # a third of all rows is theirs


@pytest.mark.parametrize("people", [0, 1, 3])
def test_tables_of_next_to_nobody(people):
    """No failure, no charge beyond the share, and no cap is called clear."""
    paid: list[Fraction] = []
    chosen = CapSearch(
        ladder([5] * people), terms(total=0.1), paid.append, SimulationRandomness(0)
    ).run()
    assert sum(paid) <= Fraction(1, 10) * MOST_SHARE + Fraction(1, 10**9)
    assert chosen.cap >= 1
    assert not chosen.clear


def orders(people: int = 20_000) -> pa.Table:
    generator = np.random.default_rng(2)
    rows = generator.geometric(1 / 6, people)
    users = np.repeat(np.arange(people), rows)
    groups = generator.integers(0, 5, len(users))
    return pa.table({"u": users, "g": groups, "v": generator.integers(-5, 100, len(users))})


@pytest.mark.parametrize("law", [{}, {"delta": 1e-6}])
@pytest.mark.parametrize("asked", ["COUNT(*)", "SUM(v)", "COUNT(*), SUM(v), COUNT(DISTINCT u)"])
def test_a_query_is_answered_and_verifies(asked, law):
    """One cap on all groups, charged once; the certificate adds up."""
    result = expost.query(
        f"SELECT g, {asked} FROM t GROUP BY g",
        source={"t": orders()},
        user="u",
        keys=range(5),
        bounds={"v": (-5, 100)},
        within=0.1,
        epsilon=3,
        randomness=SimulationRandomness(1),
        simulation=True,
        **law,
    )
    assert verify_certificate(result.certificate()) == []
    part = result.parts[0]
    assert part.dropped_share["in_all_groups"] >= 4
    assert len(part.answers) == 5
    truth = np.bincount(orders()["g"].to_numpy())
    if asked.startswith("COUNT"):
        for answer in part.answers:
            assert answer.estimate == pytest.approx(truth[int(answer.group)], rel=0.15)


def test_a_sum_and_its_words():
    """The default of a sum: no m, one cap, an estimate that is corrected, and it verifies."""
    found = expost.sum(
        orders(), "v", by="g", keys=range(5), user="u", bounds=(0, 100), epsilon=2, within=0.1
    )
    assert verify_certificate(found.certificate()) == []
    assert found.max_groups_per_user is None
    assert found.public["max_groups_per_user"] == "none: one cap on all groups together"
    assert found.dropped_share["corrected"] is True
    assert found.spent <= 2


@pytest.mark.parametrize("door", ["sum", "query"])
def test_a_finer_question_keeps_what_the_cap_removed(door, tmp_path):
    """The same cap, correction and bias; only the difference is charged."""
    ledger = expost.Ledger.create(tmp_path / "ledger.db", expost.PureBudget(20))
    results = []
    for within in (0.2, 0.06):
        options: dict[str, Any] = {"user": "u", "keys": range(5), "within": within, "epsilon": 4}
        options |= {"ledger": ledger, "table_version": "1"}
        if door == "sum":
            options |= {"by": "g", "bounds": (0, 100)}
            results.append(expost.sum(orders(), "v", **options))
        else:
            text = "SELECT g, SUM(v) FROM t GROUP BY g"
            options |= {"bounds": {"v": (0, 100)}}
            results.append(expost.query(text, source={"t": orders()}, **options))
    told = [one.dropped_share if door == "sum" else one.parts[0].dropped_share for one in results]
    assert told[0] == told[1]
    assert results[1].public["paid_before"] > 0
    for result in results:
        assert verify_certificate(result.certificate(), ledger=ledger) == []


def test_what_bounds_clip_is_noticed():
    """Half of the amount is above the bounds: no sum is called within 5 %."""
    table = pa.table({"u": range(20_000), "v": [100.0] * 20_000})
    found = expost.sum(table, "v", user="u", bounds=(0, 50), epsilon=2, within=0.05)
    assert found.answers == ()


@pytest.mark.parametrize("asked", ["rows", "query"])
def test_values_are_told_where_only_the_cap_is_unsure(asked, monkeypatch):
    """Not answered, but close to the value with the correction, and the charge adds up."""
    unsure = ChosenCap(16, 0.1, 0.09, 0.14, clear=False)
    monkeypatch.setattr(CapSearch, "run", lambda search: unsure)
    options: dict[str, Any] = {"user": "u", "keys": range(5), "within": 0.05, "epsilon": 2}
    options |= {"simulation": True, "randomness": SimulationRandomness(4)}
    truth = np.bincount(orders()["g"].to_numpy())
    if asked == "query":
        text = "SELECT g, COUNT(*) FROM t GROUP BY g"
        result: Any = expost.query(text, source={"t": orders()}, **options)
        told, answers = result.parts[0].unanswered, result.parts[0].answers
    else:
        options |= {"count_rows": True, "max_rows_per_user": "auto", "by": "g"}
        result = expost.count(orders(), **options)
        told, answers = result.unanswered, result.answers
    assert answers == ()
    assert len(told) == 5
    for answer in told:
        assert answer.estimate == pytest.approx(truth[int(answer.group)], rel=0.15)
        assert answer.high - answer.low < 0.12 * answer.estimate
    assert 0 < result.spent < 2
    assert verify_certificate(result.certificate()) == []


def test_sums_of_either_sign_are_not_corrected():
    chosen = ChosenCap(5, 0.02, 0.01, 0.03, clear=True)
    assert chosen.share(0.9)["estimate"] == pytest.approx(0.02 / 1.02)
    found = expost.sum(
        orders(), "v", by="g", keys=range(5), user="u", bounds=(-5, 100), epsilon=4, within=0.1
    )
    assert found.dropped_share["corrected"] is False
    assert found.dropped_share["bias"] >= found.dropped_share["estimate"]


def test_steps_and_caps():
    assert doubling_steps(1, 9) == (1, 2, 4, 8)
    assert doubling_steps(3, 3) == (3, 6, 12)
    assert caps_between([1, 2, 4, 8]) == [1, 2, 4, 5, 8, 11]
    assert cap_ladder.LADDER_SHARE + Fraction(18, 100) == cap_ladder.MOST_SHARE
