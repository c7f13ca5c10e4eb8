"""``expost.quantile``: check, price, reserve, read, search, settle.

One reservation covers the whole request and is settled at what was drawn, also after an exception.
The guarantee and the intervals are proven in ``quantile_run``; caps, conditions, groups and sources
are those of :func:`expost.mean`. Tests: ``tests/analytics/test_quantiles.py``.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from expost.analytics import contribution
from expost.analytics.asked_before import (
    KeptAnswer,
    ask_once,
    plain_settings,
    run_charged,
    source_identity,
)
from expost.analytics.count_result import (
    ReleasedResult,
    certificate_of,
    charge_of_release,
    csv_cells,
    plain_answer,
    told_answers,
    write_document,
)
from expost.analytics.pricing import CheckedCount, CountPrice, settled_at
from expost.analytics.quantile_request import (
    CheckedQuantile,
    QuantileRequest,
    check_quantile,
    count_cells,
    kept_rows,
    price_quantile,
    run_cells,
    run_users,
)
from expost.analytics.quantile_run import (
    BinAnswer,
    QuantileAnswer,
    QuantileJob,
    QuantileRun,
)
from expost.analytics.quantile_search import CellCounts, Source
from expost.analytics.query import Progress, choose_caps, open_account
from expost.analytics.request import AccountOptions
from expost.errors import InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee
from expost.randomness.source import Randomness
from expost.rationals import round_down, round_up
from expost.tables.typed_columns import SEPARATOR

THEOREM = (
    "draws from disjoint intervals and histograms per group; a user is in at most m groups, so the "
    "charge is the sum of the m largest group costs (docs/quantiles.md, What it costs)"
)


class QuantileOptions(QuantileRequest, AccountOptions, total=False):
    """The keywords of :func:`quantile`."""


@dataclass(frozen=True)
class QuantileResult(ReleasedResult):
    """What was released: quantiles that are within the wanted error, the others, histograms."""

    answers: tuple[QuantileAnswer, ...]
    unanswered: tuple[QuantileAnswer, ...]
    histogram: tuple[BinAnswer, ...]
    spent: float
    remaining: float
    unit: str
    within_rank: float | None
    confidence: float
    max_groups_per_user: int | None
    max_rows_per_user: int
    guarantee: Guarantee
    keys: Mapping[str, Any] | None
    query: Mapping[str, Any]
    source: str
    public: Mapping[str, Any]
    simulated: bool
    charges: Charges = field(repr=False)
    outcome: int | None = field(repr=False)
    ledger: Mapping[str, Any] | None = field(default=None, compare=False)
    asked_before: bool = field(default=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of ``expost quantile``."""
        return self._released() | {
            "spent": self.spent,
            "remaining": self.remaining,
            "unit": self.unit,
            "within_rank": self.within_rank,
            "confidence": self.confidence,
            "max_groups_per_user": self.max_groups_per_user,
            "max_rows_per_user": self.max_rows_per_user,
            "protects": self.protects,
            "guarantee": self.guarantee.as_dict(),
            "keys": None if self.keys is None else dict(self.keys),
            "query": dict(self.query),
            "simulated": self.simulated,
            **({"asked_before": True} if self.asked_before else {}),
        }

    def _released(self) -> dict[str, Any]:
        """Everything that was released, for JSON."""
        parts: dict[str, Sequence[QuantileAnswer | BinAnswer]] = {
            "answers": self.answers,
            "unanswered": self.unanswered,
            "histogram": self.histogram,
        }
        return {name: [plain_answer(answer) for answer in part] for name, part in parts.items()}

    def certificate(self) -> dict[str, Any]:
        """Return the certificate: query, source, public facts, answers, charge and theorem."""
        return certificate_of(self, "quantile", self.query, THEOREM, self._released())

    def save(self, path: str | Path) -> None:
        """Write the answers: .json holds everything, .csv one table with a column per key."""
        path = Path(path)
        check_quantile_file(path, both=bool(self.query["at"] and self.query["bins"]))
        if path.suffix == ".json":
            write_document(self.as_dict(), path)
            return
        keys = list(self.query["by"]) or ["group"]
        with path.open("w", encoding="utf-8", newline="") as stream:
            rows = csv.writer(stream)
            header, answers = self._table()
            rows.writerow(csv_cells([*keys, *header]))
            for answer in answers:
                group = answer.pop("group")
                names = group if isinstance(group, list) else [group]
                rows.writerow(csv_cells([*names, *answer.values()]))

    def _table(self) -> tuple[list[str], list[dict[str, Any]]]:
        """The header without the keys, and the rows of a CSV file."""
        told = self._released()
        if not self.query["at"]:
            return ["start", "end", "share", "low", "high", "spent"], told["histogram"]
        rows = [{**answer, "answered": True} for answer in told["answers"]]
        rows += [{**answer, "answered": False} for answer in told["unanswered"]]
        names = ["at", "estimate", "low", "high", "rank_low", "rank_high", "spent", "answered"]
        return names, rows


