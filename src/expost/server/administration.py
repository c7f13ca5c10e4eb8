"""The actions of owners and auditors: people, tokens, data sets, budgets, entries.

Tests: ``tests/server/test_service.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import sqlalchemy as sql

from expost.budget.ledger_rows import ABANDON, CREATE, RENEW, RESERVE, SETTLE
from expost.budget.limits import Budget
from expost.errors import InvalidInput
from expost.privacy.guarantees import ADD_REMOVE
from expost.server import audit_log
from expost.server.database import ServerDatabase, attempts, requests
from expost.server.jobs.buy_facts import (
    filled_from_file,
    with_bought_facts,
    with_stand_ins,
    without_stand_ins,
)
from expost.server.jobs.datasets import RULES, Datasets, check_dataset
from expost.server.jobs.ledgers import Ledgers, make_budget
from expost.server.jobs.prices import check_budget
from expost.server.jobs.states import REFUSED, Queue, iso_time
from expost.server.people.accounts import ANALYST, OWNER, People, Person, action
from expost.server.problems import NotFound


class Administration:
    """The part of a server that owners and auditors use; see :class:`.service.Service`."""

    store: ServerDatabase
    _people: People
    _datasets: Datasets
    _ledgers: Ledgers
    _queue: Queue

    @action
    def register(self, person: Person, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Register a data set; its budget must exist and be able to pay for questions.

        It also pays for facts that are bought.
        """
        self._datasets.check_name(str(facts.get("name")))
        document = self.preview(person, self._bought(person, facts))
        self._datasets.add(document, person.name)
        return document

    @action
    def preview(self, person: Person, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts of a data set as they would be registered, with its columns."""
        self._ledgers.check(str(facts.get("budget")))
        filled = filled_from_file(facts)
        document = check_dataset(with_stand_ins(filled))
        self._check_askers(document["askers"] or ())
        check_budget(document, self._ledgers.ledger.standing(document["budget"]).filter.budget)
        return without_stand_ins(document, filled)

    def _check_askers(self, askers: Sequence[str]) -> None:
        """Refuse names that nobody has yet: whoever gets one later would be let in."""
        known = {member["name"] for member in self._people.listed()}
        for asker in askers:
            if not asker.startswith("@") and asker not in known:
                raise InvalidInput("askers", asker, "add this person first, or name a @group")

    @action
    def change_dataset(self, person: Person, name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Change the facts of a data set; its name, kind and budget stay.

        So does who may ask and what is approved, unless the facts say otherwise (or None).
        """
        present = self._datasets.get(name)
        facts = {key: present.get(key) for key in RULES} | dict(facts)
        fixed = {key: present[key] for key in ("name", "kind", "budget")}
        fixed |= {"bought": present["bought"]} if "bought" in present else {}
        facts = self._bought(person, facts | fixed)
        document = self.preview(person, facts | {"version": present["version"] + 1})
        self._datasets.change(document, person.name)
        return document

    def _bought(self, person: Person, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts of a data set with those that are to be bought; refused before."""
        filled = filled_from_file(facts)
        if filled.get("learn_facts") is None:
            return filled
        self.preview(person, filled)
        return with_bought_facts(filled, self._ledgers.ledger, person.name)

    @action
    def retire(self, person: Person, name: str) -> dict[str, Any]:
        """Let nobody ask about a data set any more."""
        self._datasets.retire(name, person.name)
        return {"name": name, "retired": True}

    @action
    def people(self, person: Person) -> list[dict[str, Any]]:
        """Return everybody with their roles."""
        return [row | {"created": iso_time(row["created"])} for row in self._people.listed()]

    @action
    def add_person(self, person: Person, name: str, role: str) -> dict[str, Any]:
        """Add a person."""
        self._people.add(name, role, person.name)
        return {"name": name, "role": role}

    @action
    def change_person(
        self, person: Person, name: str, groups: Sequence[str], mail: str = ""
    ) -> dict[str, Any]:
        """Set the groups of a person, by which data sets are open to them, and their address."""
        self._people.set_profile(name, groups, mail, person.name)
        return {"name": name, "groups": sorted(set(groups)), "mail": mail}

    @action
    def disable_person(self, person: Person, name: str) -> dict[str, Any]:
        """Take away a person's access."""
        self._people.disable(name, person.name)
        return {"name": name, "disabled": True}

    @action
    def enable_person(self, person: Person, name: str) -> dict[str, Any]:
        """Let a person return; they need a new token."""
        self._people.enable(name, person.name)
        return {"name": name, "disabled": False}

    @action
    def tokens(self, person: Person) -> list[dict[str, Any]]:
        """Return tokens without their secrets; owners see those of everybody."""
        mine = None if person.role == OWNER else person.name
        times = ("created", "expires")
        return [
            row | {name: iso_time(row[name]) for name in times}
            for row in self._people.tokens_of(mine)
        ]

    @action
    def new_token(
        self, person: Person, whose: str, days: float = 90, note: str = ""
    ) -> dict[str, Any]:
        """Make a token for a person. Its text is shown here and never again."""
        token = self._people.new_token(whose, person.name, days, note)
        return token | {"expires": iso_time(token["expires"])}

    @action
    def revoke_token(self, person: Person, identity: str) -> dict[str, Any]:
        """Revoke a token: one's own, or as an owner anybody's."""
        mine = None if person.role == OWNER else person.name
        self._people.revoke(identity, person.name, mine)
        return {"id": identity, "revoked": True}

    @action
    def acts(self, person: Person, after: int = 0, limit: int = 500) -> list[dict[str, Any]]:
        """Return the administrative acts, oldest first."""
        return [
            row | {"time": iso_time(row["time"])}
            for row in audit_log.list_acts(self.store, after, limit)
        ]

    @action
    def open_budget(
        self,
        person: Person,
        name: str,
        kind: str,
        epsilon: float | str,
        delta: float | None = None,
        caps: Mapping[str, float] | None = None,
        renews: str | None = None,
        neighbours: str = ADD_REMOVE,
    ) -> dict[str, Any]:
        """Open a budget, with caps per analyst (their ε)."""

        def budget_of(limit: float | str) -> Budget:
            return make_budget(kind, limit, delta, neighbours=neighbours)

        terms = budget_of(epsilon)
        limits = {who: budget_of(cap) for who, cap in (caps or {}).items()}
        for who, cap in limits.items():
            _check_cap(who, cap, terms)
        self._ledgers.open_budget(name, terms, limits, renews)
        detail = {"name": name, "terms": terms.as_dict(), "renews": renews}
        self._act(person, "open budget", detail | {"caps": dict(caps or {})})
        return self._ledgers.standing(name)

    @action
    def change_budget(
        self,
        person: Person,
        name: str,
        reason: str,
        epsilon: float | str | None,
        delta: float | None = None,
        analyst: str = "",
    ) -> dict[str, Any]:
        """Change the limit of a budget, or set, change or (ε None) remove an analyst's cap."""
        self._ledgers.check(name)
        present = self._ledgers.ledger.standing(name).filter.budget
        terms = None
        if epsilon is not None:
            known = present.as_dict().get("delta") if delta is None else delta
            orders = getattr(present, "orders", None)
            terms = make_budget(present.kind, epsilon, known, orders, present.neighbours)
        elif not analyst:
            raise InvalidInput("epsilon", None, "a budget needs a limit")
        if analyst and terms is not None:
            _check_cap(analyst, terms, present)
        self._ledgers.ledger.change_budget(terms, reason, name=name, analyst=analyst)
        limit = None if terms is None else terms.as_dict()
        detail = {"name": name, "analyst": analyst, "limit": limit, "reason": reason}
        self._act(person, "change budget", detail)
        return self._ledgers.standing(name)

    def _act(self, person: Person, act: str, detail: Mapping[str, Any]) -> None:
        self.store.write(lambda connection: audit_log.record(connection, person.name, act, detail))

    @action
    def budgets(self, person: Person) -> list[dict[str, Any]]:
        """Return the budgets with what is settled, held and left."""
        hidden = self._hidden_budgets(person)
        return [self._budget(person, name) for name in self._ledgers.names() if name not in hidden]

    def _hidden_budgets(self, person: Person) -> set[str]:
        """The budgets that pay only for data sets which the person may not ask about."""
        sets = [] if person.role != ANALYST else self._datasets.listed(retired=True)
        asks = self._people.asks(person)
        return {facts["budget"] for facts in sets} - {
            facts["budget"] for facts in sets if asks(facts)
        }

    def _check_budget(self, person: Person, name: str) -> None:
        """Refuse a budget that does not exist for a person."""
        if name in self._hidden_budgets(person):
            raise NotFound("there is no such budget", "budget")
        self._ledgers.check(name)

    @action
    def budget(self, person: Person, name: str) -> dict[str, Any]:
        """Return one budget; owners and auditors see its open reservations and refusals."""
        self._check_budget(person, name)
        whole = self._budget(person, name)
        if person.role == ANALYST:
            return whole
        return whole | {"open": self._ledgers.waiting(name), "refusals": self._refusals(name)}

    def _budget(self, person: Person, name: str) -> dict[str, Any]:
        if person.role == ANALYST:
            return self._ledgers.own_standing(name, person.name)
        return self._ledgers.standing(name)

    def _refusals(self, name: str) -> list[dict[str, Any]]:
        """The newest refused requests of a budget."""
        sets = self._datasets.listed(retired=True)
        names = [facts["name"] for facts in sets if facts["budget"] == name]
        query = (
            sql.select(requests.c.id, requests.c.person, requests.c.dataset, requests.c.created)
            .where(requests.c.state == REFUSED, requests.c.dataset.in_(names))
            .order_by(requests.c.created.desc())
            .limit(100)
        )
        return [row | {"created": iso_time(row["created"])} for row in self.store.rows(query)]

    @action
    def history(self, person: Person, name: str) -> dict[str, Any]:
        """Return spent and held over time; by analyst and data set for owners and auditors."""
        self._check_budget(person, name)
        terms = self._ledgers.ledger.standing(name).filter.budget
        points, spent, held, period = [], Fraction(0), Fraction(0), ""
        open_: dict[str, tuple[Fraction, str]] = {}
        by_analyst: dict[str, Fraction] = {}
        by_day: dict[str, Fraction] = {}
        charged: dict[str, Fraction] = {}
        entries = self._ledgers.shown(
            lambda hidden: [
                entry
                for entry in self._ledgers.ledger.entries()
                if entry.budget == name and entry.reservation not in hidden
            ]
        )
        for entry in entries:
            facts = entry.facts
            if entry.action == RESERVE:
                open_[entry.reservation] = Fraction(facts["worst"][0]), facts.get("period", "")
                held += open_[entry.reservation][0]
            elif entry.action in (SETTLE, ABANDON):
                amount = Fraction(facts["spent"][0])
                worst, admitted = open_.pop(entry.reservation)
                held -= worst
                spent += Fraction(0) if "" < admitted < period else amount
                charged[entry.reservation] = amount
                by_analyst[entry.analyst] = by_analyst.get(entry.analyst, Fraction(0)) + amount
                day = self._ledgers.at_tick(entry.time)[:10]
                by_day[day] = by_day.get(day, Fraction(0)) + amount
            elif entry.action == RENEW:
                spent, period = Fraction(0), facts["period"]
            elif entry.action != CREATE:
                continue
            time = self._ledgers.at_tick(entry.time)
            points.append({"time": time, "spent": float(spent), "held": float(held)})
        view: dict[str, Any] = {
            "name": name,
            "unit": "rho" if terms.kind == "zcdp" else "epsilon",
            "limit": float(terms.limits[0]),
            "points": points,
            "by_day": {day: float(amount) for day, amount in sorted(by_day.items())},
        }
        if person.role == ANALYST:
            mine = by_analyst.get(person.name, Fraction(0))
            own = {"by_analyst": {person.name: float(mine)}, "by_dataset": {}, "by_group": {}}
            return view | own
        view["by_analyst"] = {who: float(amount) for who, amount in sorted(by_analyst.items())}
        view["by_dataset"] = self._by_dataset(charged)
        view["by_group"] = self._by_group(by_analyst)
        return view

    def _by_group(self, by_analyst: Mapping[str, Fraction]) -> dict[str, float]:
        """What each group of people spent, by their present groups; one may be in several."""
        totals: dict[str, Fraction] = {}
        for member in self._people.listed():
            for group in member["groups"]:
                spent = by_analyst.get(member["name"], Fraction(0))
                totals[group] = totals.get(group, Fraction(0)) + spent
        return {name: float(amount) for name, amount in sorted(totals.items())}

    def _by_dataset(self, charged: Mapping[str, Fraction]) -> dict[str, float]:
        """What each data set cost; the attempts of tuning jobs have reservations of their own."""
        own = sql.select(requests.c.id, requests.c.dataset)
        tried = sql.select(attempts.c.reservation.label("id"), requests.c.dataset).join(
            requests, requests.c.id == attempts.c.request
        )
        query = sql.union_all(own, tried)
        totals: dict[str, Fraction] = {}
        for row in self.store.rows(query):
            amount = charged.get(row["id"])
            if amount is not None:
                totals[row["dataset"]] = totals.get(row["dataset"], Fraction(0)) + amount
        return {name: float(amount) for name, amount in sorted(totals.items())}

    @action
    def entries(
        self, person: Person, after: int = 0, limit: int = 500, budget: str | None = None
    ) -> list[dict[str, Any]]:
        """Return entries of the ledger, oldest first."""
        return self._ledgers.entries(after, max(1, min(limit, 1000)), budget)

    @action
    def verify(self, person: Person) -> dict[str, Any]:
        """Check the chain, sums and prices of the ledger, and the chain of acts."""
        known = self._ledgers.problems(self._queue.reserved())
        problems = [*known, *audit_log.problems(self.store)]
        counted = {"entries": self._ledgers.entry_count(), "acts": audit_log.count_acts(self.store)}
        return {"valid": not problems, "problems": problems, "head": self._ledgers.head()} | counted


def _check_cap(analyst: str, cap: Budget, terms: Budget) -> None:
    """Refuse a cap above the limit of its budget: it would limit nothing."""
    if any(most > limit for most, limit in zip(cap.limits, terms.limits, strict=True)):
        raise InvalidInput("caps", analyst, "give at most the limit of the budget")
