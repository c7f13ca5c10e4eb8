"""What a tuning job releases: the model, what it cost in all, and a certificate that says so.

Everything here may be published; what the selections kept secret is not in it. Tests: ``tests/tuning/test_certificate.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from expost.mechanisms.outcome import FAILED
from expost.privacy.guarantees import ApproxDP, Guarantee
from expost.selection.release import Release
from expost.tuning.candidates import Fitted, deviation_of
from expost.tuning.forecast import Forecast, comparison, composed
from expost.tuning.model import Model, Recipe
from expost.tuning.settings import Settings


@dataclass(frozen=True, eq=False)
class Attempt:
    """One request: what it released and what that cost; ``release`` is None where a crash lost it (charged at its worst)."""

    release: Release | None
    spent: Guarantee


@dataclass(frozen=True, eq=False)
class Tuned:
    """The outcome of ``expost.tune``.

    ``params, score, passed``  of the released model; the score is noisy unless it was public
    ``spent``                  of all attempts together, tuning included, as (ε, δ); ``worst_case`` what it could have been
    ``model``                  with ``predict``; None if every run failed
    ``release``                the certificate; ``attempts`` what it is composed of
    """

    release: Release
    attempts: tuple[Attempt, ...]
    spent: ApproxDP
    worst_case: ApproxDP
    model: Model | None
    model_path: Path | None
    comparison: dict[str, float] | None
    forecast: Forecast = field(repr=False)
    details: dict[str, Any] = field(repr=False)

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.release.params)

    @property
    def score(self) -> float | None:
        return self.release.score

    @property
    def passed(self) -> bool | None:
        return self.release.passed

    def as_dict(self) -> dict[str, Any]:
        """The JSON form of ``expost tune``; without a bar ``passed`` says whether there is a model."""
        return {
            "params": self.params,
            "score": self.score,
            "passed": self.model is not None if self.passed is None else self.passed,
            "spent": {"epsilon": self.spent.epsilon, "delta": self.spent.delta},
            "worst_case": {"epsilon": self.worst_case.epsilon, "delta": self.worst_case.delta},
            "theorem": self.release.theorem,
            "model": None if self.model_path is None else str(self.model_path),
            "attempts": [_attempt(each) for each in self.attempts],
            "comparison": self.comparison,
            "simulated": self.release.simulated,
        }

    def certificate(self) -> str:
        """The certificate as JSON: readable by ``Release.from_json`` and ``expost certificate``, with the job's terms added."""
        record = self.release.as_dict(encode=lambda fitted: self._value(fitted))
        record["tuning"] = {
            **self.details,
            "spent": {"epsilon": self.spent.epsilon, "delta": self.spent.delta},
            "attempts": [_attempt(each) for each in self.attempts],
            "comparison": self.comparison,
        }
        return json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False)

    def _value(self, fitted: Fitted) -> dict[str, Any]:
        if self.model_path is None:
            return {"model": {name: list(value.shape) for name, value in fitted.parameters.items()}}
        return {
            "model": self.model_path.name,
            "sha256": hashlib.sha256(self.model_path.read_bytes()).hexdigest(),
        }


def conclude(
    settings: Settings,
    recipe: Recipe,
    job: Forecast,
    releases: Sequence[Release | None],
    *,
    rows: int,
    scoring_rows: int,
    refused: bool,
    folder: Path | None,
) -> Tuned:
    """Choose among the attempts (the one that passed, else the best score, else the first) and compose what all of them cost."""
    attempts = tuple(
        Attempt(each, job.charges.worst_case if each is None else each.spent) for each in releases
    )
    present = [each for each in releases if each is not None]
    chosen = max(
        present, key=lambda each: (bool(each.passed), each.score is not None, each.score or 0.0)
    )
    allowed = settings.privacy.attempts
    most = max(allowed, len(attempts))  # a lost attempt may come on top of those allowed
    spent = composed([each.spent for each in attempts], most)
    worst = composed([job.charges.worst_case] * most, most)
    theorem = (
        chosen.theorem
        if allowed == 1
        else f"{chosen.theorem}; {_composition(spent)} of {len(attempts)} of {allowed} attempts"
    )
    release = replace(chosen, spent=spent, worst_case=worst, theorem=theorem)
    model = Model(recipe, chosen.value.parameters) if isinstance(chosen.value, Fitted) else None
    path = None if folder is None or model is None else folder / "model.npz"
    if model is not None and path is not None:
        model.save(path)
    public = settings.public()
    public["search"]["settings"] = len(public["search"]["settings"])
    index = chosen.index if chosen.value is not FAILED else None
    details = {
        **public,
        "neighbours": "add-remove: a person's row stands in its place or the place is empty; the number of places is public",
        "rows": {"training": rows, "scoring": scoring_rows},
        "scoring": "exact, on rows declared public: they are not protected"
        if settings.privacy.scoring == "public"
        else "noisy, on held-out rows disjoint from training; a candidate promises the larger of both Rényi curves at each order",
        "score_noise": None if index is None else deviation_of(job.candidates[index], scoring_rows),
        "overhead": job.overhead,
        "converted_at_order": job.order,
        "budget_refused_another_attempt": refused,
    }
    return Tuned(
        release,
        attempts,
        job.in_epsilon_delta(spent),
        job.in_epsilon_delta(worst),
        model,
        path,
        None if index is None else comparison(job, index),
        job,
        details,
    )


def _composition(spent: Guarantee) -> str:
    return "sums of ε̃ and δ" if isinstance(spent, ApproxDP) else "sum of Rényi charges"


def _attempt(attempt: Attempt) -> dict[str, Any]:
    release = attempt.release
    charge = attempt.spent.as_dict()
    if release is None:
        return {"outcome": "lost in a crash, charged at its worst", "spent": charge}
    return {
        "params": dict(release.params),
        "score": release.score,
        "passed": release.passed,
        "spent": charge,
    }


def picture(result: Tuned) -> dict[str, Any]:
    """The values of the figure of a job (:func:`expost.plots.draw_tuning`), all of them released.

    Methods are compared for one request at the δ of one request, with the same grid and the same
    expected number of trainings. Lost attempts have no score and are not shown.
    """
    job, goal = result.forecast, result.details["goal"]
    sign = 1.0 if goal["metric"] == "accuracy" else -1.0
    cost, attempts = job.charges.worst_case, []
    for count, each in enumerate(result.attempts, start=1):
        release = each.release
        if release is None or release.score is None or release.index is None:
            continue
        if (release.index, release.score) == (result.release.index, result.release.score):
            cost = each.spent
        so_far = composed([attempt.spent for attempt in result.attempts[:count]], count)
        noise = deviation_of(job.candidates[release.index], result.details["rows"]["scoring"])
        spent = job.in_epsilon_delta(so_far).epsilon
        attempts.append((spent, sign * release.score, noise, release.passed))
    methods = [
        ("expost: this outcome", job.in_epsilon_delta(cost).epsilon),
        (
            "expost: most expensive outcome",
            job.in_epsilon_delta(job.charges.worst_case).epsilon,
        ),
    ]
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
        "attempts": attempts,
        "total_delta": result.spent.delta,
        "metric": goal["metric"],
        "target": goal["bar"],
    }
