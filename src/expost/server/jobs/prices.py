"""What a question would cost, and its plan: one function for counts and for tuning.

It depends on public facts alone, reads no ledger and is called in the processes of
:mod:`.price_pool`. Tests: ``tests/server/test_prices.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from expost.analytics.pricing import CountPrice
from expost.budget.limits import Budget
from expost.errors import InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ADD_REMOVE, ZCDP, PureDP
from expost.server.jobs import questions, tuning_jobs
from expost.server.jobs.datasets import ROWS
from expost.tuning.request.settings import DataSettings


@dataclass(frozen=True)
class PricedQuestion:
    """A checked question, what it may cost, and the plan behind that.

    ``reserved`` is what a count reserves; a tuning job reserves its attempts when they begin.
    """

    question: dict[str, Any]
    price: dict[str, Any]
    plan: dict[str, Any]
    charges: Charges
    reserved: CountPrice | None


def price_asked(
    facts: Mapping[str, Any], asked: Mapping[str, Any], terms: Budget
) -> PricedQuestion:
    """Check a question against public facts and price it in a budget with these terms."""
    read = tuning_jobs.read_job if asked.get("kind") == "tune" else questions.read_question
    return price_recorded(facts, read(facts, asked, terms.kind), terms)


def price_shown(
    facts: Mapping[str, Any], asked: Mapping[str, Any], terms: Budget
) -> dict[str, Any]:
    """Return what somebody is shown before they ask: a JSON form of :func:`price_asked`."""
    priced = price_asked(facts, asked, terms)
    told = {"question": priced.question, "price": priced.price, "plan": priced.plan}
    return told | {"charges": priced.charges.as_dict()}


def price_recorded(
    facts: Mapping[str, Any], question: dict[str, Any], terms: Budget
) -> PricedQuestion:
    """Price a question that was checked before."""
    if question["kind"] == "tune":
        priced = tuning_jobs.price_tuning(facts, question, terms)
        plan = dict(priced.plan)
        price = {"epsilon": plan["worst_case"], "delta": plan["delta"], "unit": "epsilon"}
        return PricedQuestion(question, _of(facts, price), plan, priced.charges, None)
    count = questions.price_question(facts, question, terms.kind)
    price = {
        "epsilon": question["epsilon"],
        "delta": question["delta"],
        "unit": "epsilon" if question["delta"] is None else "rho",
    }
    plan = questions.plan_question(facts, question)
    return PricedQuestion(question, _of(facts, price), plan, count.charges, count)


def check_budget(facts: Mapping[str, Any], terms: Budget) -> None:
    """Refuse a budget that could pay for no question about a data set."""
    kind, zero = terms.kind, ZCDP if terms.kind == "zcdp" else PureDP
    if facts["kind"] == ROWS:
        if kind == "pure":
            raise InvalidInput("budget", "pure", "tuning needs an approx, a zcdp or a renyi budget")
        relation = DataSettings(rows=facts["data"].get("rows")).relation
    else:
        relation = ADD_REMOVE
        if kind in ("zcdp", "renyi") and facts["delta"] is None:
            raise InvalidInput("delta", None, f"questions to a {kind} budget need a δ: state one")
    terms.coordinates(zero(0.0, relation))  # refuses another relation


def _of(facts: Mapping[str, Any], price: dict[str, Any]) -> dict[str, Any]:
    return price | {"budget": facts["budget"]}
