"""The result of a tuning job: the model, what it cost in all, and the record of its certificate.

Everything here may be published; what the selections keep secret is not in it. The words of a
result and the checks of its certificate are in :mod:`expost.certificates`.
Tests: ``tests/tuning/test_certificate.py``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from expost.certificates.document import composed, document_text, tuning_document, worst_in_turn
from expost.certificates.words import advice_words, certificate_words, title_of
from expost.features import Features
from expost.html_tables import html_summary
from expost.mechanisms import FAILED, NOTHING
from expost.privacy.guarantees import ApproxDP, Guarantee, RenyiDP
from expost.selection.candidate import Candidate
from expost.selection.release import Release, grid_of
from expost.tuning.model.released_model import MISSED_MODEL, MODEL, Model, Recipe
from expost.tuning.model.scoring import NOT_A_MEAN, SECRET_ROWS, Bounds, confidence_bounds
from expost.tuning.plan.job_plan import JobPlan, comparison
from expost.tuning.request.bought_facts import LearnedFacts
from expost.tuning.request.settings import GoalSettings, Settings
from expost.tuning.runs.candidates import ScoredModel, TrainAndScore, score_of
from expost.tuning.runs.path_training import Told, told_of
from expost.tuning.runs.run_attempts import Step


@dataclass(frozen=True, eq=False)
class AttemptRecord:
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
        missed its goal has ``passed`` False.
    spent : ApproxDP
        What all attempts together cost, tuning included.
    worst_case : ApproxDP
        What they could have cost.
    bounds : Bounds or None
        Lower confidence bounds for the score of a released model.
    model : Model or None
        With ``predict``. After a miss the model of the last look, if its training stops when it
        passes: that look is charged. None if only attempts with DP-SGD were made, whose misses
        release nothing, or if every run failed.
    told : Told or None
        A further noisy score of a model that missed, with an interval, if ``tell`` was given.
    facts : LearnedFacts or None
        Facts that were bought (``learn_facts``); ``spent`` and ``worst_case`` include them.
    release : Release
        The certificate; ``attempts`` is what it is composed of.
    """

    release: Release
    attempts: tuple[AttemptRecord, ...]
    spent: ApproxDP
    worst_case: ApproxDP
    bounds: Bounds | None
    model: Model | None
    model_path: Path | None
    comparison: dict[str, float] | None
    forecast: JobPlan
    details: dict[str, Any]
    told: Told | None = None
    facts: LearnedFacts | None = None

    def with_facts(self, learned: LearnedFacts) -> Tuned:
        """Return the result with facts that were bought before; its charges include theirs."""
        both = [charge + learned.charge for charge in (self.spent, self.worst_case)]
        return replace(self, facts=learned, spent=both[0], worst_case=both[1])

    @property
    def advice(self) -> list[str]:
        """What to try after a miss, from public facts and what was released; else empty."""
        return [] if self.passed else advice_words(self.record())

    @property
    def params(self) -> dict[str, Any]:
        """The settings of the released model."""
        return dict(self.release.params)

    @property
    def score(self) -> float | None:
        """The score of the released model, where more is better; noisy unless scored publicly."""
        value = self.release.value
        return value.score if isinstance(value, ScoredModel) else None

    @property
    def passed(self) -> bool:
        """Whether the released model reaches the goal (without a goal: whether there is one).

        With a goal the confidence of :attr:`bounds` belongs to this statement.
        """
        released = isinstance(self.release.value, ScoredModel)
        return released if self.release.passed is None else self.release.passed

    def __repr__(self) -> str:
        """Return the result in one line."""
        return (
            f"Tuned(passed={self.passed}, params={self.params}, score={self.score}, "
            f"spent={self.spent})"
        )

    def _repr_html_(self) -> str:
        """Return the words of the certificate for a notebook."""
        document = self.document()
        words = {name: list(lines) for name, lines in certificate_words(document)}
        return html_summary(title_of(document), words)

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
            "attempts": [_attempt(attempt) for attempt in self.attempts],
            "attempts_allowed": self.forecast.attempts,
            "told": None if self.told is None else self.told.as_dict(),
            "advice": self.advice,
            "comparison": self.comparison,
            "neighbours": self.details["neighbours"],
            "warnings": list(self.forecast.warnings),
            "simulated": self.release.simulated,
            "facts": None
            if self.facts is None
            else {"spent": self.facts.charge.as_dict(), "data": dict(self.facts.settings)},
        }

    def certificate(self) -> str:
        """Return the certificate as JSON, for ``Release.from_json`` and ``expost certificate``."""
        return document_text(self.document())

    def document(self) -> dict[str, Any]:
        """Return the certificate in plain JSON types."""
        releases = [attempt.release for attempt in self.attempts]
        if self.told is not None:
            releases.append(self.told.release)
        chosen, value = self.release, self.release.value
        if isinstance(value, ScoredModel) and value.lead is not None and self.bounds is not None:
            # A path compared a count with its threshold; their difference is no score.
            chosen = replace(chosen, score=self.bounds.on_scoring_rows)
        grids = [grid_of(step.selector, step.candidates) for step in self.forecast.requests]
        document = tuning_document(chosen, grids, releases, self.record(), self._value)
        if self.facts is not None:
            document["facts"] = dict(self.facts.certificate)
            document["total"] = {"epsilon": self.spent.epsilon, "delta": self.spent.delta}
        return document

    def record(self) -> dict[str, Any]:
        """Return the terms and the outcome of the job, ``"tuning"`` of its certificate."""
        tuning = self.forecast.in_epsilon_delta(self.release.spent)  # without facts
        return {
            **self.details,
            "confidence": self._bounds(),
            "spent": {"epsilon": tuning.epsilon, "delta": tuning.delta},
            "attempts": [_attempt(attempt) for attempt in self.attempts],
            "attempts_allowed": self.forecast.attempts,
            "told": None if self.told is None else self.told.as_dict(),
            "comparison": self.comparison,
        }

    def _bounds(self) -> dict[str, Any] | None:
        larger = self.details["goal"]["larger_is_better"]
        return None if self.bounds is None else self.bounds.as_dict(larger_is_better=larger)

    def _value(self, fitted: ScoredModel) -> dict[str, Any]:
        if self.model_path is None:
            return {"model": {name: list(value.shape) for name, value in fitted.parameters.items()}}
        digest = hashlib.sha256(self.model_path.read_bytes()).hexdigest()
        return {"model": self.model_path.name, "sha256": digest}


