"""What a tuning job releases: the model, what it cost in all, and a certificate that says so.

Everything here may be published; what the selections keep secret is not in it.
Tests: ``tests/tuning/test_certificate.py``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from expost.budget.signing import document_text
from expost.mechanisms.outcome import FAILED, NOTHING
from expost.privacy.guarantees import ADD_REMOVE, ZERO_OUT, ApproxDP, Guarantee, RenyiDP
from expost.selection.candidate import Candidate
from expost.selection.release import Release
from expost.tuning.candidates import Fitted, TrainAndScore
from expost.tuning.confidence import NOT_A_MEAN, SECRET_ROWS, Bounds, bounds_of
from expost.tuning.evidence import request_records
from expost.tuning.forecast import Forecast, comparison, composed
from expost.tuning.goal_settings import GoalSettings
from expost.tuning.model import Model, Recipe
from expost.tuning.model_file import MODEL
from expost.tuning.run_attempts import Step
from expost.tuning.settings import Settings
from expost.tuning.words import bounds_words, certified_words, score_words

RELATION_IN_WORDS = {
    ZERO_OUT: "a person's row stands in its place or the place is empty; the number of places is "
    "public",
    ADD_REMOVE: "a person's row is in the data or not; the number of rows is not public",
}
"""The neighbouring relations of tuning jobs, for certificates."""


@dataclass(frozen=True, eq=False)
class Attempt:
    """One request: what it released and what that cost.

    ``release`` is None where a crash lost it; it is then charged at its worst case.
    """

    release: Release | None
    spent: Guarantee


@dataclass(frozen=True, eq=False, repr=False)
class Tuned:
    """The outcome of ``expost.tune``.

    Attributes
    ----------
    params, score, passed
        Of the released model; the score is noisy unless the scoring rows are public. A job that
        missed its bar has no params, no score and ``passed`` False.
    spent : ApproxDP
        What all attempts together cost, tuning included.
    worst_case : ApproxDP
        What they could have cost.
    bounds : Bounds or None
        Lower confidence bounds for the score of a released model.
    model : Model or None
        With ``predict``; None if the bar was missed or every run failed.
    release : Release
        The certificate; ``attempts`` is what it is composed of.
    """

    release: Release
    attempts: tuple[Attempt, ...]
    spent: ApproxDP
    worst_case: ApproxDP
    bounds: Bounds | None
    model: Model | None
    model_path: Path | None
    comparison: dict[str, float] | None
    forecast: Forecast
    details: dict[str, Any]

    @property
    def params(self) -> dict[str, Any]:
        """The settings of the released model."""
        return dict(self.release.params)

    @property
    def score(self) -> float | None:
        """The score of the released model, where more is better; noisy unless scored publicly."""
        value = self.release.value
        return value.score if isinstance(value, Fitted) else None

    @property
    def passed(self) -> bool:
        """Whether a model was released that reaches the bar (without a bar: whether there is one).

        With a bar the confidence of :attr:`bounds` belongs to this statement.
        """
        return self.model is not None if self.release.passed is None else self.release.passed

    def __repr__(self) -> str:
        """Return the result in one line."""
        return (
            f"Tuned(passed={self.passed}, params={self.params}, score={self.score}, "
            f"spent={self.spent})"
        )

    def _repr_html_(self) -> str:
        """Return the result for a notebook."""
        from expost.html_tables import html_summary

        record = self.record()
        facts = {
            "parameters": self.params,
            "score": certified_words(record["goal"]),
            "its value (noisy unless scored publicly)": score_words(record),
            "target reached": self.passed,
            "certified": bounds_words(record),
            "spent, tuning included": self.spent,
            "worst case": self.worst_case,
            "attempts made": len(self.attempts),
            "theorem": self.release.theorem,
            "simulated (not private)": self.release.simulated,
        }
        return html_summary("Tuned model" if self.passed else "No model", facts)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of ``expost tune``."""
        return {
            "params": self.params,
            "score": self.score,
            "passed": self.passed,
            "certified": self.details["goal"]["certified"],
            "confidence": self._bounds(),
            "spent": {"epsilon": self.spent.epsilon, "delta": self.spent.delta},
            "worst_case": {"epsilon": self.worst_case.epsilon, "delta": self.worst_case.delta},
            "theorem": self.release.theorem,
            "model": None if self.model_path is None else str(self.model_path),
            "attempts": [_attempt(each) for each in self.attempts],
            "attempts_allowed": self.forecast.attempts,
            "comparison": self.comparison,
            "neighbours": self.details["neighbours"],
            "warnings": list(self.forecast.warnings),
            "simulated": self.release.simulated,
        }

    def certificate(self) -> str:
        """Return the certificate as JSON, for ``Release.from_json`` and ``expost certificate``."""
        record = self.release.as_dict(encode=self._value)
        record["kind"] = "tuning"
        value = self.release.value
        if isinstance(value, Fitted) and value.lead is not None and self.bounds is not None:
            # A path compared a count with its threshold; their difference is no score.
            record["score"] = self.bounds.on_scoring_rows
        record["ledger"] = self._entries()
        record["grid"] = None  # of all attempts, in "requests"
        record["requests"] = request_records(
            self.forecast.steps, [each.release for each in self.attempts]
        )
        record["tuning"] = self.record()
        return document_text(record)

    def record(self) -> dict[str, Any]:
        """Return the terms and the outcome of the job, ``"tuning"`` of its certificate."""
        return {
            **self.details,
            "confidence": self._bounds(),
            "spent": {"epsilon": self.spent.epsilon, "delta": self.spent.delta},
            "attempts": [_attempt(each) for each in self.attempts],
            "attempts_allowed": self.forecast.attempts,
            "comparison": self.comparison,
        }

    def _entries(self) -> list[dict[str, Any]] | None:
        """Return the ledger entries that paid, one per attempt; None without a ledger."""
        paid = [each.release.ledger for each in self.attempts if each.release is not None]
        return [dict(each) for each in paid if each is not None] or None

    def _bounds(self) -> dict[str, Any] | None:
        larger = self.details["goal"]["larger_is_better"]
        return None if self.bounds is None else self.bounds.as_dict(larger_is_better=larger)

    def _value(self, fitted: Fitted) -> dict[str, Any]:
        if self.model_path is None:
            return {"model": {name: list(value.shape) for name, value in fitted.parameters.items()}}
        digest = hashlib.sha256(self.model_path.read_bytes()).hexdigest()
        return {"model": self.model_path.name, "sha256": digest}


