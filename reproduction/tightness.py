"""How tight the charges are: attacks by search over the usual regime, into docs/results/tightness.json, a figure and docs/tightness.md.

``python -m reproduction tightness`` takes about a minute and a half. ``--longer`` repeats the search over the regime with more outputs
and ten times as many generations, by hand, and notes how much more it found.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scripts.fill_documents import fill

from expost import (
    AboveThreshold,
    Candidate,
    DiscreteLaplace,
    Doubling,
    NoiseReduction,
    Poisson,
    PureDP,
    Query,
    RandomDropping,
    RenyiDP,
    RepeatAndSelect,
    TruncatedNegativeBinomial,
    plots,
)
from expost.audit.exact.audit import exact_audit
from expost.errors import InvalidInput
from expost.selection.renyi.search import price
from reproduction.counterexamples.attacks import Game, MechanismFamily
from reproduction.counterexamples.search import simulate_attack

DOCS = Path(__file__).parent.parent / "docs"
SEED = 15183

EPSILONS = (0.05, 0.2, 1.0)
ORDERS = (2.0, 4.0, 16.0, 64.0, 300.0)
CANDIDATES = (10, 200, 2000)
SETTINGS = (("one order", 0.1), ("one order", 1.0), ("Gaussian", 0.1))
CURVE = tuple(
    float(order)
    for order in (
        1.25,
        1.5,
        2,
        3,
        4,
        6,
        8,
        12,
        16,
        24,
        32,
        48,
        64,
        96,
        128,
        192,
        256,
        300,
        512,
        1024,
    )
)
"""The orders at which Gaussian curves are promised."""
GENERATIONS, OUTPUTS = 24, 3
ROOM = 1.1  # the sharp bound is said to have room where it is more than this times the best attack


@dataclass(frozen=True)
class Point:
    """One point of the regime: what the bounds charge and what the best attack forces."""

    promise: str
    overhead: float  # as a multiple of ε
    epsilon: float
    order: float
    candidates: int
    attack: float
    sharp: float
    closed_form: float | None
    paper: float | None
    elementary: float
    violated: bool

    @property
    def ratio(self) -> float:
        return self.attack / self.sharp

    @property
    def room(self) -> bool:
        return self.sharp > ROOM * self.attack


def promise_of(kind: str, epsilon: float, order: float) -> RenyiDP:
    """ε at one order and nothing else, or the curve of a Gaussian mechanism that has ε at this order."""
    if kind == "one order":
        return RenyiDP((order,), (epsilon,))
    orders = tuple(sorted({*CURVE, order}))
    return RenyiDP(orders, tuple(epsilon * each / order for each in orders))


def charge(selector: RandomDropping, candidates: list[Candidate], method: str) -> float | None:
    try:
        return float(replace(selector, method=method).charges(candidates)[0].size)
    except InvalidInput as error:
        if error.field != "method":
            raise
        return None  # at no shift does the closed form say anything


def elementary(selector: RandomDropping, candidates: list[Candidate], order: float) -> float:
    """What holds without any theorem on dropping, or by one at a larger order: the least of

    * composition of all copies (the selection is post-processing of all their outputs), Σ ε_j(α);
    * the sharp charge at a larger order of the curve: ex-post Rényi DP at an order implies it at every smaller one (Lyapunov).
    """
    problem = selector.renyi_problem(candidates)
    place = int(np.searchsorted(problem.orders, order))
    larger = [k for k in range(place + 1, len(problem.orders)) if problem.orders[k] <= 8 * order]
    composed = float(problem.copies @ problem.curves[:, place])
    return min([composed, *(float(price(problem, [k]).charges[0]) for k in larger)])


def regime(generations: int, outputs: int) -> Iterator[Point]:
    """Algorithm 3 under Rényi DP, over the whole regime; each search also starts from the last one's best instance."""
    for (kind, fraction), epsilon, candidates in product(SETTINGS, EPSILONS, CANDIDATES):
        last: list[np.ndarray] = []
        for order in ORDERS:
            selector = RandomDropping(fraction * epsilon, order=order)
            game = Game(
                selector, MechanismFamily(promise_of(kind, epsilon, order), outputs), (candidates,)
            )
            found, point = simulate_attack(
                game, simulation_seed=SEED, generations=generations, starts=last
            )
            last = [point]
            sharp, priced = float(game.claimed[0]), game.candidates([_never])
            closed, paper = (
                charge(selector, priced, method) for method in ("closed-form", "paper")
            )
            simple, forced = elementary(selector, priced, order), found.ratio * sharp
            yield Point(
                kind,
                fraction,
                epsilon,
                order,
                candidates,
                forced,
                sharp,
                closed,
                paper,
                simple,
                found.violated,
            )


