"""What a search releases: attributes, a certificate over all its requests, and a folder of files.

The certificate has the form of one of ``expost.tune`` if there is a target: it lists every attempt
with its charge, and the charge is their sum. Without a target there is one request, and the
certificate is that of its selection. ``expost certificate verify`` checks both. Everything in it is
released by ``fit`` or public, and ``privacy_spent_`` covers it.

Tests: ``tests/tuning/test_sklearn_certificate.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from expost.budget.signing import document_text
from expost.errors import InvalidInput, InvalidRelease, MissingExtra
from expost.privacy.guarantees import ADD_REMOVE, Guarantee
from expost.selection.noise_path import PathSearch
from expost.selection.release import Release
from expost.sklearn._estimators import DPLogisticRegression
from expost.sklearn._linear_model import DPLinearModel
from expost.sklearn._noise_reduction import NoiseReducer, linear_step, state_cost
from expost.sklearn._rows import check_bounds
from expost.sklearn._scoring import Fitted
from expost.tuning.certificate import RELATION_IN_WORDS, accountant_of
from expost.tuning.evidence import request_records
from expost.tuning.forecast import composed
from expost.tuning.job_folder import CERTIFICATE
from expost.tuning.model import Model, Recipe
from expost.tuning.model_file import MODEL
from expost.tuning.rows import held_out
from expost.tuning.run_attempts import Step
from expost.tuning.table_schema import Column, TableSchema

try:
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None


_FACTS = (
    *("path", "name", "features", "target", "bounds", "categories", "dates", "booleans"),
    *("texts", "shape", "missing", "classes", "target_bounds", "public_test"),
)


class SearchCertificate(NoiseReducer):
    """The part of :class:`~expost.sklearn.ExPostSearch` that states what was released."""

    neighbours_: str
    n_features_in_: int
    _rows: int
    _date: str

    def _conclude(
        self, steps: Sequence[Step], releases: Sequence[Release | None], *, refused: bool
    ) -> None:
        """Set the attributes of a fit from what its requests released."""
        present = [each for each in releases if each is not None]
        last = present[-1]
        fitted = last.value if isinstance(last.value, Fitted) else None
        reduced = isinstance(steps[len(releases) - 1].selector, PathSearch)
        release = last if self.target is None else _composed(last, steps, present)
        self.n_attempts_, self.budget_refused_ = len(present), refused
        self.privacy_spent_ = None if release.simulated else release.spent
        self.passed_ = fitted is not None if release.passed is None else release.passed
        self.best_params_ = dict(release.params)
        self.best_score_ = None if fitted is None else fitted.score
        path = str(release.params.get("training", "noise-reduction"))
        self.training_ = None if fitted is None else path if reduced else "dp-sgd"
        self.score_bound_ = release.score if self.target is not None else None
        if fitted is not None and fitted.lead is not None:
            # Noise reduction compares a count with its threshold; their difference is no score.
            self.score_bound_ = fitted.bound
            release = replace(release, score=fitted.bound)
        self.release_ = release
        self.best_estimator_ = None if fitted is None else fitted.estimator
        if fitted is not None and isinstance(linear_step(fitted.estimator), DPLinearModel):
            state_cost(fitted.estimator, release)
        # Written now: settings may be changed after the fit.
        self._record: dict[str, Any] | None = None
        if self.target is not None:
            with suppress(InvalidRelease, RecursionError):  # JSON cannot hold the parameters
                self._record = {
                    "kind": "tuning",
                    "ledger": [dict(each.ledger) for each in present if each.ledger is not None]
                    or None,
                    "grid": None,  # of all attempts, in "requests"
                    "requests": request_records(steps, releases),
                    "tuning": self._terms(steps, present),
                }

    def certificate(self, model: str | Path | None = None) -> str:
        """Return the certificate of the fit as JSON: what was released, and all that it cost.

        ``expost certificate`` shows it, ``expost certificate verify`` computes its price again, and
        ``expost certificate sign`` signs it. It covers every attempt.

        Parameters
        ----------
        model : str or Path, optional
            A file in which you stored the released estimator. The certificate then states its
            SHA-256 hash.

        Returns
        -------
        str
            The JSON text.

        Raises
        ------
        InvalidRelease
            JSON cannot hold the parameters of the grid.
        """
        check_is_fitted(self, "release_")
        file = None if model is None else Path(model)
        record = self.release_.as_dict(encode=lambda value: _value(value.estimator, file))
        if self.release_.passed is not None:
            if self._record is None:
                raise InvalidRelease(
                    "params", "of the grid", "a certificate holds numbers, texts and lists only"
                )
            record |= self._record
            value = self.release_.value
            if isinstance(value, Fitted) and value.lead is not None:
                record["score"] = record["tuning"]["confidence"]["bound_on_scoring_rows"]
        return document_text(record)

    def save(self, folder: str | Path) -> Path:
        """Write the released model and the certificate to a folder, as ``expost.tune(out=…)`` does.

        ``model.npz`` is written for a ``DPLogisticRegression`` or ``DPLinearRegression``;
        ``expost.load_model`` reads it. Other estimators have no file format that is safe to read:
        store them yourself, and pass the file to :meth:`certificate`.

        Parameters
        ----------
        folder : str or Path
            The folder. It is made if there is none.

        Returns
        -------
        Path
            The certificate, ``release.json``.

        Raises
        ------
        InvalidInput
            The folder contains a certificate.
        InvalidRelease
            JSON cannot hold the parameters of the grid.
        """
        check_is_fitted(self, "release_")
        place = Path(folder)
        if (place / CERTIFICATE).exists():
            raise InvalidInput(
                "folder", str(folder), f"it contains a {CERTIFICATE}; pass another folder"
            )
        place.mkdir(parents=True, exist_ok=True)
        model = None
        if isinstance(self.best_estimator_, DPLinearModel):
            model = place / MODEL
            as_model(self.best_estimator_).save(model)
        text = self.certificate(model)
        temporary = place / f".{CERTIFICATE}"
        temporary.write_text(text + "\n", encoding="utf-8")
        return temporary.replace(place / CERTIFICATE)

    def _terms(self, steps: Sequence[Step], made: Sequence[Release]) -> dict[str, Any]:
        """Return the public terms of a search with a target, for its certificate."""
        read, value = self._metric(), self.release_.value
        total = self.n_rows or self._rows
        held = 0
        if read is not None and self.n_rows is None:
            held = int(np.count_nonzero(held_out(total, self.holdout)))
        elif read is not None:
            held = round(total * self.holdout)
        # Where a row may be added or removed, only a stated number of rows is public.
        secret = self.n_rows is None and self.neighbours_ == ADD_REMOVE
        bound = self.score_bound_
        if bound is not None and self.n_rows is not None and read is not None:
            bound = min(bound, float(self.target or 0))  # the number of scoring rows is secret
        pair = self.release_.spent.as_approx()
        assert pair is not None
        noise = value.deviation if isinstance(value, Fitted) and value.lead is None else None
        return {
            "date": self._date,
            "data": self._data(),
            "model": {"kind": _name(self.estimator), "training": self.training},
            "search": {"settings": len({repr(c.params) for s in steps for c in s.candidates})},
            "goal": {
                "metric": "a function of public data" if read is None else read[0],
                "larger_is_better": True,
                "bar": float(self.target or 0),
                "confidence": self.confidence,
                **({} if read is None else self._described()),
            },
            "privacy": {"delta": pair.delta, "scoring": "public" if read is None else "private"},
            "neighbours": self.neighbours_,
            "neighbours_in_words": RELATION_IN_WORDS.get(self.neighbours_, self.neighbours_),
            "rows": None if secret else {"training": total - held, "scoring": held},
            "scoring": "a function of public data"
            if read is None
            else "noisy, on held-out rows disjoint from training",
            "score_noise": noise,
            "schedule": None,
            "converted_at_order": None,
            "accountant": accountant_of(steps),
            "budget_refused_another_attempt": self.budget_refused_,
            "warnings": [],
            "reasons": [],
            "confidence": None
            if bound is None
            else {
                "confidence": self.confidence,
                "noisy_score": self.best_score_,
                "bound_on_scoring_rows": bound,
                "bound_on_population": None,
                "why_no_bound_on_population": "a search in scikit-learn states none",
            },
            "spent": {"epsilon": pair.epsilon, "delta": pair.delta},
            "attempts": [_attempt(each) for each in made],
            "attempts_allowed": len(steps),
            "comparison": None,
        }

    def _data(self) -> dict[str, Any]:
        """Return the public facts about the rows under the names that ``expost.tune`` uses."""
        found: dict[str, Any] = dict.fromkeys(_FACTS) | {
            "holdout": self.holdout,
            "rows": self.n_rows,
        }
        names = getattr(self, "feature_names_in_", None)
        found["features"] = None if names is None else [str(each) for each in names]
        model = self.estimator
        if not isinstance(model, DPLinearModel):
            return found
        columns = range(1, self.n_features_in_ + 1)
        with suppress(InvalidInput):  # the grid sets them
            low, high = check_bounds(model.feature_bounds, "feature_bounds", names, len(columns))
            pairs = [list(pair) for pair in zip(low.tolist(), high.tolist(), strict=True)]
            known = found["features"] or [f"column {number}" for number in columns]
            found["bounds"] = dict(zip(known, pairs, strict=True))
        with suppress(InvalidInput):
            if isinstance(model, DPLogisticRegression):
                found["classes"] = model._known().tolist()
            else:
                middle, half = model._target_scale()
                found["target_bounds"] = [middle - half, middle + half]
        return found


def _composed(last: Release, steps: Sequence[Step], made: Sequence[Release]) -> Release:
    """Return the last release, with what all requests cost and could have cost."""
    if len(steps) == 1:
        return last
    spent: Guarantee = composed([each.spent for each in made])
    worst = composed([step.charges.worst_case for step in steps])
    theorem = f"{last.theorem}; sums of ε̃ and δ, {len(made)} of at most {len(steps)} attempts"
    return replace(last, spent=spent, worst_case=worst, theorem=theorem, grid=None)


def _attempt(release: Release) -> dict[str, Any]:
    """Return what a certificate says about one attempt."""
    value = release.value
    return {
        "params": release.as_dict(encode=lambda value: None)["params"],
        "score": value.score if isinstance(value, Fitted) else None,
        "passed": release.passed,
        "spent": release.spent.as_dict(),
    }


def _name(estimator: Any) -> str:
    """Return the name of an estimator's class, with its module if that is not this package."""
    kind = type(estimator)
    own = kind.__module__.startswith("expost.")
    return str(kind.__name__) if own else f"{kind.__module__}.{kind.__qualname__}"