def conclude(
    settings: Settings,
    recipe: Recipe | None,
    job: JobPlan,
    releases: Sequence[Release | None],
    *,
    rows: int | None,
    refused: bool,
    date: str,
    folder: Path | None,
) -> Tuned:
    """Compose what the attempts released and cost.

    ``recipe``: of the models of attempts; None if they are estimators. ``rows``: the number of
    training rows; None if it is secret.
    """
    told = None
    if job.tell is not None and len(releases) > len(job.steps):
        told = told_of(settings.goal, job.tell, releases[-1])
        releases = releases[:-1]
    attempts = tuple(
        AttemptRecord(past, _step(job, number).charges.worst_case if past is None else past.spent)
        for number, past in enumerate(releases)
    )
    number = chosen_of(releases)
    chosen = releases[number] or _lost(job)
    spent = composed(
        [attempt.spent for attempt in attempts] + ([] if told is None else [told.spent])
    )
    # Attempts that a crash lost are charged more than a miss.
    worst = worst_in_turn([request.charges for request in job.requests]).at_worst(spent)
    theorem = chosen.theorem
    if job.attempts > 1:
        theorem += f"; {_composition(spent)}, {len(attempts)} of at most {job.attempts} attempts"
    release = replace(chosen, spent=spent, worst_case=worst, theorem=theorem)
    fitted = chosen.value if isinstance(chosen.value, ScoredModel) else None
    winner = _winner(job, number, chosen)
    trained = _step(job, number).recipe or recipe
    if winner is not None and isinstance(winner.mechanism, TrainAndScore):
        trained = winner.mechanism.recipe  # with the features of this candidate
    model = None
    if fitted is not None and trained is not None:
        model = Model(trained, fitted.parameters, chosen.passed)
    name = MISSED_MODEL if chosen.passed is False else MODEL
    path = None if folder is None or model is None else folder / name
    if model is not None and path is not None:
        model.save(path)
    return Tuned(
        release,
        attempts,
        job.in_epsilon_delta(spent),
        job.in_epsilon_delta(worst),
        _certified(job, number, chosen),
        model,
        path,
        None if winner is None or job.reasons or recipe is None else comparison(job, winner),
        job,
        {
            "date": date,
            **_details(settings, job, rows, fitted, trained, refused),
            "neighbours": spent.neighbours,
        },
        told,
    )


def _step(job: JobPlan, number: int) -> Step:
    """Return the request that was made as number ``number``."""
    return job.steps[min(number, len(job.steps) - 1)]