def _never(data: object, randomness: object) -> object:
    raise AssertionError("pricing never runs a candidate")


def others(generations: int) -> Iterator[dict[str, object]]:
    """The other theorems: how much of the charge some instance needs."""

    def attacked(what: str, bound: str, game: Game) -> dict[str, object]:
        found, _ = simulate_attack(game, simulation_seed=SEED, generations=generations)
        return {"what": what, "bound": bound, "ratio": found.ratio, "violated": found.violated}

    for epsilon, candidates in product(EPSILONS, (10, 2000)):
        pure, groups, at = (
            MechanismFamily(PureDP(epsilon)),
            (candidates - 1, 1),
            f"ε = {epsilon:g}, {candidates} candidates",
        )
        yield attacked(
            f"Algorithm 3, pure, {at}", "2ε + ε′", Game(RandomDropping(0.1 * epsilon), pure, groups)
        )
        yield attacked(
            f"Algorithm 2, pure, {at}",
            "2ε + ε′",
            Game(AboveThreshold(0.1 * epsilon, target=1), pure, groups),
        )
    for epsilon in EPSILONS:
        yield queries(epsilon, monotone=False)
        yield queries(epsilon, monotone=True)
    for order in (4.0, 64.0):
        game = Game(
            AboveThreshold(0.02, target=1, order=order),
            MechanismFamily(promise_of("one order", 0.2, order)),
            (199, 1),
        )
        yield attacked(
            f"Algorithm 2, Rényi at α = {order:g}, ε = 0.2, 200 candidates",
            "(T1), (T2) sharp",
            game,
        )
    for delta in (1e-6, 1e-3):
        game = Game(
            RandomDropping(0.02, delta=delta),
            MechanismFamily(promise_of("Gaussian", 0.2, 64.0)),
            (200,),
        )
        yield attacked(
            f"Algorithm 3, (ε̃, {delta:g}), ε(64) = 0.2 Gaussian, 200 candidates", "(T1) sharp", game
        )
    last = np.array(
        [math.inf, math.inf, 1.5, math.inf]
    )  # the first outcome is trivially tight: look at the last alone
    game = Game(Doubling(1), MechanismFamily(PureDP(0.5)), (1, 1, 1), charges=last)
    yield attacked("Doubling, pure, ε = 0.5, the last of 3 candidates", "sum of ε", game)
    yield noise_reduction()
    for runs, name in (
        (TruncatedNegativeBinomial(1, 0.01), "geometric, mean 100"),
        (TruncatedNegativeBinomial(0, 0.01), "logarithmic, γ = 0.01"),
        (Poisson(20), "Poisson, mean 20"),
    ):
        bound = "ε + μ·tanh(ε/2)" if isinstance(runs, Poisson) else "(2+η)ε"
        game = Game(RepeatAndSelect(runs), MechanismFamily(PureDP(0.5)), (1,))
        yield attacked(f"Repeat and select, pure, {name}, ε = 0.5", bound, game)
        game = Game(
            RepeatAndSelect(runs, order=16.0),
            MechanismFamily(promise_of("Gaussian", 0.2, 16.0)),
            (1,),
        )
        yield attacked(
            f"Repeat and select, Rényi at α = 16, {name}, ε = 0.2 Gaussian",
            "Papernot–Steinke",
            game,
        )


