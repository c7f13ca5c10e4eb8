"""Which words a certificate becomes: :func:`certificate_words`, for every kind, at every door.

The command, the server's pages and reports, scikit-learn and notebooks show these words, made from
the document alone. ``_selection``, ``_count``, ``_query``, ``_facts`` and ``_tuning`` list rows:
names, and functions that return a text. A damaged part makes its own row unreadable.

Charges are rounded up, certified bounds towards the worse side; a noisy score beyond the metric's
range is shown as the end of the range. Values are in the metric's own direction. A name from a file
cannot add a line or move a cursor.
Tests: ``tests/certificates/``, ``tests/cli/test_every_word.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any, NamedTuple

from expost.certificates import document as documents
from expost.certificates import query_words
from expost.certificates.document import COUNT, FACTS, QUANTILE, QUERY, TUNING, Record
from expost.certificates.document import person_words as _person_words
from expost.privacy.guarantees import Guarantee, guarantee_from_dict, persons_words
from expost.rationals import charge_text

TITLES = {COUNT: "Certificate of counts, sums or means", TUNING: "Certificate of a tuned model"}
TITLES |= {FACTS: "Certificate of facts about a table", QUERY: "Certificate of a query"}
TITLES[QUANTILE] = "Certificate of quantiles"
METHODS = {
    "above-threshold": "a search over settings, each kept or dropped at random, that stops at the "
    "first model whose noisy score passes",
    "random-dropping": "the best of candidates that were each kept or dropped at random; a cheaper "
    "winner costs less",
    "repeat-and-select": "the best of a random number of runs",
    "doubling": "attempts with twice the budget each time, until one passes",
    "noise-reduction": "one value whose noise is reduced step by step; the last step is charged",
    "noise-path": "one linear model whose noise is reduced step by step until the score passes; "
    "the last step is charged",
    "progressive": "one training with all rows, continued until the score passes; the steps that "
    "were made are charged",
    "tell": "a further noisy score of a model that missed",
}
"""Selectors in words, by what :func:`method_of` returns."""

UNITS = {"epsilon": "ε", "rho": "ρ", "delta": "δ", "orders": "orders", "epsilons": "ε"}
_MEASURES = {"count": "persons", "rows": "rows", "sum": "sum", "mean": "mean"}
_DEEPEST = 4  # levels of nesting of a value
_UNREADABLE = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError),
    RecursionError,
)
_Maker = Callable[[], str | Sequence[str] | None]


class Row(NamedTuple):
    """What a certificate says about one thing: its name, and one or more lines."""

    name: str
    lines: tuple[str, ...]


def certificate_words(document: Record, *, verbose: bool = False) -> list[Row]:
    """Return what a certificate says, in words.

    Parameters
    ----------
    document : mapping
        The certificate (:func:`read_certificate`).
    verbose : bool
        Whether to add theorems, settings of the search and hashes.

    Returns
    -------
    list of Row
        Names and lines of text, without line breaks and control characters.
    """
    kinds = {COUNT: _count, QUERY: _query, FACTS: _facts, TUNING: _tuning, QUANTILE: _count}
    rows = kinds.get(document.get("kind", ""), _selection)
    said = []
    for name, make in rows(document, verbose).items():
        try:
            text = make()
            lines = [] if text is None else [text] if isinstance(text, str) else text
            shown = tuple(map(one_line, lines))
        except _UNREADABLE:
            shown = ("this part cannot be read",)
        if shown:
            said.append(Row(name, shown))
    return said


def title_of(document: Record) -> str:
    """Return what a certificate is of."""
    return TITLES.get(document.get("kind", ""), "Certificate of a selection")


def one_line(text: object) -> str:
    """Return a text without line breaks and characters that move the cursor."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in str(text)
    )


def _selection(document: Record, verbose: bool) -> dict[str, _Maker]:
    """The rows of a selection."""
    reached = {None: "no goal", True: "yes", False: "no"}
    return {
        "value": lambda: _value(document),
        "settings": lambda: settings_words(document["params"]),
        "score": lambda: _score(document),
        "goal reached": lambda: reached[document["passed"]],
        "charge": lambda: f"{_charge(document['spent'])}: what this release cost, search included",
        "meaning": lambda: _meaning(document, document["spent"]),
        "at most": lambda: f"{_charge(document['worst_case'])}: guaranteed before anything ran",
        "protects": lambda: documents.protected_words(document["spent"]["neighbours"]),
        **_common(document),
        **(_technical(document) | _selector(document) if verbose else {}),
    }