def quantile_of_release(release: Mapping[str, Any]) -> QuantileResult:
    """Return the result that was released, from its JSON form and its certificate."""
    result = release["result"]
    same = ("within_rank", "confidence", "max_rows_per_user", "keys", "query")
    return QuantileResult(
        **{name: result[name] for name in same},
        **charge_of_release(release),
        answers=told_answers(result["answers"], QuantileAnswer),
        unanswered=told_answers(result["unanswered"], QuantileAnswer),
        histogram=told_answers(result["histogram"], BinAnswer),
    )


def check_quantile_file(path: Path, *, both: bool) -> None:
    """Refuse a file name that cannot hold the answers; ``both`` quantiles and bins: two tables."""
    if path.suffix not in (".csv", ".json"):
        raise InvalidInput("out", str(path), "give a file name ending in .csv or .json")
    if both and path.suffix == ".csv":
        raise InvalidInput("out", str(path), "quantiles and bins are two tables: use .json")


def quantile(
    data: Any, column: str | None = None, /, **options: Unpack[QuantileOptions]
) -> QuantileResult:
    """Quantiles and histograms of a column per group, each to the rank error you need.

    Parameters
    ----------
    data : str, Path or table
        As in :func:`count`.
    column : str
        Column of the values. NULL, NaN, infinite and non-numeric values count nowhere.
    at : float or sequence of float
        Ranks between 0 and 1 (default 0.5, the median). MIN and MAX have no private
        answer; 0.001 and 0.999 come close.
    bins : int or sequence of float, optional
        Also (or, without ``at``, only) the share of rows in each bin: a number of bins of equal
        width, or their edges. The first and the last bin hold what lies outside of the edges.
    within_rank : float
        Wanted error (default 0.02): the rank of an answer is within 0.02 of the wanted one, with
        the stated confidence. 0: no goal; the best values that ``epsilon`` buys, with intervals.
    bounds : (low, high)
        Public bounds; values are clipped to them.
    grid : number, optional
        Values are rounded to multiples of it. Default: 1, 2 or 5 times a power of ten, at least
        32,768 cells. Give 1 for whole numbers: a value that many rows share is then found cheaply.
    value_intervals : bool
        Also look at the ranks two wanted errors beside each quantile, so that ``low`` and ``high``
        are near (about half as much again). Without it they come from the other quantiles.
    max_rows_per_user : int or "auto"
        How many rows of a user count in one group (default 1: every person has one vote).
    **options
        The other options of :func:`mean`: ``by``, ``user``, ``epsilon``, ``delta``, ``keys``,
        ``private_keys``, ``max_groups_per_user``, ``where``, ``confidence``, ``table``,
        ``ledger``, ``budget``, ``analyst``, ``memo``, …. With ``table_version`` the same question
        on the same version returns the paid answer (``asked_before``), at no charge; a finer one
        draws anew and pays in full.

    Returns
    -------
    QuantileResult
        ``answers`` within the wanted error, ``unanswered``, ``histogram``, and what was spent.

    Raises
    ------
    InvalidInput
        A setting, column or file is wrong. Nothing was charged.
    BudgetRefused
        The budget cannot pay the worst case. Nothing was charged.

    References
    ----------
    ``docs/quantiles.md`` states the guarantee and its proof.
    """
    asked: dict[str, Any] = {**options, **({} if column is None else {"column": column})}
    how = {name: asked.pop(name, None) for name in AccountOptions.__annotations__}
    account, source = open_account(how, "expost quantile")

    def ask(kept: KeptAnswer | None) -> QuantileResult:
        request = check_quantile(data, asked)
        kind = None if account.ledger is None else account.ledger.kind_of(account.budget)
        priced, progress = price_quantile(request, kind), QuantileProgress()

        def run(evidence: dict[str, Any] | None) -> QuantileResult:
            return run_quantile(request, priced, source, evidence, progress)

        result = run_charged(account, priced, run, lambda: progress.spent, kept)
        if kept is not None:
            kept.keep(result)
        return result

    question = partial(quantile_question, data, asked)
    return ask_once(account, how["table_version"], question, quantile_of_release, ask)