def queries(epsilon: float, *, monotone: bool) -> dict[str, object]:
    """Algorithm 1 by listing: two queries with small answers, each moved by at most one (monotone: all one way)."""
    selector = AboveThreshold(0.1 * epsilon, target=0, monotone=monotone)
    candidates = [
        Candidate(Query(operator.itemgetter(k)), guarantee=PureDP(epsilon)) for k in range(2)
    ]
    best, violated = 0.0, False
    for answers, move in product(product((-1, 0, 1), repeat=2), product((-1, 0, 1), repeat=2)):
        if monotone and min(move) < 0:
            continue
        moved = tuple(a + b for a, b in zip(answers, move, strict=True))
        report = exact_audit(selector, candidates, data=(answers, moved))
        best, violated = max(best, report.claims[0].tightness_at_least), violated or report.violated
    what = f"Algorithm 1, {'monotone ' if monotone else ''}queries, ε = {epsilon:g}"
    return {
        "what": what,
        "bound": "ε + ε′" if monotone else "2ε + ε′",
        "ratio": best,
        "violated": violated,
    }


def noise_reduction() -> dict[str, object]:
    """Laplace noise reduction under every bar of a small range."""
    query, best, violated = Query(lambda data: data), 0.0, False
    levels = [Candidate(DiscreteLaplace(query, epsilon)) for epsilon in (0.5, 1.0, 2.0)]
    for bar in range(-3, 4):
        report = exact_audit(NoiseReduction(target=bar), levels, data=(0, 1))
        best, violated = max(best, report.claims[0].tightness_at_least), violated or report.violated
    return {
        "what": "Laplace noise reduction, ε = 0.5, 1, 2",
        "bound": "the last ε",
        "ratio": best,
        "violated": violated,
    }


# Tables, the figure, and the page.


def grid(points: list[Point], kind: str, fraction: float) -> str:
    """Best attack, sharp and paper charge, by ε, candidates (rows) and order (columns)."""
    lines = [
        "| ε | candidates | " + " | ".join(f"α = {order:g}" for order in ORDERS) + " |",
        "|---" * (len(ORDERS) + 2) + "|",
    ]
    for epsilon, candidates in product(EPSILONS, CANDIDATES):
        cells = [each for each in points if key(each) == (kind, fraction, epsilon, candidates)]
        lines.append(f"| {epsilon:g} | {candidates} | " + " | ".join(map(cell, cells)) + " |")
    return "\n".join(lines)


def key(point: Point) -> tuple[str, float, float, int]:
    return point.promise, point.overhead, point.epsilon, point.candidates


def cell(point: Point) -> str:
    ratio = f"{point.ratio:.2f}" if point.room else f"**{point.ratio:.2f}**"
    return f"{ratio} ({number(point.attack)}, {number(point.sharp)}, {number(point.paper)})"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def room(points: list[Point]) -> str:
    """Where the sharp bound is more than 10 % above the best attack, by promise, overhead and order."""
    heads = (
        "promise",
        "ε′",
        "α",
        "points with room",
        "best attack / sharp",
        "best attack / the least of sharp and elementary",
    )
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for (kind, fraction), order in product(SETTINGS, ORDERS):
        chosen = [
            each
            for each in points
            if (each.promise, each.overhead, each.order) == (kind, fraction, order)
        ]
        wide = f"{sum(each.room for each in chosen)} of {len(chosen)}"
        spans = [
            span([each.ratio for each in chosen]),
            span([each.attack / min(each.sharp, each.elementary) for each in chosen]),
        ]
        lines.append(
            "| " + " | ".join((kind, f"{fraction:g}·ε", f"{order:g}", wide, *spans)) + " |"
        )
    return "\n".join(lines)


def span(values: list[float]) -> str:
    return f"{min(values):.2f} – {max(values):.2f}"


def theorems(rows: list[dict[str, object]]) -> str:
    lines = ["| what | bound | best attack / bound |", "|---|---|---|"]
    lines += [f"| {row['what']} | {row['bound']} | {row['ratio']:.4f} |" for row in rows]
    return "\n".join(lines)