def _count(document: Record, verbose: bool) -> dict[str, _Maker]:
    """The rows of counts, sums, means or quantiles."""
    return {
        "question": lambda: question_words(document["query"]),
        "data": lambda: document["source"],
        "groups": lambda: query_words.key_words(document),
        "answers": lambda: answers_words(document),
        "error": lambda: error_words(document["query"]),
        "charge": lambda: f"{_amount(document['spent'])}: {query_words.cost_words(document)}",
        "facts": lambda: _bought(document),
        "meaning": lambda: _meaning(document, query_words.with_earlier(document), "person"),
        "at most": lambda: f"{_amount(document['worst_case'])}: guaranteed before anything ran",
        "guarantee": lambda: (  # None if "at most" has said it
            None
            if document["guarantee"].items() >= document["worst_case"].items()
            and not document["guarantee"].get("delta")
            else f"{_charge(document['guarantee'])} for everything released"
        ),
        "protects": lambda: persons_words(document["max_groups_per_user"]),
        **_common(document),
        **(
            _technical(document) | {"charged to the budget": lambda: _charge(document["charged"])}
            if verbose
            else {}
        ),
    }


def _query(document: Record, verbose: bool) -> dict[str, _Maker]:
    """The rows of a query in SQL: those of a count, for all aggregates together."""
    return _count(document, verbose) | {
        "question": lambda: document["query"]["sql"],
        "answers": lambda: query_words.rows_words(document["rows"]),
        "parts": lambda: [
            query_words.part_words(part, *document["spent"]) for part in document["parts"]
        ],
        "public tables": lambda: ", ".join(map(str, document["public"]["public_tables"])) or None,
        "private tables": lambda: query_words.private_words(document["public"]),
    }


def _facts(document: Record, verbose: bool) -> dict[str, _Maker]:
    """The rows of facts about a table."""
    return {
        "data": lambda: document["source"],
        "rows": lambda: f"about {document['facts']['rows']:,.0f}",
        "columns": lambda: list(
            map(query_words.column_words, document["facts"]["columns"].items())
        ),
        "charge": lambda: f"{_charge(document['spent'])}: what all facts together cost",
        "meaning": lambda: _meaning(
            document, document["spent"], "row" if document["facts"]["user"] is None else "person"
        ),
        "at most": lambda: f"{_charge(document['worst_case'])}: guaranteed before anything ran",
        "protects": lambda: (
            documents.protected_words(document["spent"]["neighbours"])
            if document["facts"]["user"] is None
            else "one person with all their rows"
        ),
        **_common(document),
        **(_technical(document) if verbose else {}),
    }


def _tuning(document: Record, verbose: bool) -> dict[str, _Maker]:
    """The rows of a tuning job."""
    job: Record = document["tuning"] if isinstance(document.get("tuning"), Mapping) else {}
    rows: dict[str, _Maker] = {
        "result": lambda: result_words(document),
        "goal": lambda: _goal(job["goal"]),
        "score": lambda: bounds_words(job),
        "noisy score" if _noisy(job) else "exact score": lambda: score_words(job),
        "told": lambda: told_words(job),
        "charge": lambda: f"{_amount(job['spent'])}: all attempts, training and scoring together",
        "facts": lambda: _bought(document),
        "meaning": lambda: _meaning(document, job["spent"], documents.unit_of_job(job)),
        "at most": lambda: f"{_charge(document['worst_case'])}: guaranteed before the job began",
        "attempts": lambda: _attempts(job),
        "protects": lambda: documents.protected_words(document["spent"]["neighbours"], job["data"]),
        "data": lambda: job["data"].get("path") or job["data"].get("name") or _IN_PYTHON,
        "columns": lambda: _columns(job["data"]),
        "target": lambda: _target(job["data"]),
        "rows" if documents.unit_of_job(job) == "row" else "persons": lambda: _rows(job),
        "model": lambda: _model(document, verbose),
        "features": lambda: (job.get("features") or {}).get("in_words"),
        **_common(document),
        "what to try": lambda: None if document["passed"] is not False else advice_words(job),
        "date": lambda: job["date"],
        "warnings": lambda: list(job["warnings"]),
    }
    if verbose:
        rows |= {
            **_technical(document),
            "charged to the budget": lambda: guarantee_words(
                guarantee_from_dict(document["spent"])
            ),
            "converted at": lambda: _order(job["converted_at_order"]),
            "noise calibrated by": lambda: job.get("accountant"),
            "scoring": lambda: job["scoring"],
            "requests": lambda: f"{len(document['requests']['grids'])} different grids",
            **_selector(document),
        }
    return rows