def quantile_question(data: Any, asked: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what makes two questions the same, twice: each has a path of its own."""
    usual: dict[str, Any] = {"confidence": 0.9, "max_rows_per_user": 1, "within_rank": 0.02}
    if asked.get("bins") is None:
        usual["at"] = 0.5
    question = plain_settings(usual) | plain_settings(asked)
    question |= {"kind": "quantile", "source": source_identity(data)}
    return question, question


@dataclass
class QuantileProgress(Progress):
    """What has been bought so far."""

    run: QuantileRun | None = None

    @property
    def spent(self) -> Fraction:
        """The charge so far."""
        return self.side + (Fraction(0) if self.run is None else self.run.spent)


def run_quantile(
    request: CheckedQuantile,
    priced: CountPrice,
    randomness: Randomness,
    evidence: dict[str, Any] | None,
    progress: QuantileProgress,
) -> QuantileResult:
    """Run a request whose worst case is reserved; ``progress`` holds what was bought."""
    base = choose_caps(request.base, progress, randomness)
    names, rows = _cells(base, progress, randomness)
    job = request.job(base, max(1, len(names)), progress.most)
    progress.run = quantile_run_of(job, base, names, rows, randomness)
    progress.run.run()
    return _result(request, base, priced, progress, evidence, randomness.simulated)


def quantile_run_of(
    job: QuantileJob,
    request: CheckedCount,
    groups: Sequence[str],
    cells: Mapping[str, CellCounts],
    randomness: Randomness,
) -> QuantileRun:
    """Return the run of a job on the private cells of its groups; absent ones are empty."""
    measure, empty = request.measure, CellCounts.empty()
    shown = [tuple(name.split(SEPARATOR)) if len(request.by) > 1 else name for name in groups]
    source = Source(measure.low, measure.high, randomness)
    return QuantileRun(job, shown, [cells.get(name, empty) for name in groups], source)


def _cells(
    base: CheckedCount, progress: QuantileProgress, randomness: Randomness
) -> tuple[list[str], dict[str, CellCounts]]:
    """The groups and their private counts, after the caps; pays for finding the groups."""
    salt, most = contribution.new_salt(randomness), progress.most
    if most is not None and base.most_known is not None and most >= base.most_known:
        most = None  # nobody is in more groups than there are
    kept = kept_rows(base.rows(), base.measure, base.keys, most, salt, collated=base.collated)
    cells = run_cells(count_cells(kept))
    names = sorted(cells) if base.keys is None else list(base.keys)
    if base.keys is None:
        assert progress.most is not None
        progress.selection = base.selection(progress.most)
        progress.side += base.cost_of_keys()
        users = run_users(kept)
        counts = np.array([users.get(name, 0) for name in names], dtype=np.int64)
        passed = progress.selection.select(counts, randomness)
        names = [name for name, keep in zip(names, passed, strict=True) if keep]
    return names, cells


def _result(
    request: CheckedQuantile,
    base: CheckedCount,
    priced: CountPrice,
    progress: QuantileProgress,
    evidence: dict[str, Any] | None,
    simulated: bool,
) -> QuantileResult:
    run = progress.run
    assert run is not None
    assert base.measure.rows is not None
    outcome, spent = settled_at(progress.spent, priced.charges)
    answers, unanswered = run.answers(base.measure.grid)
    return QuantileResult(
        answers=tuple(answers),
        unanswered=tuple(unanswered),
        histogram=tuple(run.histograms(request.edges)),
        spent=round_up(spent),
        remaining=round_down(max(Fraction(0), base.total - spent)),
        unit="epsilon" if base.delta is None else "rho",
        within_rank=request.within,
        confidence=base.wanted.confidence,
        max_groups_per_user=progress.most,
        max_rows_per_user=base.measure.rows,
        guarantee=base.guarantee,
        keys=None if progress.selection is None else progress.selection.as_dict(),
        query=priced.request,
        source=base.source,
        public=_public(base, run),
        simulated=simulated,
        charges=priced.charges,
        outcome=outcome,
        ledger=None if evidence is None else {**evidence, "source": priced.source},
    )


def _public(base: CheckedCount, run: QuantileRun) -> dict[str, Any]:
    """The public facts of a certificate."""
    return {
        "keys": "found privately" if base.private else "listed",
        "groups": None if base.keys is None else len(base.keys),
        "max_rows_per_user": base.measure.rows,
        "rows_chosen_privately": base.chooses_rows,
        "max_groups_per_user": "chosen privately" if base.chooses_cap else "given",
        "total": round_up(base.total),
        "noise": base.law,
        "shares": {
            "max_groups_per_user": round_up(base.cost_of_cap()),
            "max_rows_per_user": round_up(base.cost_of_rows()),
            "keys": round_up(base.cost_of_keys()),
        },
        "group_costs": run.group_costs(),
    }
