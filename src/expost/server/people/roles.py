"""Who may do what: one table, checked before every action of the service.

A method of the service that is an action carries the decorator :func:`action`; its name must be in
the table. Tests: ``tests/server/test_roles.py`` (every action and every endpoint, every role).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from expost.server.people.accounts import ANALYST, AUDITOR, OWNER, ROLES, Person
from expost.server.problems import Denied

EVERYBODY = frozenset(ROLES)
OWNERS = frozenset({OWNER})
ASKERS = frozenset({OWNER, ANALYST})
READERS = frozenset({OWNER, AUDITOR})

ALLOWED: dict[str, frozenset[str]] = {
    # what may be asked, and what it costs
    "datasets": EVERYBODY,
    "dataset": EVERYBODY,
    "price": ASKERS,
    "plan": ASKERS,
    "ask": frozenset({ANALYST}),
    # the owner answers for the data and decides; the auditor, who checks the acts, does not
    "approve": OWNERS,
    "decline": OWNERS,
    # requests and releases: analysts see their own
    "requests": EVERYBODY,
    "request": EVERYBODY,
    "releases": EVERYBODY,
    "export": EVERYBODY,
    "release": EVERYBODY,
    "certificate": EVERYBODY,
    "report": EVERYBODY,
    "registry": EVERYBODY,
    "answers": EVERYBODY,
    "model": EVERYBODY,
    "verify_release": EVERYBODY,
    # budgets: analysts see what is left, and their own cap and entries
    "budgets": EVERYBODY,
    "budget": EVERYBODY,
    "history": EVERYBODY,
    "entries": READERS,
    "verify": READERS,
    "acts": READERS,
    # administration
    "register": OWNERS,
    "preview": OWNERS,
    "change_dataset": OWNERS,
    "retire": OWNERS,
    "open_budget": OWNERS,
    "change_budget": OWNERS,
    "people": READERS,
    "add_person": OWNERS,
    "disable_person": OWNERS,
    "enable_person": OWNERS,
    "change_person": OWNERS,
    "tokens": EVERYBODY,
    "new_token": OWNERS,
    "revoke_token": EVERYBODY,
}

P = ParamSpec("P")
Result = TypeVar("Result")
Self = TypeVar("Self")


def action(
    method: Callable[Concatenate[Self, Person, P], Result],
) -> Callable[Concatenate[Self, Person, P], Result]:
    """Check the role of the acting person before a method of the service runs."""
    allowed = ALLOWED[method.__name__]

    @wraps(method)
    def checked(self: Self, person: Person, *args: P.args, **kwargs: P.kwargs) -> Result:
        if person.role not in allowed:
            raise Denied(
                "this is not part of your role",
                "role",
                "sign in as " + " or ".join(sorted(allowed)),
            )
        return method(self, person, *args, **kwargs)

    return checked  # type: ignore[return-value]