def _common(document: Record) -> dict[str, _Maker]:
    """The rows that every certificate has."""
    simulated = "seeded randomness was used: this release has no privacy guarantee"
    return {
        "simulated": lambda: simulated if document["simulated"] else None,
        "method": lambda: method_words(document),
        "ledger": lambda: _ledger(document.get("ledger")),
        "signature": lambda: (
            "none: whoever can write the file can change it"
            if document.get("signature") is None
            else "signed; expost certificate verify --key FILE checks by whom"
        ),
    }


def _technical(document: Record) -> dict[str, _Maker]:
    return {
        "theorem": lambda: document["theorem"],
        "written by": lambda: f"expost {document['expost']}, schema {document['schema']}",
    }


def _selector(document: Record) -> dict[str, _Maker]:
    return {
        "selector": lambda: ", ".join(
            f"{name} = {value_words(value, exact=True)}"
            for name, value in document["selector"].items()
            if value is not None
        )
    }


# Charges, who is protected, how, who paid: rows of several kinds.


def charge_words(guarantee: Guarantee) -> str:
    """Return a guarantee in symbols, rounded up; without its neighbouring relation."""
    numbers = guarantee.as_dict()
    return ", ".join(
        f"{UNITS[key]} = {_number(value)}" for key, value in numbers.items() if key in UNITS
    )


def guarantee_words(guarantee: Guarantee) -> str:
    """Return a guarantee in symbols, with its neighbouring relation."""
    return f"{charge_words(guarantee)} ({guarantee.neighbours})"


def _charge(record: Record) -> str:
    return charge_words(guarantee_from_dict(dict(record)))


def _amount(numbers: Record) -> str:
    return ", ".join(f"{UNITS[unit]} = {charge_text(number)}" for unit, number in numbers.items())


def _number(value: Any) -> str:
    """A number, or the numbers of a curve, as text; a charge is never rounded down."""
    if isinstance(value, (int, float)):
        return charge_text(value)
    return "[" + ", ".join(charge_text(number, 4) for number in value) + "]"


def _meaning(document: Record, charge: Record, unit: str = "row") -> str | None:
    """What a charge, with that of facts that were bought, means; None without an ε."""
    if document["simulated"] or "epsilon" not in charge:
        return None
    epsilon, delta = charge["epsilon"], charge.get("delta", 0.0)
    if "facts" in document and document.get("kind") != FACTS:
        bought = document["facts"]["charged"]
        epsilon, delta = epsilon + bought["epsilon"], delta + bought["delta"]
    return _person_words(epsilon, delta, unit)


def method_of(selector: Record) -> str:
    """Return how a selector works: its name, or "progressive" if its path is such a training."""
    progressive = selector.get("training") == "progressive"
    return "progressive" if progressive else str(selector.get("name"))


def method_words(document: Record) -> list[str]:
    """Return how a release was found: a line per kind of request that was made."""
    if document.get("kind") in (COUNT, QUERY):
        return query_words.count_method(document)
    if document.get("kind") == QUANTILE:
        return [query_words.QUANTILE_METHOD]
    if document.get("kind") == FACTS:
        return ["noisy looks at counts of disjoint parts, with a fixed total precision"]
    requests = (document.get("requests") or {}).get("made") or [document]
    methods = dict.fromkeys(method_of((request or document)["selector"]) for request in requests)
    said = [METHODS.get(method, method) for method in methods]
    searched = set(methods) - {"progressive", "noise-path", "tell"}
    if searched and (document.get("tuning") or {}).get("accountant"):
        said.append("models of the search are trained by DP-SGD")
    return said


def _ledger(paid: Any) -> list[str] | str:
    """The ledger entries that paid."""
    entries = [] if paid is None else paid if isinstance(paid, list) else [paid]
    lines = []
    for entry in entries:
        who = f" for {entry['analyst']}" if entry.get("analyst") else ""
        lines.append(
            f"budget {entry['budget']}{who}, {entry['date']}, entry {entry['reservation']}"
        )
    return lines or "none: no ledger was charged"


