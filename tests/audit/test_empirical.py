"""The empirical audit: what it must catch, what it must not accuse, and what it refuses.

Verdicts use fixed simulation seeds. With other seeds each honest subject would be accused with
probability at most 0.001 (the confidence is 0.999). The broken subjects are detected with a margin:
their bounds exceed the claim by several times the sampling error.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from expost import (
    ZCDP,
    ApproxDP,
    Candidate,
    Charges,
    DiscreteGaussian,
    DiscreteLaplace,
    NoiseReduction,
    PureDP,
    Query,
    RandomDropping,
    Release,
    RenyiDP,
)
from expost.audit import audit
from expost.errors import InvalidGuarantee, InvalidInput
from expost.privacy.guarantees import REPLACE
from tests.audit.suspects import NO, OVERHEAD, RIVALS, YES, Told, suspects, training_data
from tests.oracle import FiniteMechanism, exact_audit

SURE = 0.999
NAMES = [
    "Algorithm 3 without dropping",
    "charging ε + ε′",
    "Laplace noise in floating point",
    "a ledger that settles half",
    "a trainer with its noise off",
]


def investigate(suspect, **options):
    given = (
        {"runs": suspect.runs, "confidence": SURE, "simulation_seed": 7} | suspect.options | options
    )
    return audit(suspect.subject, suspect.data, suspect.neighbour, **given)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_broken_is_caught_and_the_honest_is_not_accused(name, tmp_path):
    broken, honest = suspects(tmp_path)[name]
    assert investigate(broken).verdict == "violated"
    assert investigate(honest).verdict == "consistent"


def test_every_suspect_is_tried(tmp_path):
    assert list(suspects(tmp_path)) == NAMES


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_opacus_itself_with_its_noise_off_is_caught():
    """Opacus' own optimiser and sampler, through the adapter, with a noise multiplier of 3."""
    pytest.importorskip("opacus", reason="trains with Opacus: pip install 'expost[opacus]'")
    from torch import nn

    from expost.integrations.opacus import train_with_opacus
    from expost.training import Configuration

    def zero_model():
        module = nn.Linear(4, 2)
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
        return module

    def trainer(noise):
        def train(data, randomness):
            settings = Configuration(1.0, 1, 10 * len(data) / 40, 1.0, noise_multiplier=noise)
            found = train_with_opacus(
                zero_model,
                settings,
                data[:, :-1],
                data[:, -1],
                randomness=randomness,
                simulation=True,
            )
            weight = found.parameters["weight"]
            return float(weight[1, -1] - weight[0, -1])

        return train

    without, with_canary = training_data()
    promise = Configuration(1.0, 1, 10, 1.0, noise_multiplier=3.0).guarantee(40)
    options = {"runs": 120, "claim": promise, "delta": 1e-5, "simulation_seed": 3}
    assert audit(trainer(0.0), without, with_canary, **options).verdict == "violated"
    assert audit(trainer(3.0), without, with_canary, **options).verdict == "consistent"


# Sharpness and false alarms.


def test_bounds_stay_below_the_exact_loss():
    """The exact audit of the same selection gives nearly 2ε + ε′ for the first candidate."""
    rivals = FiniteMechanism([0.95, 0.05], [0.05, 0.95], [0, 2]).as_candidate(repeats=4)
    winner = FiniteMechanism([0.25, 0.75], [0.75, 0.25], [1, 1.5]).as_candidate()
    selector = RandomDropping(OVERHEAD)
    (claim,) = exact_audit(selector, [winner, rivals]).claims
    losses = [each.smallest for each in claim.outcomes]
    report = audit(
        selector, 0, 1, candidates=[winner, rivals], runs=2000, confidence=SURE, simulation_seed=1
    )
    assert all(
        found.lower_bound < loss for found, loss in zip(report.outcomes, losses, strict=False)
    )
    assert report.outcomes[0].lower_bound > 0.8 * losses[0]


@pytest.mark.slow
def test_a_kept_promise_is_rarely_accused():
    """Randomised response at exactly its ε, 200 audits at 0.9 confidence.

    At a rate of 0.1, more than 34 alarms have probability 1e-3.

    Held to a third of the loss, most such audits sound the alarm: silence is not for want of power.
    """
    limit = stats.binom.isf(1e-3, 200, 0.1)
    alarms, found_out = 0, 0
    for seed in range(200):
        options = {"runs": 120, "confidence": 0.9, "simulation_seed": seed}
        alarms += audit(Told(1.0, (0, 1)), NO, YES, **options).violated
        if seed < 50:
            found_out += audit(Told(1.5, (0, 1)), NO, YES, claim=PureDP(0.5), **options).violated
    assert alarms <= limit
    assert found_out > 25