def draw(points: list[Point], path: Path) -> None:
    """Charge over ε by order, for each number of candidates, at ε = 0.2."""
    drawn, panels = plots.figure(len(CANDIDATES), width=3.6, height=3.4)
    series = (("paper", "paper", "s:"), ("sharp", "sharp", "o-"), ("best attack", "attack", "^--"))
    for axes, candidates in zip(panels, CANDIDATES, strict=True):
        chosen = [each for each in points if key(each) == ("one order", 0.1, 0.2, candidates)]
        for colour, (label, name, style) in zip(plots.INK, series, strict=False):
            shown = [
                (each.order, getattr(each, name) / each.epsilon)
                for each in chosen
                if getattr(each, name) is not None
            ]
            axes.plot(*zip(*shown, strict=True), style, color=colour, label=label, markersize=4)
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="order α",
            title=f"{candidates:,} candidates",
            ylim=(1.8, 700.0),
        )
        axes.set_xticks(ORDERS, [f"{order:g}" for order in ORDERS], minor=False)
        axes.set_yticks(
            [2, 5, 10, 20, 50, 100, 200, 500], ["2", "5", "10", "20", "50", "100", "200", "500"]
        )
        axes.minorticks_off()
    panels[0].set_ylabel("charge / ε, at ε = 0.2, ε′ = 0.1·ε")
    panels[0].legend(fontsize=8)
    plots.save(drawn, path)


def longer(record: dict[str, Any]) -> dict[str, Any]:
    """The search over the regime again, ten times as long and with six outputs: the most that it found beyond the short one."""
    best: dict[str, Any] = {
        "generations": 240,
        "outputs": 6,
        "gain": 0.0,
        "gain_where_tight": 0.0,
        "violated": 0,
    }
    for before, after in zip(record["points"], regime(240, 6), strict=True):
        gain = after.attack / before["attack"] - 1
        best["gain"] = max(best["gain"], gain)
        if before["ratio"] > 0.5:
            best["gain_where_tight"] = max(best["gain_where_tight"], gain)
        best["violated"] += after.violated
    return best


def longer_text(found: dict[str, Any] | None) -> str:
    if found is None:
        return "The longer search has not been run on these figures."
    return (
        f"A search ten times as long, over {found['outputs']} outputs, raised the best attack by at most {100 * found['gain']:.1f} % "
        f"({100 * found['gain_where_tight']:.1f} % where the ratio was above one half), and broke {found['violated'] or 'nothing'}."
    )


def write(record: dict[str, Any]) -> None:
    """The results, the figure, and the tables of the page. What the longer search found is kept while the points are the same."""
    path, page = DOCS / "results" / "tightness.json", DOCS / "tightness.md"
    before = (
        json.loads(path.read_text(encoding="utf-8"))
        if path.exists()
        else {"points": [], "longer": None}
    )
    if record["longer"] is None and same(before["points"], record["points"]):
        record["longer"] = before["longer"]
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    points = [
        Point(**{name: value for name, value in each.items() if name != "ratio"})
        for each in record["points"]
    ]
    draw(points, DOCS / "figures" / "tightness.png")
    fill(page, "room", room(points))
    fill(page, "theorems", theorems(record["others"]))
    fill(page, "longer", longer_text(record["longer"]))
    for name, (kind, fraction) in zip(
        ("one-order", "one-order-dear", "gaussian"), SETTINGS, strict=True
    ):
        fill(page, name, grid(points, kind, fraction))


def same(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> bool:
    pairs = list(zip(before, after, strict=False))
    return len(before) == len(after) and all(
        math.isclose(a["attack"], b["attack"], rel_tol=1e-6) for a, b in pairs
    )


def compute(*, more: bool = False, render: bool = False) -> dict[str, Any]:
    """Search the regime anew, search longer, or read the committed results; then write them."""
    if more or render:
        record: dict[str, Any] = json.loads(
            (DOCS / "results" / "tightness.json").read_text(encoding="utf-8")
        )
        record["longer"] = longer(record) if more else record["longer"]
    else:
        points, rows = list(regime(GENERATIONS, OUTPUTS)), list(others(GENERATIONS))
        listed = [asdict(each) | {"ratio": each.ratio} for each in points]
        record = {
            "seed": SEED,
            "generations": GENERATIONS,
            "outputs": OUTPUTS,
            "points": listed,
            "others": rows,
            "longer": None,
        }
    write(record)
    return record