def value_words(value: Any, *, exact: bool = False, depth: int = 0) -> str:
    """Return a value as text: any value that a grid may hold."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and not exact:
        return f"{value:g}"
    if isinstance(value, (Mapping, list, tuple)) and depth == _DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        parts = (
            f"{name} = {value_words(part, exact=exact, depth=depth + 1)}"
            for name, part in value.items()
        )
        return f"({', '.join(parts)})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(value_words(part, exact=exact, depth=depth + 1) for part in value)}]"
    return "–" if value is None else str(value)


def settings_words(params: Record) -> str:
    """Return the settings of the winner; its privacy level is rounded up."""
    features = params.get("features")  # a certificate describes them in full in another row
    short = {"features": features.get("features")} if isinstance(features, Mapping) else {}
    return (
        ", ".join(
            f"{name} = {charge_text(value) if name == 'epsilon' else value_words(value)}"
            for name, value in {**params, **short}.items()
        )
        or "–"
    )


def _value(document: Record) -> str:
    if document["outcome"] == "nothing":
        return "nothing: no candidate was released"
    if document["outcome"] == "failed":
        return "the run that was chosen failed"
    missed = "missed the goal: " if document["outcome"] == "missed" else ""
    return missed + value_words(document["value"], exact=True)


def _score(document: Record) -> str | None:
    """The score that was compared; of held-out rows it is a difference of counts, no score."""
    score = document["score"]
    if score is None or document["selector"].get("held_out") is not None:
        return None
    return f"{float(score):g}"


# Counts, sums and means.


def question_words(query: Record) -> str:
    """Return what was asked."""
    measure = _MEASURES.get(query["kind"], query["kind"])
    if query.get("kind") == QUANTILE:
        measure = query_words.quantile_words(query)
    text = f"number of {measure}" if query["column"] is None else f"{measure} of {query['column']}"
    if query["user"] is not None:
        text += f" (a person is a value of {query['user']})"
    if query["bounds"] is not None:
        low, high = query["bounds"]
        text += f", values from {value_words(low)} to {value_words(high)}"
    if query["by"]:
        text += f", by {', '.join(map(str, query['by']))}"
    if query["where"]:
        text += f", where {' and '.join(map(str, query['where']))}"
    return text


def error_words(query: Record) -> str:
    """Return the error that was wanted."""
    if query.get("kind") == QUANTILE:
        return query_words.quantile_error(query)
    within, most = query["within"], query["plus_minus"]
    if query.get("top") is not None:
        return f"the {query['top']} largest groups, with {100 * query['confidence']:g} % confidence"
    wanted = f"{100 * within:g} % of the value" if within is not None else f"± {most:g}"
    if query.get("within_rank") is not None:
        wanted += f", quantiles within {query['within_rank']:g} of their rank"
    return f"within {wanted}, with {100 * query['confidence']:g} % confidence per group"


def answers_words(document: Record) -> str:
    """Return how many groups reached the error."""
    answered = len(document["answers"])
    if document["query"].get("top") is not None:
        return "the list is stated" if answered else "the list is not known with this confidence"
    of = "quantiles of groups" if document.get("kind") == QUANTILE else "groups"
    text = f"{answered:,} of {answered + len(document['unanswered']):,} {of} reached this error"
    return text.replace("1 of 1 groups", "1 of 1 group")


# Tuning jobs: of ``document["tuning"]``.

_IN_PYTHON = "rows that were passed in Python"


def result_words(document: Record) -> str:
    """Return what a job released."""
    if document["outcome"] == "missed":
        return "missed: a model not shown to reach the goal; released because it is charged"
    if document["outcome"] == "value":
        reached = {True: "a model that reaches the goal", None: "the best model of one search"}
        return reached[document["passed"]]
    if document["outcome"] == "failed":
        return "no model: the training that was chosen failed"
    return "no model: the goal was missed; the attempts were charged"


def certified_words(goal: Record) -> str:
    """Return what the score is: the metric's name and the public numbers that define it."""
    return str(goal.get("certified") or goal["metric"])


def side_words(goal: Record) -> str:
    """Return on which side of the goal a good value lies."""
    return "at least" if goal["larger_is_better"] else "at most"


def goal_words(goal: Record) -> str:
    """Return the goal as a formula."""
    if goal["value"] is None:
        return f"none: the best {certified_words(goal)} was wanted"
    sign = "≥" if goal["larger_is_better"] else "≤"
    return f"{certified_words(goal)} {sign} {goal['value']:g}"