@pytest.mark.parametrize(("claim", "verdict"), [(None, "consistent"), (ZCDP(0.15), "violated")])
def test_a_gaussian_is_held_to_its_renyi_curve(claim, verdict):
    """Noise for ρ = ½ has loss 1 at order 2.

    Sums over sixteen cells see less than the whole, here two fifths.
    """
    mechanism = DiscreteGaussian(Query(len), 0.5)
    report = audit(
        mechanism, [0] * 9, [0] * 10, runs=8000, claim=claim, confidence=SURE, simulation_seed=1
    )
    assert report.verdict == verdict
    assert report.outcomes[0].order is not None
    assert report.outcomes[0].tightness > 0.4


def test_a_renyi_promise_is_converted_at_a_given_delta():
    mechanism = DiscreteGaussian(Query(len), 0.5)
    report = audit(mechanism, [0] * 9, [0] * 10, runs=4000, delta=1e-3, simulation_seed=1)
    assert report.delta == 1e-3
    assert report.outcomes[0].claimed == mechanism.guarantee.to_approx(1e-3).epsilon
    assert report.verdict == "consistent"


def test_charges_that_differ_are_not_converted_one_by_one():
    """A true claim at two orders, each tight for a different outcome.

    Converted separately, each at its best order, they would need 2δ.
    """
    delta, charge = 0.05, 0.3
    on_data = np.array([2 * delta, 8 * delta, 1 - 10 * delta])
    on_neighbour = np.array([on_data[0] ** 2, on_data[1] ** (8 / 7), 0.0]) * np.exp(-charge)
    on_neighbour[2] = 1 - on_neighbour.sum()
    claim = {0: (charge + 0.05, 50.0), 1: (50.0, charge + 0.05), 2: (10.0, 10.0)}
    for place, order in enumerate((2.0, 8.0)):
        growth = np.exp([claim[index][place] for index in range(3)])
        for a, b in ((on_data, on_neighbour), (on_neighbour, on_data)):
            assert np.sum(a**order * (growth * b) ** (1 - order)) < 1
    promises = {index: RenyiDP((2.0, 8.0), charges) for index, charges in claim.items()}
    options = {"runs": 5000, "claim": promises, "simulation_seed": 1}
    assert audit(lottery(on_data, on_neighbour), True, False, **options).verdict == "consistent"
    with pytest.raises(InvalidInput, match="differ in their Rényi charges"):
        audit(lottery(on_data, on_neighbour), True, False, delta=delta, **options)


def test_brownian_noise_reduction_is_audited_at_its_orders():
    """Ex-post ρ of the last level looked at; held to a tenth of it, it is caught."""
    candidates = [Candidate(DiscreteGaussian(Query(len), rho)) for rho in (0.25, 1.0)]
    charges = NoiseReduction(0.5).charges(candidates)
    tenth = Charges.from_list([ZCDP(0.025), ZCDP(0.1)], ZCDP(0.1))
    for claim, verdict in ((charges, "consistent"), (tenth, "violated")):
        report = audit(
            NoiseReduction(0.5),
            [0] * 2,
            [0] * 3,
            candidates=candidates,
            score=lambda answer: float(float(answer) > 2),
            claim=claim,
            runs=2000,
            confidence=SURE,
            simulation_seed=2,
        )
        assert report.verdict == verdict


# All outcomes together.


def lottery(on_data, on_neighbour, promise=None):
    """A request whose winner has these chances by index."""

    def request(data, randomness):
        ends = np.cumsum(on_data if data else on_neighbour)
        index = int(np.searchsorted(ends, randomness.bits(53) / 2**53, side="right"))
        return Release(0.0, {}, index, None, None, promise, promise, "", {}, True)

    return request


