"""Every word: each screen, certificate and report compared with the record it speaks of.

One true job per way of training. The other cases are made from their results: the metric, the
direction, the bounds and the settings are put into the record, and the public functions render it,
for every metric, way of training, axis of a grid and encoding of a terminal.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import expost
from expost.certificates import officer_report as documents
from expost.certificates.words import bound_text
from expost.cli import main as command
from expost.cli import tune as tune_command
from expost.randomness.source import SimulationRandomness
from expost.server.jobs import tuning_jobs
from expost.tuning.model.scoring import SECRET_ROWS, Bounds
from expost.tuning.model.tuned import Tuned, goal_record
from expost.tuning.request.metrics import METRICS, RowFunction
from expost.tuning.request.settings import GoalSettings
from expost.tuning.request.tune_request import keys_of
from tests.tuning.jobs import clouds, job

ENCODINGS = ("utf-8", "ascii", "latin-1", "cp1252")
SEARCH = {"epsilons": [4], "learning_rates": [4], "epochs": [2], "batch_sizes": [100]}
PATH = {"model": {"training": "progressive"}, "privacy": {"attempts": None}}
NONE = dict.fromkeys(("epsilons", "learning_rates", "epochs", "batch_sizes", "clips"))
WAYS: dict[str, dict[str, Any]] = {
    "dp-sgd": {"model": {"training": "dp-sgd"}, "search": SEARCH, "privacy": {"attempts": 1}},
    "noise-reduction": PATH
    | {
        "search": NONE,
        "data": {"classes": None, "target_bounds": [0, 1]},
        "model": {"kind": "linear", "training": "noise-reduction"},
        "goal": {"metric": "mse", "at_least": None, "at_most": 0.4, "loss_bound": 1.0},
    },
    "progressive": PATH | {"search": NONE},
    "auto": {"model": {"training": "auto"}, "search": SEARCH, "privacy": {"attempts": 1}},
    "secret rows": PATH | {"search": NONE, "data": {"rows": 600}},
}
GOALS: dict[str, GoalSettings] = {
    "accuracy": GoalSettings("accuracy", 0.8),
    "balanced_accuracy": GoalSettings("balanced_accuracy", 0.8),
    "stated shares": GoalSettings("balanced_accuracy", 0.8, class_shares=(0.9, 0.1)),
    "log_loss": GoalSettings("log_loss", 0.4, loss_bound=4.0),
    "auc": GoalSettings("auc", 0.8),
    "mae": GoalSettings("mae", 1.5, loss_bound=10.0),
    "mse": GoalSettings("mse", 2.5, loss_bound=100.0),
    "r2": GoalSettings("r2", 0.5, loss_bound=100.0, target_variance=9.0),
    "loss": GoalSettings("loss", 2.5, loss_bound=10.0),
    "token_accuracy": GoalSettings("token_accuracy", 0.5),
    "own, larger": GoalSettings(
        "gain", 2.0, metric_bounds=(-5.0, 5.0), function=RowFunction("gain", given=max)
    ),
    "own, smaller": GoalSettings(
        *("[cost]", 2.0),
        metric_bounds=(0.0, 5.0),
        larger_is_better=False,
        function=RowFunction("[cost]", given=max),
    ),
}
AXES: dict[str, dict[str, Any]] = {
    "learning_rates": {"learning_rate": 0.123456789},
    "epochs": {"epochs": 4.0},
    "batch_sizes": {"batch_size": 64},
    "clips": {"clip": 1.0},
    "optimisers": {"optimiser": "adam"},
    "schedules": {"schedule": "cosine"},
    "weight_decays": {"weight_decay": 1e-4},
    "class_weights": {"class_weights": [1.0, 4.0]},
    "features": {"features": "plain"},
    "model": {"model": "nets.py:make"},
    "arguments": {"width": 8},
}


def test_every_metric_and_axis_is_in_the_tables() -> None:
    """Catches a metric or an axis that is added without its words."""
    assert {goal.metric for goal in GOALS.values()} >= set(METRICS)
    assert set(AXES) == set(keys_of("search")) - {"epsilons", "samples"}


@pytest.fixture(scope="module")
def results() -> dict[str, Tuned]:
    """One true job per way of training."""
    X, y = clouds(600, noise=0.05)
    made = {}
    for way, changes in WAYS.items():
        tables = job(**({"goal": {"at_least": 0.6}} | changes))
        if not tables["search"]:
            del tables["search"]
        for seed in range(9):
            source = SimulationRandomness(seed)
            made[way] = expost.tune(tables, X, y, randomness=source, simulation=True)
            if made[way].passed:
                break
        assert made[way].passed, way
    return made


def spoken(result: Tuned, goal: GoalSettings, params: dict[str, Any], beyond: bool) -> Tuned:
    """The result as if it had been released for another goal and setting.

    With ``beyond`` noise carried the score and its bounds beyond the range of the metric.
    """
    sign = 1.0 if goal.larger_is_better else -1.0
    metric, bar = goal.measure, goal.least_score
    assert bar is not None
    step = 0.07 * metric.spread
    lead = 3 * metric.spread if beyond else 0.123456 * step
    secret = result.details["rows"] is not None and result.details["data"]["rows"] is not None
    bounds = Bounds(
        result.bounds.confidence if result.bounds else 0.9,
        bar + lead + step,
        bar if secret else bar + lead,
        None if secret else bar + lead - step,
        SECRET_ROWS if secret else None,
    )
    value = replace(result.release.value, score=bar + lead + step, bounds=bounds)
    attempts = tuple(
        replace(each, release=replace(each.release, value=value, params={"epsilon": 1, **params}))
        for each in result.attempts
    )
    told = {**result.details["goal"], "metric": goal.metric, "value": sign * bar}
    told |= {"larger_is_better": goal.larger_is_better, **goal_record(goal)}
    return replace(
        result,
        release=replace(
            result.release,
            value=value,
            params={"epsilon": result.params["epsilon"], **params},
            selector={**result.release.selector},
        ),
        attempts=attempts,
        bounds=bounds,
        details={**result.details, "goal": told},
    )


Screens = Callable[[Tuned, str], tuple[str, str]]


@pytest.fixture
def screens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Screens]:
    """``expost tune`` and ``expost certificate`` on a terminal of an encoding, lines joined.

    The command receives the result from the test in place of a job; parsing, printing and exit code
    are its own.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("job.toml").write_text('[goal]\nmetric = "accuracy"\n', encoding="utf-8")

    def run(encoding: str, *arguments: str) -> str:
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "argv", ["expost", *arguments])
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            with pytest.raises(SystemExit) as end:
                command.main()
        assert end.value.code in (None, 0, 5), arguments
        stream.flush()
        text = stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
        return " ".join(re.sub(r"[│|]", " ", text).split())

    def show(result: Tuned, encoding: str) -> tuple[str, str]:
        monkeypatch.setattr(tune_command, "tune_model", lambda *_, **__: result)
        Path("release.json").write_text(result.certificate() + "\n", encoding="utf-8")
        screen = run(encoding, "tune", "job.toml", "--out", "out", "--verbose")
        return screen, run(encoding, "certificate", "release.json", "--verbose")

    return show