def _goal(goal: Record) -> str:
    certain = f", with {100 * goal['confidence']:g} % confidence"
    return goal_words(goal) + ("" if goal["value"] is None else certain)


def bound_text(value: float, larger: bool) -> str:
    """Return a certified bound with four digits, rounded so that it stays true."""
    rounding = ROUND_FLOOR if larger else ROUND_CEILING
    return f"{float(Context(prec=4, rounding=rounding).create_decimal(repr(float(value)))):.4g}"


def bounds_words(job: Record) -> str | None:
    """Return the certified bounds and their confidence; None without them."""
    bounds, goal = job["confidence"], job["goal"]
    ends = goal.get("range") or (None, None)
    worst = ends[0 if goal["larger_is_better"] else 1]
    if bounds is None or bounds["bound_on_scoring_rows"] == worst:  # no bound, or an empty one
        return None
    side, larger = side_words(goal), goal["larger_is_better"]
    scored = bound_text(_within(bounds["bound_on_scoring_rows"], goal), larger)
    units = (
        f"{documents.unit_of_job(job)}s" if _noisy(job) else "rows"
    )  # public rows have no persons
    text = f"{side} {scored} on the scoring {units}"
    if bounds["bound_on_population"] is not None:
        new = bound_text(_within(bounds["bound_on_population"], goal), larger)
        text += f", {side} {new} on new {units} of the same population"
    certain = min(bounds["confidence"], goal["confidence"])  # of the whole job: each has no less
    text += f" ({100 * certain:g} % confidence each)"
    if bounds["bound_on_population"] is None and bounds.get("why_no_bound_on_population"):
        text += f"; no bound for new {units}: {bounds['why_no_bound_on_population']}"
    return text


def _noisy(job: Record) -> bool:
    """Whether scores are noisy: they are exact on public rows."""
    privacy = job.get("privacy")
    return not isinstance(privacy, Mapping) or privacy.get("scoring") == "private"


def score_words(job: Record) -> str | None:
    """Return the noisy score, within the metric's range, and its noise; None without a score."""
    bounds, noise, goal = job["confidence"], job["score_noise"], job["goal"]
    sign = 1 if goal["larger_is_better"] else -1
    scores = [attempt["score"] for attempt in job["attempts"] if attempt.get("score") is not None]
    score = bounds["noisy_score"] if bounds is not None else sign * scores[-1] if scores else None
    if score is None:
        return None
    spread = f" ± {noise:.3g} (standard deviation of its noise)" if noise else ""
    return f"{_within(score, goal):.4g}{spread}"


def told_words(job: Record) -> str | None:
    """Return the noisy score of a model that missed, and its interval; None if it was not told."""
    told = job.get("told")
    if told is None or told["score"] is None:
        return None
    text = f"about {told['score']:.4g} on the held-out {documents.unit_of_job(job)}s"
    if told["low"] is not None:
        low, high = bound_text(told["low"], True), bound_text(told["high"], False)
        text += f", between {low} and {high} ({100 * told['confidence']:g} % confidence)"
    return f"{text}, for ε = {charge_text(told['epsilon'])}"


def advice_words(job: Record) -> list[str]:
    """Return what to try after a miss, from public settings and what was released."""
    goal, privacy = job["goal"], job["privacy"]
    if goal["value"] is None:
        return []
    larger, told, bounds = goal["larger_is_better"], job.get("told"), job["confidence"]
    reached = None if bounds is None else bounds["noisy_score"]
    if told is not None and told["score"] is not None:
        reached = told["score"]
    lower = "a lower goal (at_least)" if larger else "a higher goal (at_most)"
    if reached is not None:
        lower += f": this model reaches about {_within(reached, goal):.3g}"
    advice, paths = [lower], any(attempt.get("params") for attempt in job["attempts"])
    unit = documents.unit_of_job(job)
    advice += ["a larger max_epsilon"] * (privacy.get("max_epsilon") is not None)
    advice.append(f"more {unit}s: the noise per {unit} falls with their number")
    advice.append("other features (model.features)" if paths else "other levels or settings")
    if privacy["scoring"] == "private":
        advice.append(f"scoring on more held-out {unit}s (holdout) or public rows (public_test)")
    if paths and privacy["scoring"] == "private" and told is None:
        advice.append("tell, which buys a sharper score of the missed model")
    return advice