def test_delta_is_shared_by_all_outcomes():
    """Five outcomes of probability 0.8·δ each on one data set only.

    Each alone is within (0, δ); together they are 4·δ.
    """
    delta = 0.05
    request = lottery([0.04] * 5 + [0.8], [0.0] * 5 + [1.0], ApproxDP(0.3, delta))
    report = audit(request, True, False, runs=4000, confidence=SURE, simulation_seed=1)
    assert not any(each.violated for each in report.outcomes)
    assert report.joint.lower_bound > 3 * delta
    assert report.verdict == "violated"
    wide = audit(
        lottery([0.04] * 5 + [0.8], [0.0] * 5 + [1.0], ApproxDP(0.3, 0.2)),
        True,
        False,
        runs=4000,
        simulation_seed=1,
    )
    assert wide.verdict == "consistent"


def test_pure_claims_are_pooled_over_outcomes():
    """Sixty outcomes, each too rare to judge alone: pooled they show that e^{0.2} is exceeded."""
    request = lottery([0.9 / 60] * 60 + [0.1], [0.6 / 60] * 60 + [0.4], PureDP(0.2))
    report = audit(request, True, False, runs=3000, confidence=SURE, simulation_seed=1)
    assert not any(each.violated for each in report.outcomes[:60])
    assert report.joint.violated


def test_a_renyi_budget_is_shared_by_all_outcomes():
    """At order 2 the classes need Σ (P²/P′)·e^{−c} ≤ 1.

    Charges 0.5 and 0.95 suffice for each class alone, but not for the sum (1.14).
    """
    request = lottery([0.5, 0.5], [0.9, 0.1])
    for charges, verdict in (((0.5, 0.95), "violated"), ((0.6, 1.4), "consistent")):
        claim = {index: RenyiDP((2.0,), (charge,)) for index, charge in enumerate(charges)}
        report = audit(request, True, False, runs=20_000, claim=claim, simulation_seed=1)
        assert not any(each.violated for each in report.outcomes)
        assert report.verdict == verdict


# Events.


def two_faced(data, randomness):
    return ("even", 2 * randomness.below(50)) if data else ("any", randomness.below(100))


@pytest.mark.parametrize(
    "events",
    [
        lambda output: output[1] % 2 == 1,
        lambda output: "odd" if output[1] % 2 else "even",
        {"odd": lambda output: output[1] % 2 == 1, "large": lambda output: output[1] > 50},
    ],
    ids=["predicate", "label", "named predicates"],
)
def test_an_event_finds_what_the_value_hides(events):
    options = {"runs": 500, "claim": PureDP(1.0), "simulation_seed": 1}
    assert audit(two_faced, True, False, events=events, **options).verdict == "violated"
    assert (
        audit(two_faced, True, False, events=lambda output: output[1] > 50, **options).verdict
        == "consistent"
    )


def test_numbers_are_cut_where_the_pilot_lies():
    """Many values: sixteen cells and the rest, whatever is counted later."""
    report = audit(
        lambda data, randomness: randomness.bits(30),
        0,
        1,
        runs=500,
        claim=PureDP(1),
        simulation_seed=1,
    )
    assert report.verdict == "consistent"
    assert (
        report.comparisons <= 4 * (16 + 1 + 1) + 2 * 2 + 2 * 2
    )  # cells, "other", the class; two unions; two joint events
    assert report.comparisons >= 4 * (16 + 1 + 1) + 2 * 2


@pytest.mark.parametrize(
    "released",
    [lambda data: {"a": data}, lambda data: f"it was {data}", lambda data: np.array([data, data])],
)
def test_what_cannot_be_seen_is_not_called_consistent(released):
    """A mechanism that reveals its data in an output that is not a number.

    Without an event nothing could detect it.
    """

    def leak(data, randomness):
        return released(data)

    options = {"runs": 300, "claim": PureDP(1), "simulation_seed": 1}
    with pytest.raises(InvalidInput, match=r"^events is required: .*pass a function of the value"):
        audit(leak, 0, 1, **options)
    assert audit(leak, 0, 1, events=repr, **options).verdict == "violated"


def test_a_report_says_that_values_were_not_looked_into():
    def request(data, randomness):
        index = randomness.below(2)
        return Release(
            {"a": data} if texts else 1.0, {}, index, None, None, PureDP(1), PureDP(1), "", {}, True
        )

    for texts in (True, False):
        assert audit(request, 0, 1, runs=100, simulation_seed=1).as_dict()["blind"] is texts