def expected_words(result: Tuned) -> list[str]:
    """What must be read of a result, computed from its fields."""
    goal, bounds = result.details["goal"], result.bounds
    assert bounds is not None
    sign, larger = (1, True) if goal["larger_is_better"] else (-1, False)
    side = "at least" if larger else "at most"
    low, high = goal["range"]

    def within(value: float) -> float:
        return min(max(sign * value, low), high)

    words = [
        f"{goal['certified']} {'≥' if larger else '≤'} {goal['value']:g}",
        f"{within(bounds.noisy):.4g}",
        f"{side} {bound_text(within(bounds.on_scoring_rows), larger)} on the scoring rows",
        f"({100 * goal['confidence']:g} % confidence each)",
    ]
    if bounds.on_population is None:
        words.append(f"no bound for new rows: {bounds.why_none}")
    else:
        new = bound_text(within(bounds.on_population), larger)
        words.append(f"{side} {new} on new rows of the same population")
    return words


def plain(text: str, encoding: str) -> str:
    """The text as a terminal of this encoding shows it."""
    return text.encode(encoding, "expost.plain").decode(encoding)


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("way", WAYS)
def test_every_metric_and_way_of_training(results, screens: Screens, way: str, goal: str) -> None:
    """Catches "auc at most 0.8", an accuracy of 1.069, DP-SGD for a noise path, a lost note."""
    for beyond, encoding in ((False, "utf-8"), (True, "cp1252")):
        result = spoken(results[way], GOALS[goal], {}, beyond)
        for shown in screens(result, encoding):
            for text in expected_words(result):
                assert plain(text, encoding) in shown, (way, goal, encoding, text)
            assert "cannot be read" not in shown
        said = report_of(result)
        whole = json.dumps(said, ensure_ascii=False)
        record = result.details["goal"]
        side = "at least" if record["larger_is_better"] else "at most"
        assert f"whose {record['certified']} is {side} {record['value']:g}" in whole
        for text in expected_words(result)[1:]:
            assert text in whole, (way, goal, text)
        released, printed = pages_of(result, said)
        for text in expected_words(result):
            assert text in released, (way, goal, text)
        for text in expected_words(result)[1:]:
            assert text in printed, (way, goal, text)
        mechanism = section(said, "Mechanism and theorem")
        trained = {"dp-sgd": "dp-sgd", "noise-reduction": "moments"}
        how = {"dp-sgd": "DP-SGD", "moments": "One linear model whose noise"}
        for name, text in {**how, "progressive": "One training with all rows"}.items():
            assert (text in mechanism) == (name == trained.get(way, "progressive")), (way, text)
        progressive = way not in trained
        for shown in screens(result, "utf-8"):
            assert ("continued until the score passes" in shown) == progressive
            assert ("noise is reduced" in shown) == (trained.get(way) == "moments")
        assert ("features" in shown and "constant column" in shown) == progressive