def _attempts(job: Record) -> list[str]:
    """Every attempt and its charge."""
    attempts = job["attempts"]
    lines = [f"{len(attempts)} of at most {job['attempts_allowed']}"]
    if len(attempts) > 1:
        lines[0] += "; their charges add up"
    outcomes = {True: "passed", False: "missed", None: "done"}
    for number, attempt in enumerate(attempts, 1):
        said = attempt["outcome"] if "outcome" in attempt else outcomes[attempt["passed"]]
        lines.append(f"{number}: {said}, {_charge(attempt['spent']).removesuffix(', δ = 0')}")
    if job["budget_refused_another_attempt"]:
        lines.append("The budget refused another attempt.")
    return lines


def _bought(document: Record) -> str | None:
    """The charge of facts that were bought, and the total with them."""
    if "facts" not in document:
        return None
    number = len(document["facts"]["facts"]["columns"])
    columns = f"{_charge(document['facts']['charged'])}: {number} column{'s' * (number != 1)}"
    return f"{columns}; in all {_amount(query_words.charged_in_all(document))}"


def _columns(data: Record) -> list[str]:
    """One line per column: its kind, and its public bounds or categories."""
    bounds, gaps = data.get("bounds"), data.get("missing") or {}
    if bounds is not None and not isinstance(bounds, Mapping):
        pairs = bounds if isinstance(bounds[0], Sequence) else [bounds]
        lines = [f"number from {low:g} to {high:g}" for low, high in pairs]
        if len(lines) == 1:
            return [f"every column: {lines[0]}"]
        return [f"column {number}: {text}" for number, text in enumerate(lines)]
    kinds = {
        name: f"number from {low:g} to {high:g}" for name, (low, high) in (bounds or {}).items()
    }
    for name, (low, high) in (data.get("dates") or {}).items():
        kinds[name] = f"date from {low} to {high}"
    for name, values in (data.get("categories") or {}).items():
        kinds[name] = "one of " + ", ".join(map(str, values)) + "; all else is 'other'"
    kinds |= dict.fromkeys(data.get("booleans") or [], "true or false")
    kinds |= dict.fromkeys(data.get("texts") or [], "text, as hashed n-grams")
    if not isinstance(gaps, Mapping):
        gaps = dict.fromkeys(kinds, gaps)
    if not kinds:
        return [", ".join(map(str, data["features"]))] if data.get("features") else []
    lines = []
    for name in data.get("features") or kinds:
        gap = gaps.get(name)
        filling = "'missing'" if gap == "indicator" else value_words(gap)
        filled = "" if gap is None else f"; an empty cell counts as {filling}"
        lines.append(f"{name}: {kinds.get(name, 'no facts')}{filled}")
    return lines


def _target(data: Record) -> str | None:
    name = "" if data.get("target") is None else f"{data.get('target')}, "
    if data.get("target_bounds") is not None:
        low, high = data["target_bounds"]
        return f"{name}number from {low:g} to {high:g}"
    classes = data.get("classes")
    if classes is None or classes == 1:
        return classes and "none: the module computes the loss of a row from the row"
    if not isinstance(classes, list):
        return f"{name}{value_words(classes)} classes"
    return f"{name}{len(classes)} classes: {', '.join(map(str, classes))}"


def _rows(job: Record) -> str:
    rows, data = job["rows"], job["data"]
    if rows is None:
        return "their number is secret"
    text = f"{rows['training']:,} for training, {rows['scoring']:,} for scoring"
    if data.get("public_test") is not None:
        text += f" (public rows of {data.get('public_test')}, not protected)"
    if data["rows"] is not None:
        return f"{text}; from the stated number {data['rows']:,}, the actual one is secret"
    return f"{text}; these numbers are public"


def _model(document: Record, verbose: bool) -> list[str]:
    kind, value = document["tuning"]["model"]["kind"], document["value"]
    if not isinstance(value, Mapping):
        return [str(kind)]
    file = f", file {value['model']}" if isinstance(value.get("model"), str) else ""
    settings = f"; {settings_words(document['params'])}" if document["params"] else ""
    digest = str(value.get("sha256", ""))
    shown = digest if verbose else f"{digest[:12]}…"
    return [f"{kind}{file}{settings}", *([f"SHA-256 {shown}"] if digest else [])]


def _order(order: float | None) -> str | None:
    return None if order is None else f"Rényi order {order:g}"


def _within(value: float, goal: Record) -> float:
    """Return a value no further than the ends of the metric's range, if the record states it."""
    low, high = goal.get("range") or (value, value)
    return float(min(max(value, low), high))