def conclude(
    settings: Settings,
    recipe: Recipe,
    job: Forecast,
    releases: Sequence[Release | None],
    *,
    rows: int,
    refused: bool,
    date: str,
    folder: Path | None,
) -> Tuned:
    """Compose what the attempts released and cost."""
    attempts = tuple(
        Attempt(each, _step(job, number).charges.worst_case if each is None else each.spent)
        for number, each in enumerate(releases)
    )
    number = _chosen(releases)
    chosen = releases[number] or _lost(job)
    spent = composed([each.spent for each in attempts])
    most = max(len(job.steps), len(attempts))  # a request without a bar is repeated if lost
    worst = composed([_step(job, number).charges.worst_case for number in range(most)])
    theorem = chosen.theorem
    if job.attempts > 1:
        theorem += f"; {_composition(spent)}, {len(attempts)} of at most {job.attempts} attempts"
    release = replace(chosen, spent=spent, worst_case=worst, theorem=theorem)
    fitted = chosen.value if isinstance(chosen.value, Fitted) else None
    made = _step(job, number).recipe or recipe
    model = None if fitted is None else Model(made, fitted.parameters)
    path = None if folder is None or model is None else folder / MODEL
    if model is not None and path is not None:
        model.save(path)
    winner = _winner(job, number, chosen)
    return Tuned(
        release,
        attempts,
        job.in_epsilon_delta(spent),
        job.in_epsilon_delta(worst),
        _certified(job, number, chosen),
        model,
        path,
        None if winner is None or job.reasons else comparison(job, winner),
        job,
        {"date": date, **_details(settings, job, rows, fitted, made, refused)},
    )


def _step(job: Forecast, number: int) -> Step:
    """Return the request that was made as number ``number``."""
    return job.steps[min(number, len(job.steps) - 1)]


def _chosen(releases: Sequence[Release | None]) -> int:
    """Return the number of the attempt that passed, else of the last one with an outcome."""
    for number, each in enumerate(releases):
        if each is not None and (each.passed is None or each.passed):
            return number
    present = [number for number, each in enumerate(releases) if each is not None]
    return present[-1] if present else len(releases) - 1


def _lost(job: Forecast) -> Release:
    """Return what a job releases of which every attempt was lost in a crash: nothing."""
    step = job.steps[0]
    worst = step.charges.worst_case
    return Release(
        NOTHING, {}, None, None, False, worst, worst, "every attempt lost", step.selector.settings()
    )


def _winner(job: Forecast, number: int, release: Release) -> Candidate | None:
    if release.index is None or release.value is FAILED:
        return None
    return _step(job, number).candidates[release.index]


def _certified(job: Forecast, number: int, release: Release) -> Bounds | None:
    fitted = release.value
    if not isinstance(fitted, Fitted) or fitted.bounds is not None or job.margins is None:
        return fitted.bounds if isinstance(fitted, Fitted) else None
    winner = _winner(job, number, release)
    assert winner is not None
    assert isinstance(winner.mechanism, TrainAndScore)
    score = winner.mechanism.score
    assert score.goal.target is not None
    rows: int | str = job.scoring_rows if score.metric.by_rows else NOT_A_MEAN
    return bounds_of(
        job.margins,
        number - sum(step.recipe is not None for step in job.steps),
        fitted.score,
        fitted.deviation,
        fitted.unit,
        SECRET_ROWS if score.centred else rows,
        score.metric.spread,
        empty=score.empty,
        worst=score.worst,
        most=score.goal.target if score.centred else math.inf,
    )