def test_raising_is_an_outcome():
    """A mechanism that fails on one data set only has told which one it was."""

    def fragile(data, randomness):
        return 1 / data

    report = audit(fragile, 0, 1, runs=300, claim=PureDP(1), simulation_seed=1)
    assert report.verdict == "violated"
    assert report.failed == (240, 0)
    with pytest.raises(InvalidInput, match="every run of the pilot"):
        audit(fragile, 0, 0, runs=300, claim=PureDP(1))


def test_a_request_that_raises_ends_the_audit():
    def request(data, randomness):
        raise RuntimeError("no budget")

    with pytest.raises(InvalidInput, match="no budget"):
        audit(request, 0, 1, runs=100)


# The report, workers, bad input.


def test_the_report_is_the_contract():
    report = audit(
        RandomDropping(OVERHEAD), NO, YES, candidates=RIVALS, runs=100, simulation_seed=1
    ).as_dict()
    assert list(report)[:3] == ["verdict", "confidence", "outcomes"]
    assert [list(each)[:4] for each in report["outcomes"]] == [
        ["index", "claimed", "lower_bound", "tightness"]
    ] * 2
    assert (report["runs"], report["pilot"], report["simulated"]) == (100, 20, True)


def test_nothing_is_an_outcome_with_a_claim_of_its_own():
    """Algorithm 3's nothing is free: nothing ran, with equal probability on both data sets."""
    selector = RandomDropping(1.0, allow_nothing=True)
    report = audit(selector, NO, YES, candidates=RIVALS[:1], runs=300, simulation_seed=1)
    nothing = report.outcomes[-1]
    assert (nothing.index, nothing.claimed, nothing.tightness) == (None, 0.0, None)
    assert min(nothing.runs) > 0


def test_two_processes_count_what_one_does():
    """The same seeds on any number of workers; candidates with read-only settings are pickled."""
    options = {"candidates": RIVALS, "runs": 300, "simulation_seed": 1}
    alone = audit(RandomDropping(OVERHEAD), NO, YES, **options)
    assert audit(RandomDropping(OVERHEAD), NO, YES, workers=2, **options) == alone


def test_real_coins_differ_from_run_to_run():
    reports = [audit(Told(1.0, (0, 1)), NO, YES, runs=2000) for _ in range(2)]
    assert reports[0] != reports[1]
    assert not reports[0].simulated


def test_progress_counts_all_runs():
    seen = []
    audit(Told(1.0, (0, 1)), NO, YES, runs=200, progress=lambda *given: seen.append(given))
    assert seen[-1] == (400, 400)
    assert seen == sorted(seen)


LAPLACE = DiscreteLaplace(Query(len), 1.0)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("runs", {"runs": 10}),
        ("runs", {"runs": 100.0}),
        ("confidence", {"confidence": 1.0}),
        ("confidence", {"confidence": 95}),
        ("pilot", {"pilot": 0.0}),
        ("pilot", {"pilot": 20}),
        ("workers", {"workers": 0}),
        ("workers", {"workers": 2, "events": lambda output: 1}),
        ("events", {"events": "odd"}),
        ("events", {"events": {}}),
        ("events", {"events": lambda output: output["missing"]}),
        ("events", {"events": lambda output: 10**400}),
        ("delta", {"delta": 1e-5}),
        ("claim", {"claim": 1.0}),
        ("claim", {"claim": {5: PureDP(1)}}),
        ("candidates", {"candidates": RIVALS}),
        ("score", {"score": float}),
        ("progress", {"progress": 1}),
        ("simulation_seed", {"simulation_seed": -1}),
        ("candidates", {"subject": RandomDropping(1)}),
        ("subject", {"subject": 5}),
        ("claim", {"subject": lambda data, randomness: 0}),
        ("delta", {"subject": RandomDropping(1), "candidates": RIVALS, "delta": 1e-5}),
    ],
)
def test_bad_input_names_the_field(field, options):
    given = {"subject": LAPLACE, "runs": 100} | options
    with pytest.raises(InvalidInput, match=rf"^{field} (= |is required)") as caught:
        audit(given.pop("subject"), [1], [1, 2], **given)
    assert caught.value.field == field


def test_claims_of_different_kinds_do_not_mix():
    with pytest.raises(InvalidGuarantee):
        audit(
            lottery([0.5, 0.5], [0.5, 0.5]),
            0,
            1,
            runs=100,
            claim={0: PureDP(1), 1: PureDP(1, REPLACE)},
        )
