"""Metrics: values, the sensitivity of their sums, directions, and what is refused."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expost
from expost.errors import InvalidInput
from expost.randomness.source import SimulationRandomness
from expost.tuning.model.scoring import SECRET_ROWS, Margins, Score, confidence_bounds
from expost.tuning.request.metrics import METRICS, STEPS, RowFunction, make_metric
from expost.tuning.request.settings import GoalSettings, read_settings
from tests.tuning.jobs import clouds, job, line

SHARES = (0.5, 0.3, 0.2)


def hinge(prediction: Any, truth: Any) -> float:
    """A metric of one row that raises, returns no number, and leaves its bounds."""
    if prediction == 1 and truth == 1:
        raise ZeroDivisionError
    if prediction == 2:
        return float("nan")
    return 5.0 if prediction == truth else -7.0


FUNCTION = RowFunction("here:hinge", given=hinge)
BY_ROWS = [
    GoalSettings("accuracy", 0.8),
    GoalSettings("balanced_accuracy", 0.6, class_shares=SHARES),
    GoalSettings("log_loss", 0.7, loss_bound=4.0),
    GoalSettings("mae", 1.5, loss_bound=4.0),
    GoalSettings("mse", 2.5, loss_bound=10.0),
    GoalSettings("r2", 0.5, loss_bound=10.0, target_variance=3.0),
    GoalSettings("own", 0.5, metric_bounds=(-1.0, 1.0), function=FUNCTION),
    GoalSettings("own", 0.5, metric_bounds=(-1.0, 1.0), function=FUNCTION, larger_is_better=False),
]


def rows_of(goal: GoalSettings) -> list[tuple[Any, Any]]:
    """Predictions and truths of single rows, hostile ones and an empty place among them."""
    takes = goal.measure.takes
    if takes == "probabilities":
        guesses: list[Any] = [
            np.array([each])
            for each in ([1, 0, 0], [0, 1, 0], [0.2, 0.3, 0.5], [np.nan] * 3, [0, np.inf, -1])
        ]
        return [(guess, np.array([true])) for guess in guesses for true in (0.0, 1.0, 2.0, np.nan)]
    if takes == "labels":
        return [
            (np.array([guess]), np.array([true], dtype=object))
            for guess in (0, 1, 2)
            for true in (0, 1, 2, None)
        ]
    numbers = [0.0, 1.0, 2.0, -3.5, 1e300, np.nan, np.inf, -np.inf]
    truths = (0.0, 1.0, 2.0, np.nan)
    return [(np.array([guess]), np.array([true])) for guess in numbers for true in truths]


@pytest.mark.parametrize("goal", BY_ROWS)
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("bar", [True, False])
def test_one_row_moves_the_sum_by_at_most_the_sensitivity(
    goal: GoalSettings, centred: bool, bar: bool
) -> None:
    """Over hostile rows; the bound is reached, so it is not wasteful either."""
    if not bar:
        goal = GoalSettings(**{**vars(goal), "value": None})
    score = Score(goal, 0.1, centred)
    merits = [int(score.metric.merits(*row, score._steps).sum()) for row in rows_of(goal)]
    steps = score._steps
    assert steps in (2, STEPS)
    assert all(isinstance(each, int) and 0 <= each <= steps for each in merits)
    assert {min(merits), max(merits)} == {0, steps}
    moves = [abs(each - score.centre) for each in merits]
    assert max(moves) == score.sensitivity <= steps
    empty = [
        each
        for each, (_, true) in zip(merits, rows_of(goal), strict=True)
        if true[0] != true[0] or true[0] is None
    ]
    assert set(empty) == {0}


@pytest.mark.parametrize("goal", BY_ROWS)
def test_merits_are_sums_of_single_rows(goal: GoalSettings) -> None:
    """No row affects the merit of another."""
    rows = rows_of(goal)
    predicted, truth = (np.concatenate(each) for each in zip(*rows, strict=True))
    alone = [int(goal.measure.merits(*row, STEPS)[0]) for row in rows]
    assert goal.measure.merits(predicted, truth, STEPS).tolist() == alone


@pytest.mark.parametrize("goal", BY_ROWS)
def test_steps_are_rounded_against_the_model(goal: GoalSettings) -> None:
    """What the steps say is never better than the exact value, and within a step of it."""
    metric = goal.measure
    for predicted, truth in rows_of(goal):
        if truth[0] is None or truth[0] != truth[0]:
            continue
        merit = int(metric.merits(predicted, truth, STEPS)[0])
        exact = metric.exact(predicted, truth)
        reached = exact - metric.low if metric.larger_is_better else metric.high - exact
        slack = 1e-9 * metric.spread
        assert merit * metric.spread / STEPS <= reached + slack
        assert (merit + 1) * metric.spread / STEPS >= reached - slack


def test_values_are_those_of_scikit_learn() -> None:
    sk = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 3, 200).astype(float)
    decided = np.where(generator.random(200) < 0.7, truth, generator.integers(0, 3, 200))
    chances = generator.dirichlet([1, 1, 1], 200)
    assert make_metric("accuracy").exact(decided, truth) == sk.accuracy_score(truth, decided)
    recalls = sk.balanced_accuracy_score(truth, decided)
    assert make_metric("balanced_accuracy").exact(decided, truth) == pytest.approx(recalls)
    shares = tuple(np.bincount(truth.astype(int)) / 200)
    weighted = make_metric("balanced_accuracy", class_shares=shares)
    assert weighted.exact(decided, truth) == pytest.approx(recalls)
    found = make_metric("log_loss", loss_bound=100.0).exact(chances, truth)
    assert found == pytest.approx(sk.log_loss(truth, chances))
    two, one = np.round(chances[:, :2], 1), (truth > 0).astype(float)  # with ties
    assert make_metric("auc").exact(two, one) == pytest.approx(sk.roc_auc_score(one, two[:, 1]))
    y = generator.normal(size=200)
    guess = y + generator.normal(size=200)
    mae, mse = sk.mean_absolute_error(y, guess), sk.mean_squared_error(y, guess)
    assert make_metric("mae", loss_bound=99.0).exact(guess, y) == pytest.approx(mae)
    assert make_metric("mse", loss_bound=99.0).exact(guess, y) == pytest.approx(mse)
    r2 = make_metric("r2", loss_bound=99.0, target_variance=float(np.var(y)))
    assert r2.exact(guess, y) == pytest.approx(sk.r2_score(y, guess))


def test_private_scores_are_near_the_exact_ones() -> None:
    generator = np.random.default_rng(1)
    y = generator.normal(size=4000)
    guess = y + 0.5 * generator.normal(size=4000)
    source = SimulationRandomness(2)
    for goal in (
        GoalSettings("mae", 1.0, loss_bound=2.0),
        GoalSettings("r2", 0.5, loss_bound=4.0, target_variance=1.0),
    ):
        for centred in (False, True):
            exact = Score(goal, None)(guess, y, source)
            noisy = Score(goal, 0.5, centred)
            found = noisy(guess, y, source, 4000)
            assert found == pytest.approx(exact, abs=6 * noisy.deviation / 4000 + 1e-4)


def test_a_function_is_called_with_one_row_and_clipped() -> None:
    metric = make_metric("own", function=FUNCTION, metric_bounds=(-1.0, 1.0))
    predicted = np.array([0, 0, 1, 2])
    truth = np.array([0, 1, 1, None], dtype=object)
    assert metric.merits(predicted, truth, STEPS).tolist() == [STEPS, 0, 0, 0]
    assert metric.exact(predicted[:3], truth[:3]) == pytest.approx((1 - 1 - 1) / 3)
    assert pickle.loads(pickle.dumps(FUNCTION)).given is hinge


# Confidence


def test_the_bound_for_the_population_covers_weighted_rows() -> None:
    """A rare class has weight 5: with the range 1 the bound would fail in far more than 10 %."""
    shares = (0.9, 0.1)
    goal = GoalSettings("balanced_accuracy", 0.5, class_shares=shares)
    metric = goal.measure
    assert metric.spread == pytest.approx(5.0)
    terms, generator = Margins(0.9, (1.0,), (1.0,)), np.random.default_rng(3)
    failed = {metric.spread: 0, 1.0: 0}
    for _ in range(400):
        truth = (generator.random(50) < shares[1]).astype(float)
        decided = np.where(generator.random(50) < 0.5, truth, 1 - truth)  # balanced accuracy 0.5
        found = Score(goal, None)(decided, truth, SimulationRandomness(1))
        for spread in failed:
            bounds = confidence_bounds(
                terms, 0, found, 0.0, 0.0, 50, spread, empty=0.0, worst=-10.0
            )
            assert bounds.on_population is not None
            failed[spread] += bounds.on_population > 0.5
    assert failed[metric.spread] <= 0.1 * 400
    assert failed[1.0] > 0  # the wrong range claims more


def test_a_secret_number_of_rows_certifies_the_bar_and_no_more() -> None:
    """100 rows are public knowledge, 400 are there: the score lies too far above the goal."""
    goal = GoalSettings("accuracy", 0.7)
    score = Score(goal, None, centred=True)
    truth = np.ones(400)
    decided = np.where(np.arange(400) < 320, 1.0, 0.0)
    found = score(decided, truth, SimulationRandomness(1), 100)
    assert found > 1  # 0.7 + 4 · 0.1, and the accuracy is 0.8
    terms = Margins(0.9, (1.0,), (1.0,))
    bounds = confidence_bounds(
        terms, 0, found, 0.01, 0.0, SECRET_ROWS, 1.0, empty=0.7, worst=0.0, most=0.7
    )
    assert bounds.on_scoring_rows == 0.7
    assert bounds.on_population is None
    assert bounds.as_dict(larger_is_better=True)["bound_on_population"] is None
    assert bounds.why_none == SECRET_ROWS


@pytest.mark.parametrize("public_rows", [60, 300])
def test_jobs_with_a_secret_number_of_rows_claim_only_the_bar(public_rows: int) -> None:
    X, y = clouds(600, noise=0.05)
    for _ in range(5):
        result = expost.tune(
            job(
                data={"rows": public_rows},
                goal={"at_least": 0.6},
                search={"epsilons": [4, 8], "batch_sizes": [20]},
            ),
            X,
            y,
        )
        if result.passed:
            break
    assert result.passed
    assert result.bounds is not None
    assert result.bounds.on_scoring_rows == 0.6
    assert result.bounds.on_population is None


# Whole jobs


def test_every_private_metric_of_a_classifier_can_be_a_goal() -> None:
    X, y = clouds(600, noise=0.05)
    search = {"epsilons": [8], "batch_sizes": [100], "epochs": [8]}
    for goal in (
        {"metric": "balanced_accuracy", "class_shares": [0.5, 0.5], "at_least": 0.6},
        {"metric": "log_loss", "loss_bound": 2.0, "at_least": None, "at_most": 0.9},
        {"metric": right, "metric_bounds": [0, 1], "at_least": 0.6},
    ):
        result = expost.tune(job(goal=goal, search=search), X, y)
        assert result.passed, goal
        assert result.bounds is not None
        assert result.model is not None
        record = result.details["goal"]
        assert record["larger_is_better"] == ("at_least" in goal and goal["at_least"] is not None)
        assert expost.Release.from_json(result.certificate()).passed
        if goal["metric"] == "log_loss":
            confidence = result.as_dict()["confidence"]
            assert confidence["bound_on_scoring_rows"] <= 0.9
            assert confidence["bound_on_population"] > confidence["bound_on_scoring_rows"]


def right(prediction: Any, truth: Any) -> bool:
    return bool(prediction == truth)


def test_regressions_by_r2_and_absolute_error() -> None:
    X, y = line(800)
    tables: dict[str, Any] = {
        "data": {"target_bounds": [-2, 12], "classes": None},
        "model": {"kind": "linear"},
        "search": {"epsilons": [8], "learning_rates": [0.3], "epochs": [10]},
    }
    for goal in (
        {"metric": "r2", "loss_bound": 50.0, "target_variance": 8.0, "at_least": 0.2},
        {"metric": "mae", "loss_bound": 7.0, "at_least": None, "at_most": 2.5},
    ):
        result = expost.tune(job(goal=goal, **tables), X, y)
        assert result.passed, goal
        assert result.model is not None
        predicted = result.model.predict(X)
        assert np.mean(np.abs(predicted - y)) < 2.5


def test_auc_on_public_rows(tmp_path: Path) -> None:
    X, y = clouds(400, noise=0.1)
    np.savez(tmp_path / "test.npz", X=X[:100], y=y[:100])
    tables = {
        "data": {"public_test": str(tmp_path / "test.npz"), "holdout": None},
        "privacy": {"scoring": "public"},
        "search": {"epsilons": [8]},
    }
    for metric in ("auc", "balanced_accuracy"):
        result = expost.tune(job(goal={"metric": metric, "at_least": 0.8}, **tables), X, y)
        assert result.passed
        assert result.model is not None
        assert result.score is not None
        assert 0.8 <= result.score <= 1
        assert result.bounds is not None
        assert result.bounds.on_population is None
        assert result.bounds.on_scoring_rows == result.score
    with pytest.raises(InvalidInput, match="2 classes; there are 3"):
        expost.tune(
            job(
                goal={"metric": "auc"},
                model={"kind": "softmax"},
                **{**tables, "data": {**tables["data"], "classes": 3}},
            ),
            X,
            y,
        )
    np.savez(tmp_path / "test.npz", X=X[:100], y=np.zeros(100))
    with pytest.raises(InvalidInput, match="both classes"):
        expost.tune(job(goal={"metric": "auc"}, **tables), X, y)


def test_a_function_from_a_file_is_part_of_the_identity_of_a_job(tmp_path: Path) -> None:
    code = tmp_path / "own.py"
    code.write_text("def right(prediction, truth):\n    return prediction == truth\n")
    first = RowFunction("own.py:right", tmp_path)
    labels = np.array(["a", "b"])
    assert first.by_rows(labels, np.array(["a", "a"], dtype=object)).tolist() == [1, 0]
    assert pickle.loads(pickle.dumps(first)).by_rows(labels, labels.astype(object)).sum() == 2
    code.write_text("def right(prediction, truth):\n    return 1 - (prediction == truth)\n")
    second = RowFunction("own.py:right", tmp_path)
    assert first.checkpoint_identity()[:2] != second.checkpoint_identity()[:2]
    with pytest.raises(InvalidInput, match=r"goal\.metric"):
        RowFunction("own.py:wrong", tmp_path)


def test_a_function_gets_the_labels_of_the_user() -> None:
    X, y = clouds(300, noise=0.05)
    names = np.where(y == 1, "yes", "no")
    seen: set[Any] = set()

    def watched(prediction: Any, truth: Any) -> float:
        seen.add((prediction, truth))
        return float(prediction == truth)

    asked = job(data={"classes": ["no", "yes"]}, goal={"metric": watched, "metric_bounds": [0, 1]})
    expost.tune(asked, X, names)
    assert seen <= {(a, b) for a in ("no", "yes") for b in ("no", "yes")}
    assert seen


# Refusals


REFUSED = [
    ({"metric": "auc"}, "no private score.*public"),
    ({"metric": "balanced_accuracy"}, "class_shares.*public"),
    ({"metric": "balanced_accuracy", "class_shares": [0.5, 0.6]}, "sum to 1"),
    ({"metric": "balanced_accuracy", "class_shares": [1.0]}, "one share"),
    ({"class_shares": [0.5, 0.5]}, "only balanced_accuracy"),
    ({"metric": "log_loss", "at_least": None, "at_most": 0.5}, "loss_bound.*number > 0"),
    ({"metric": "log_loss", "loss_bound": 2.0}, "give at_most, or another metric"),
    ({"at_least": None, "at_most": 0.5}, "give at_least, or another metric"),
    ({"metric": "log_loss", "loss_bound": 2.0, "at_least": None, "at_most": 3}, "< loss_bound"),
    ({"metric": "r2", "loss_bound": 2.0}, "target_variance"),
    ({"loss_bound": 2.0}, "does not use"),
    ({"metric": "mse", "loss_bound": 2.0, "at_least": None, "at_most": 1}, "loss 'logistic'"),
    ({"metric": "f1"}, "give one of accuracy, balanced_accuracy"),
    ({"metric": right}, "metric_bounds"),
    ({"metric": right, "metric_bounds": [1, 0]}, "low < high"),
    ({"metric": right, "metric_bounds": [0, 0.5]}, "≤ 0.5"),
    ({"metric": "nowhere.py:f", "metric_bounds": [0, 1]}, "no such file"),
]


@pytest.mark.parametrize(("goal", "text"), REFUSED)
def test_what_does_not_fit_is_refused_before_rows_are_read(goal: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=f"(?s){text}"):
        read_settings(job(goal=goal), given_data=True)


def broken(prediction: Any, truth: Any) -> float:
    raise KeyError("made up")


def wordy(prediction: Any, truth: Any) -> Any:
    return "good"


@pytest.mark.parametrize(("metric", "text"), [(broken, "raised KeyError"), (wordy, "returned a")])
def test_a_function_that_never_works_is_refused(metric: Any, text: str) -> None:
    X, y = clouds(50)
    with pytest.raises(InvalidInput, match=text):
        expost.tune(job(goal={"metric": metric, "metric_bounds": [0, 1]}), X, y)


def test_shares_must_fit_the_classes() -> None:
    X, y = clouds(50)
    goal = {"metric": "balanced_accuracy", "class_shares": [0.5, 0.3, 0.2]}
    with pytest.raises(InvalidInput, match="give 2 shares"):
        expost.tune(job(goal=goal), X, y)


def test_scores_need_public_rows_where_no_sensitivity_is_proven() -> None:
    for name in METRICS:
        goal = GoalSettings(name, 0.5, loss_bound=1.0, target_variance=1.0)
        if name in ("auc", "balanced_accuracy"):
            for centred, rho in ((True, None), (False, 0.1)):
                with pytest.raises(InvalidInput, match="public"):
                    Score(goal, rho, centred)
        else:
            assert Score(goal, 0.1).sensitivity in (1, STEPS // 2)


@pytest.mark.parametrize("error", [ValueError, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_a_row_on_which_a_function_raises_is_the_worst(error: type[BaseException]) -> None:
    """Whatever it raises: otherwise one row would make every candidate fail."""

    def odd(prediction: int, truth: int) -> float:
        if truth == 7:
            raise error
        return 1.0

    function = RowFunction("here:odd", given=odd)
    values = function.by_rows(np.array([1, 1]), np.array([1, 7], dtype=object))
    assert values[0] == 1
    assert np.isnan(values[1])
