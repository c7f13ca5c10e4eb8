"""Data sets, the price of a question, and asking.

The price comes from public facts. The form of a question is sent by GET, so that it works without
JavaScript; the script of the page fetches the same address while the slider moves. What is asked is
the question as it was priced, with its ε.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import Response

from expost.errors import InvalidInput
from expost.server import models
from expost.server.pages import forms
from expost.server.pages.rendering import (
    Desk,
    Form,
    Me,
    Sender,
    checked,
    go,
    new_key,
    page,
    real,
    reals,
    text,
    whole,
)
from expost.server.people import Person
from expost.server.problems import DeskError
from expost.server.roles import ALLOWED
from expost.server.service import Service

router = APIRouter()


@router.get("/datasets")
def datasets(desk: Desk, me: Me) -> Response:
    """List the data sets, and what is left for each."""
    return page("datasets.html", me, datasets=desk.datasets(me))


@router.get("/datasets/{name}")
def dataset(desk: Desk, me: Me, name: str) -> Response:
    """Show the public facts of one data set."""
    return page("dataset.html", me, dataset=desk.dataset(me, name))


@router.get("/ask/{name}")
def ask_page(request: Request, desk: Desk, me: Me, name: str) -> Response:
    """Show the form of a question and, from the plan, its price."""
    facts = desk.dataset(me, name)
    return _ask_page(desk, me, facts, request.query_params)


def _ask_page(desk: Service, me: Person, facts: Mapping[str, Any], given: QueryParams) -> Response:
    tuned = facts["kind"] == "rows"
    fill = forms.job_fields(facts, given) if tuned else forms.question_fields(facts, given)
    price, problem, question = None, None, None
    if me.role in ALLOWED["price"]:
        try:
            asked = forms.job(facts, fill) if tuned else forms.question(facts, fill)
            question = checked(models.Question, asked).asked()
            price = desk.price(me, question)
            if not tuned:  # what is asked is what was priced, also if facts change meanwhile
                question["epsilon"] = price["question"]["epsilon"]
        except (InvalidInput, DeskError) as error:
            problem = error
    return page(
        "ask_tune.html" if tuned else "ask.html",
        me,
        dataset=facts,
        fill=fill,
        price=price,
        problem=problem,
        question=json.dumps(question),
        key=new_key(),
    )


@router.post("/ask/{name}")
def ask(desk: Desk, me: Sender, form: Form, name: str) -> Response:
    """Ask a question that was priced."""
    question = _priced_question(form)
    if question["dataset"] != name:
        raise InvalidInput("dataset", "another one", "ask from the page of the data set")
    memo = checked(models.Ask, {"question": question, "memo": text(form, "memo")}).memo
    view = desk.ask(me, question, text(form, "key"), memo)
    return go(f"/requests/{view['id']}")


def _priced_question(form: FormData) -> dict[str, Any]:
    """The question of the form, checked as a body of the API."""
    try:
        given = json.loads(text(form, "question"))
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise InvalidInput("question", "this text", "reload the page, then ask again")
    return checked(models.Question, given).asked()


@router.get("/plan")
def plan(request: Request, desk: Desk, me: Me) -> Response:
    """Show the chance and the price of a tuning job from its levels."""
    given = request.query_params
    fill = {
        name: given.get(name, default)
        for name, default in {
            "epsilons": "0.5, 1, 2",
            "configurations": "12",
            "delta": "1e-6",
            "repeats": "1",
            "attempts": "",
        }.items()
    }
    job, problem = None, None
    try:
        asked = {
            "epsilons": reals(fill, "epsilons"),
            "configurations": whole(fill, "configurations"),
            "delta": real(fill, "delta"),
            "repeats": whole(fill, "repeats"),
            "attempts": whole(fill, "attempts"),
        }
        job = desk.plan(me, checked(models.Plan, asked).model_dump())
    except InvalidInput as error:
        problem = error
    return page("plan.html", me, fill=fill, plan=job, problem=problem)