def test_only_an_exact_metric_keeps_its_name() -> None:
    """Catches a certified "balanced accuracy" whose classes were weighted by stated shares."""
    assert goal_record(GOALS["balanced_accuracy"])["certified"] == "balanced_accuracy"
    stated = goal_record(GOALS["stated shares"])["certified"]
    assert stated == "accuracy weighted by the stated class shares (0.9, 0.1)"


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("axis", AXES)
def test_every_axis_on_every_terminal(results, screens: Screens, axis: str, encoding: str) -> None:
    """Catches a setting or a letter that ends a screen after the release was paid for."""
    ((name, value),) = AXES[axis].items()
    texts = {list: "[1, 4]", str: value, float: f"{value:g}" if type(value) is float else ""}
    for shown in screens(
        spoken(results["dp-sgd"], GOALS["own, smaller"], AXES[axis], False), encoding
    ):
        assert f"{name} = {texts.get(type(value), str(value))}" in shown
        assert "[cost]" in shown  # not read as markup


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_json_is_the_same_on_every_terminal(
    results, screens: Screens, encoding: str, capsys
) -> None:
    """Catches JSON that a terminal's encoding changes."""
    result = results["auto"]
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "argv", ["expost", "tune", "job.toml", "--out", "out", "--json"])
        patch.setattr(tune_command, "tune_model", lambda *_, **__: result)
        with pytest.raises(SystemExit) as end:
            command.main()
    assert not end.value.code
    stream.flush()
    raw = stream.buffer.getvalue()  # type: ignore[attr-defined]
    assert json.loads(raw.decode("utf-8" if encoding == "ascii" else encoding)) == result.as_dict()


def server_release(result: Tuned) -> dict[str, Any]:
    """What a server stores of a job."""
    certificate = json.loads(result.certificate())
    request = {"id": "a" * 16, "kind": "tune", "memo": "", "question": {}, "person": "ann"}
    request |= {"dataset": "rows", "errors": []}
    return {
        "request": request | {"created": "2026-01-01T00", "published": "2026-01-01T00"},
        "result": tuning_jobs.result_of(certificate),
        "certificate": certificate,
    }


def report_of(result: Tuned) -> dict[str, Any]:
    """The report that a server shows officers."""
    return documents.report(
        server_release(result),
        {"name": "rows", "values": {}, "user": None},
        {"name": "b", "kind": "approx", "budget": {"epsilon": 1.0, "delta": 1e-5}},
    )