def chosen_of(releases: Sequence[Release | None]) -> int:
    """Return the number of the attempt whose outcome the job releases.

    It is the one that passed. After misses it is the one that released a model at the largest
    charge, the later one of equal charges: both are public numbers, so the choice costs nothing.
    Else it is the last one with an outcome.
    """
    for number, release in enumerate(releases):
        if release is not None and (release.passed is None or release.passed):
            return number
    missed = [
        (release.spent.size, number)
        for number, release in enumerate(releases)
        if release is not None and release.value is not NOTHING and release.value is not FAILED
    ]
    if missed:
        return max(missed)[1]
    present = [number for number, release in enumerate(releases) if release is not None]
    return present[-1] if present else len(releases) - 1


def _lost(job: JobPlan) -> Release:
    """Return what a job releases of which every attempt was lost in a crash: nothing."""
    step = job.steps[0]
    worst = step.charges.worst_case
    return Release(
        NOTHING, {}, None, None, False, worst, worst, "every attempt lost", step.selector.settings()
    )


def _winner(job: JobPlan, number: int, release: Release) -> Candidate | None:
    if release.index is None or release.value is FAILED:
        return None
    return _step(job, number).candidates[release.index]


def _certified(job: JobPlan, number: int, release: Release) -> Bounds | None:
    fitted = release.value
    if not isinstance(fitted, ScoredModel) or fitted.bounds is not None or job.margins is None:
        return fitted.bounds if isinstance(fitted, ScoredModel) else None
    winner = _winner(job, number, release)
    assert winner is not None
    score = score_of(winner)
    assert score.goal.least_score is not None
    rows: int | str = job.scoring_rows if score.metric.by_rows else NOT_A_MEAN
    return confidence_bounds(
        job.margins,
        number - sum(step.recipe is not None for step in job.steps),
        fitted.score,
        fitted.deviation,
        fitted.unit,
        SECRET_ROWS if score.centred else rows,
        score.metric.spread,
        law=score.law,
        empty=score.empty,
        worst=score.worst,
        most=score.goal.least_score if score.centred else math.inf,
    )


def _details(
    settings: Settings,
    job: JobPlan,
    rows: int | None,
    fitted: ScoredModel | None,
    recipe: Recipe | None,
    refused: bool,
) -> dict[str, Any]:
    """Return the public terms of the job, for the certificate."""
    public = settings.public()
    public["search"]["settings"] = len(public["search"]["settings"])
    del public["goal"]["value"]
    public["goal"] |= goal_record(settings.goal)
    public_scoring = settings.privacy.scoring == "public"
    return {
        **public,
        "rows": None if rows is None else {"training": rows, "scoring": job.scoring_rows},
        **({} if recipe is None else {"features": _features(recipe.features)}),
        "scoring": settings.goal.measure.scored or _scoring(job, public_scoring),
        # The count of a path has no deviation of its own; its bounds are in "confidence".
        "score_noise": None if fitted is None or fitted.lead is not None else fitted.deviation,
        "schedule": None if job.schedule is None else job.schedule.as_dict(),
        "converted_at_order": job.order,
        "accountant": accountant_of(job.steps),
        "budget_refused_another_attempt": refused,
        "warnings": list(job.warnings),
        "reasons": list(job.reasons),
    }


def _features(features: Features | None) -> dict[str, Any] | None:
    """Return the public features of the released model, in words and as a record."""
    if features is None:
        return None
    return {"in_words": features.describe(), "record": features.as_dict()}


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
    """Return the goal, what is certified in words, and the range of its values."""
    metric = goal.measure
    return {
        "value": goal.value,
        "certified": metric.described(goal.metric),
        "range": sorted([metric.worst, metric.best]) if math.isfinite(metric.spread) else None,
    }


def _scoring(job: JobPlan, public: bool) -> str:
    """Return in words how models were scored, for each kind of request that the job may make."""
    if public:
        return "exact, on rows declared public: they are not protected"
    ways = {step.recipe is not None for step in job.steps}
    said = []
    if True in ways:
        said.append("noisy counts decide, within the charge of training")
    if False in ways:
        said.append(
            "a candidate satisfies the larger of the guarantees of its training and of its score"
        )
    return "noisy, on held-out rows disjoint from training; " + "; ".join(said)


def _composition(spent: Guarantee) -> str:
    if spent.as_zcdp() is not None:
        return "sum of ρ"
    return "sums of ε̃ and δ" if spent.as_approx() is not None else "sum of Rényi charges"


def _attempt(attempt: AttemptRecord) -> dict[str, Any]:
    release = attempt.release
    charge = attempt.spent.as_dict()
    if release is None:
        return {"outcome": "lost in a crash, charged at its worst case", "spent": charge}
    value = release.value
    return {
        "params": release.as_dict(encode=lambda value: None)["params"],
        "score": value.score if isinstance(value, ScoredModel) else None,
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
    methods.append(("expost: at most possible", result.worst_case.epsilon))
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
        "target": goal["value"],
    }