def _value(estimator: Any, file: Path | None) -> dict[str, Any]:
    """Return what a certificate says about a released estimator."""
    value: dict[str, Any] = {"estimator": _name(estimator), "model": None}
    if file is not None:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        value |= {"model": file.name, "sha256": digest}
    return value


def as_model(estimator: DPLinearModel) -> Model:
    """Return a fitted linear estimator as a :class:`~expost.Model`, which can be saved safely."""
    names = getattr(estimator, "feature_names_in_", [None] * estimator.n_features_in_)
    low, high = np.asarray(estimator._low), np.asarray(estimator._high)
    columns = tuple(
        Column(low=float(a), high=float(b), name=None if name is None else str(name))
        for a, b, name in zip(low, high, names, strict=True)
    )
    coef, bias = np.atleast_2d(estimator.coef_), np.atleast_1d(estimator.intercept_)
    weight, bias = coef * (high - low), bias + coef @ low
    if isinstance(estimator, DPLogisticRegression):
        kind = "logistic" if len(estimator.classes_) == 2 else "softmax"
        schema = TableSchema(columns, classes=tuple(estimator.classes_.tolist()))
        return Model(Recipe(kind, kind, schema), {"weight": weight, "bias": bias})
    middle, half = estimator._target_scale()
    schema = TableSchema(columns, target_bounds=(middle - half, middle + half))
    scaled = {"weight": weight / (2 * half), "bias": (bias - middle + half) / (2 * half)}
    return Model(Recipe("linear", "squared", schema), scaled)