def pages_of(result: Tuned, report: dict[str, Any]) -> list[str]:
    """The page of a release and its report to print, as text."""
    pytest.importorskip("fastapi")
    from expost.server.pages import release_pages
    from expost.server.people.accounts import Person

    server: Any = SimpleNamespace(
        release=lambda *_: server_release(result),
        report=lambda *_: report,
        dataset=lambda *_: {},
        settings=None,
    )
    me = Person("ann", "analyst")
    bodies = [
        release_pages._release(server, me, "a", None).body,
        release_pages.report_page(server, me, "a").body,
    ]
    texts = [unescape(bytes(body).decode("utf-8")) for body in bodies]
    return [" ".join(re.sub(r"<[^>]*>", " ", text).split()) for text in texts]


def section(report: dict[str, Any], heading: str) -> str:
    (text,) = [each["text"] for each in report["sections"] if each["heading"] == heading]
    return str(text)


OUTCOMES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "missed": (
        WAYS["progressive"] | {"goal": {"at_least": 0.94}},
        [
            "the last model is released as missed, because it is charged",
            "what to try - a lower goal",
        ],
    ),
    "the best": (
        WAYS["dp-sgd"] | {"goal": {"at_least": None, "maximize": True}},
        ["Done: the best model of one search", "of its noise)"],
    ),
    "all axes": (
        WAYS["dp-sgd"]
        | {
            "goal": {"at_least": 0.55},
            "search": SEARCH
            | {"class_weights": [[1.0, 1.0]], "optimisers": ["adam"], "schedules": ["cosine"]}
            | {"features": ["plain"]},
        },
        ["class_weights = [1, 1]", "optimiser = adam", "schedule = cosine", "features = plain"],
    ),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_true_jobs_with_other_outcomes(screens: Screens, outcome: str) -> None:
    """Catches an outcome that no screen, certificate or report can state."""
    changes, words = OUTCOMES[outcome]
    X, y = clouds(600, noise=0.3 if outcome == "missed" else 0.05)
    tables = job(**changes)
    if not tables["search"]:
        del tables["search"]
    wanted = outcome != "missed"
    for seed in range(9):
        source = SimulationRandomness(seed)
        result = expost.tune(tables, X, y, randomness=source, simulation=True)
        if result.passed == wanted:
            break
    for encoding in ENCODINGS:
        screen, shown = screens(result, encoding)
        assert all(plain(text, encoding) in screen for text in words), screen
        assert "cannot be read" not in shown
    page, _ = pages_of(result, report_of(result))
    assert ("A model was released" in page) == wanted


@pytest.mark.parametrize("way", WAYS)
def test_charges_are_never_shown_below_what_was_paid(results, screens: Screens, way: str) -> None:
    """Catches a charge that is rounded to the nearest digit, in every text that states one."""
    result = results[way]
    paid = result.spent.epsilon
    numbers = re.compile(r"ε = ([0-9.e+-]+[0-9])")
    screen, shown = screens(result, "utf-8")
    assert float(re.findall(r"charge ε = ([0-9.]+)", screen)[0]) >= paid
    assert (
        float(re.findall(r"at most ([0-9.]+) was possible", screen)[0]) >= result.worst_case.epsilon
    )
    assert min(float(each) for each in numbers.findall(shown)) >= min(
        each.spent.as_approx().epsilon for each in result.attempts
    )
    text = json.dumps(report_of(result), ensure_ascii=False)
    told = re.findall(r"of what was released \(([0-9.e-]+)\)", text) + numbers.findall(text)
    assert told
    assert all(float(each) >= paid or float(each) == 1.0 for each in told)


def test_every_charge_of_a_page_is_rounded_up() -> None:
    """Catches a page that shows less than was charged, or more than is left."""
    pytest.importorskip("fastapi")
    from expost.certificates.document import certainty_text
    from expost.server.pages.amounts import amount, limit, loss_text

    generator = np.random.default_rng(1)
    for value in map(float, 10 ** generator.uniform(-9, 4, 500)):
        assert float(loss_text(value).replace(",", "")) >= value
        assert float(amount(value)[2:].replace(",", "")) >= value
        assert float(limit(value)[2:].replace(",", "")) <= value
        certain = 1 / (1 + np.exp(-min(value, 50.0)))
        assert certain <= float(certainty_text(value)) / 100 + 1e-12 <= 1 + 1e-9
    assert loss_text(0.1) == limit(0.1)[2:] == "0.1"