def _details(
    settings: Settings,
    job: Forecast,
    rows: int,
    fitted: Fitted | None,
    recipe: Recipe,
    refused: bool,
) -> dict[str, Any]:
    """Return the public terms of the job, for the certificate."""
    features = recipe.features
    public = settings.public()
    public["search"]["settings"] = len(public["search"]["settings"])
    public["goal"] |= goal_record(settings.goal)
    public_scoring = settings.privacy.scoring == "public"
    return {
        **public,
        "neighbours": settings.data.relation,
        "neighbours_in_words": RELATION_IN_WORDS[settings.data.relation],
        "rows": {"training": rows, "scoring": job.scoring_rows},
        "features": None
        if features is None
        else {"in_words": features.describe(), "record": features.as_dict()},
        "scoring": _scoring(job, public_scoring),
        # The count of a path has no deviation of its own; its bounds are in "confidence".
        "score_noise": None if fitted is None or fitted.lead is not None else fitted.deviation,
        "schedule": None if job.schedule is None else job.schedule.as_dict(),
        "converted_at_order": job.order,
        "accountant": accountant_of(job.steps),
        "budget_refused_another_attempt": refused,
        "warnings": list(job.warnings),
        "reasons": list(job.reasons),
    }


def accountant_of(steps: Sequence[Step]) -> str | None:
    """Return by what the noise of DP-SGD was calibrated to its levels; None without DP-SGD."""
    names = {
        candidate.guarantee.as_profile().accountant
        for step in steps
        for candidate in step.candidates
        if isinstance(candidate.guarantee, RenyiDP)
    }
    return "; ".join(sorted(names)) or None


def goal_record(goal: GoalSettings) -> dict[str, Any]:
    """Return what is certified in words, and the range of its values, for the certificate."""
    metric = goal.measure
    return {
        "certified": metric.described(goal.metric),
        "range": sorted([metric.worst, metric.best]),
    }


def _scoring(job: Forecast, public: bool) -> str:
    """Return in words how models were scored, for each kind of request that the job may make."""
    if public:
        return "exact, on rows declared public: they are not protected"
    ways = {step.recipe is not None for step in job.steps}
    found = []
    if True in ways:
        found.append("counts are compared with noisy thresholds, within the charge of training")
    if False in ways:
        found.append(
            "a DP-SGD candidate promises the larger of both Rényi curves at each order, and of "
            "both privacy profiles"
        )
    return "noisy, on held-out rows disjoint from training; " + "; ".join(found)


def _composition(spent: Guarantee) -> str:
    return "sums of ε̃ and δ" if spent.as_approx() is not None else "sum of Rényi charges"


def _attempt(attempt: Attempt) -> dict[str, Any]:
    release = attempt.release
    charge = attempt.spent.as_dict()
    if release is None:
        return {"outcome": "lost in a crash, charged at its worst case", "spent": charge}
    value = release.value
    return {
        "params": dict(release.params),
        "score": value.score if isinstance(value, Fitted) else None,
        "passed": release.passed,
        "spent": charge,
    }


def picture(result: Tuned) -> dict[str, Any]:
    """Return the values of the figure of a job (:func:`expost.plots.draw_tuning`).

    All of them are released. Methods are compared at the job's δ, with the same grid and the same
    expected number of trainings.
    """
    job, goal = result.forecast, result.details["goal"]
    sign = 1.0 if goal["larger_is_better"] else -1.0
    points = []
    if result.score is not None:
        noise = result.details["score_noise"] or 0.0
        low, high = goal["range"]
        shown = min(max(sign * result.score, low), high)
        points.append((result.spent.epsilon, shown, noise, result.release.passed))
    methods = [("expost: this job", result.spent.epsilon)]
    if job.attempts == 1:
        methods.append(("expost: most expensive outcome", result.worst_case.epsilon))
    if result.comparison is not None:
        methods += [
            (
                "repeat and select, all levels\n(Papernot–Steinke)",
                result.comparison["papernot_steinke"],
            ),
            (
                "repeat and select, if this level\nhad been known in advance",
                result.comparison["papernot_steinke_level"],
            ),
            (
                "train every setting up to\nthis level (composition)",
                result.comparison["naive_composition"],
            ),
        ]
    return {
        "methods": methods,
        "delta": job.delta,
        "attempts": points,
        "total_delta": result.spent.delta,
        "metric": goal["certified"],
        "target": goal["bar"],
    }
