"""Privacy per person at the doors: what one person with any rows can change, and what is refused.

The judgement is exact where it can be. What leaves a job is a function of public settings, coins
and the rows of :class:`JobRows`, so two tables that differ in the rows of one person must give the
same plan, the same parts of everybody else, and sums that differ by one contribution.
"""

from __future__ import annotations

import json
import math
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import expost
from expost.certificates.verify import run_checks
from expost.certificates.words import certificate_words
from expost.cli.main import main
from expost.errors import InvalidInput
from expost.randomness.source import KeyedRandomness, RunKey, SimulationRandomness
from expost.selection.held_out import SHARES
from expost.tables.cells import mixed_words
from expost.training.progressive import LinearTraining, TrainingRows
from expost.training.progressive_modules import ModuleTraining
from expost.tuning.plan.strategies import price_job
from expost.tuning.request import bought_facts
from expost.tuning.request.settings import read_settings
from expost.tuning.rows.job_columns import (
    PersonRows,
    _row_words,
    in_slots,
    name_words,
    person_codes,
)
from expost.tuning.rows.job_rows import JobRows, load_rows
from expost.tuning.rows.job_tables import head_and_places

PERSONS = 300
FACTS: dict[str, Any] = {"feature_bounds": [0, 1], "classes": 2, "at_least": 0.7}


def people(persons: int = PERSONS, seed: int = 0) -> tuple[Any, Any, Any]:
    """Rows of persons with one to six rows each, in no order."""
    generator = np.random.default_rng(seed)
    who = generator.permutation(np.repeat(np.arange(persons), generator.integers(1, 7, persons)))
    y = generator.integers(0, 2, len(who))
    X = np.where(y[:, None] == 1, 0.75, 0.25) + 0.12 * generator.normal(size=(len(who), 2))
    return np.clip(X, 0, 1), y.astype(float), who.astype(object)


def settings(**data: Any) -> Any:
    tables = {
        "data": {"feature_bounds": [0, 1], "classes": 2, "user": "groups", **data},
        "model": {"kind": "logistic", "training": "progressive"},
        "goal": {"at_least": 0.7},
        "privacy": {"delta": 1e-5},
    }
    return read_settings(tables, given_data=True)


def loaded(X: Any, y: Any, who: Any, **data: Any) -> JobRows:
    read = settings(**data).data
    coins = SimulationRandomness(3)  # neighbours are compared coin by coin
    return load_rows(read, X, y, groups=who, randomness=coins)


def without(rows: tuple[Any, Any, Any], person: Any) -> tuple[Any, Any, Any]:
    X, y, who = rows
    return X[who != person], y[who != person], who[who != person]


def joined(rows: tuple[Any, Any, Any], X: Any, y: Any, person: Any) -> tuple[Any, Any, Any]:
    """Rows with those of one more person, at the front, where they would move everything."""
    named = np.full(len(y), person, dtype=object)
    return tuple(np.concatenate(pair) for pair in zip((X, y, named), rows, strict=True))  # type: ignore[return-value]


BLANK = np.full((1, 2), math.nan), np.array([math.nan])
GENERATOR = np.random.default_rng(1)
HOSTILE: dict[str, tuple[Any, Any]] = {
    "one row": (np.full((1, 2), 0.5), np.ones(1)),
    "many rows": (GENERATOR.random((5000, 2)), GENERATOR.integers(0, 2, 5000).astype(float)),
    "equal rows": (np.ones((50, 2)), np.zeros(50)),
    "odd rows": (np.array([[math.inf, 0], [1e308, -1e308], [0, 1]]), np.array([0.0, 7, math.nan])),
    "the only row of a class": (np.zeros((1, 2)), np.ones(1)),
    "blank rows": (np.full((9, 2), math.nan), np.full(9, math.nan)),
}


@pytest.mark.parametrize("secret", [False, True], ids=["public", "secret"])
@pytest.mark.parametrize("name", HOSTILE)
def test_all_rows_of_a_person_change_one_contribution_and_nobody_else(name, secret):
    """Gradients, moments, counts and shapes; the person 7 is present or, in public, blank."""
    others = without(people(), 7)
    there = joined(others, *HOSTILE[name], 7)
    absent = others if secret else joined(others, *BLANK, 7)
    data = {"rows": PERSONS} if secret else {}
    one, two = loaded(*there, **data), loaded(*absent, **data)
    assert (one.places, one.score_places) == (two.places, two.score_places)
    kept: list[list[set[tuple[float, ...]]]] = []
    for rows in (one, two):
        assert rows.shares is not None
        assert rows.shares[1] is not None
        pairs = (rows.X, rows.y, rows.shares[0]), (rows.score_X, rows.score_y, rows.shares[1])
        kept.append([{tuple(row) for row in np.column_stack(part).tolist()} for part in pairs])
    changed = [(len(a - b), len(b - a)) for a, b in zip(*kept, strict=True)]
    assert (0, 0) in changed  # one part is as before
    assert all(more <= 10 and less <= 1 for more, less in changed)
    training = LinearTraining("logistic", 2, one.places)
    weights = np.array([[3.0], [-2.0]])
    sums = [
        TrainingRows.of(rows.X / 2, rows.y, training, shares=rows.shares[0] / SHARES)  # type: ignore[index]
        .gradient_sum(weights, training)
        .astype(float)
        for rows in (one, two)
    ]
    assert np.linalg.norm(sums[0] - sums[1]) * 2.0**-39 <= training.clip


def test_a_person_keeps_the_same_rows_in_any_order_and_company():
    X, y, who = people()
    most = 2

    def of(persons: PersonRows, person: str) -> Any:
        some = persons.codes == persons.names.index(person)
        parts = persons.rows[some], persons.labels[some], persons.shares[some]
        return sorted(map(tuple, np.column_stack(parts).tolist()))

    first = PersonRows.of(X, y, who, most)
    assert (np.bincount(first.codes, first.shares) == SHARES).all()
    assert np.bincount(first.codes).max() == most
    order = np.random.default_rng(4).permutation(len(y))
    shuffled = PersonRows.of(X[order], y[order], who[order], most)
    several = [name for name in first.names if (who == int(name)).sum() > most]
    fewer = PersonRows.of(*without((X, y, who), int(several[0])), most)
    for name in several[1:]:
        assert of(first, name) == of(shuffled, name) == of(fewer, name)


def test_rows_of_equal_hash_are_kept_in_any_order():
    """A person makes two rows whose hashes are equal, so that the order of the table would decide.

    A database may return rows in an order that depends on the rows of others.
    """
    word = name_words(["eve"], b"rows")

    def bits(cell: float) -> Any:
        return np.array([cell]).view(np.uint64)

    first = mixed_words(word + bits(0.5)) + bits(0.25)
    for other in np.linspace(0.1, 0.4, 20_000):
        cell = float((first - mixed_words(word + bits(other))).view(np.float64)[0])
        if math.isfinite(cell) and 0 < cell < 1:
            break
    X, y = np.array([[0.5, 0.25], [other, cell]]), np.array([1.0, 1.0])
    words = _row_words(X, y, np.repeat(word, 2))
    assert words[0] == words[1]
    who = np.array(["eve", "eve"], dtype=object)
    one, two = (PersonRows.of(X[order], y, who, 1).rows for order in ([0, 1], [1, 0]))
    np.testing.assert_array_equal(one, two)


def test_zeros_of_either_sign_are_kept_in_any_order():
    """They have equal hashes and equal cells, but a network may tell them apart."""
    X, y = np.array([[0.0, 1.0], [-0.0, 1.0]]), np.ones(2)
    who = np.array(["eve", "eve"], dtype=object)
    one, two = (PersonRows.of(X[order], y, who, 1).rows for order in ([0, 1], [1, 0]))
    assert one.tobytes() == two.tobytes()


def test_public_scoring_rows_belong_to_nobody(tmp_path):
    """They need no column of persons, and may have one."""
    pandas = pytest.importorskip("pandas")
    X, y, who = people()
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "t": y.astype(int), "who": who})
    frame.to_csv(tmp_path / "with.csv", index=False)
    frame.drop(columns="who").to_csv(tmp_path / "without.csv", index=False)
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    facts = {"target": "t", "user": "who", "feature_bounds": {"a": [0, 1], "b": [0, 1]}}
    one, two = (
        tuned((frame,), **facts, scoring="public", public_test=str(tmp_path / name))
        for name in ("with.csv", "without.csv")
    )
    assert (one.score, one.spent) == (two.score, two.spent)
    assert one.details["rows"]["scoring"] == len(y)
    three = tuned((X, y), groups=who, scoring="public", public_test=str(tmp_path / "rows.npz"))
    assert three.passed


def test_facts_are_learned_of_every_column_whatever_the_persons_are_called():
    """The name of groups may be that of a column: bounds once came from the persons' numbers."""
    pandas = pytest.importorskip("pandas")
    X, y, who = people()
    more = {"feature_bounds": None, "learn_facts": 2.5, "max_epsilon": 8.0, "delta": 1e-5}
    one, two = (
        tuned((X, y), groups=pandas.Series(who, name=name), **more) for name in ("0", "person")
    )
    assert (one.score, one.spent) == (two.score, two.spent)


def test_who_is_a_person():
    """Equal texts are one person; a gap, NaN or what cannot be read belongs to nobody."""

    class Broken:
        def __str__(self) -> str:
            raise ValueError("secret")

    cells = [1, 1.0, "1", " 1 ", "x", None, math.nan, "", Broken(), "nan", "\ud800"]
    codes, names = person_codes(np.array(cells, dtype=object))
    assert names == ("1", "x", "\ud800")
    assert codes.tolist() == [0, 0, 0, 0, 1, -1, -1, -1, -1, -1, 2]
    # hexadecimal names that Python reads as 0, and others that it reads as one number
    texts = ["007", "7", "0e12", "0e34", "1_000", "1000", "1e3", "+1", "٣", "3", "inf", "1e999"]
    codes, names = person_codes(np.array([*texts, b"7", "7.0", 7.0], dtype=object))
    assert len(set(codes.tolist())) == len(names) == len(texts)
    assert codes[1] == codes[-1] == codes[-2] == codes[-3]
    pandas = pytest.importorskip("pandas")
    gaps = pandas.array([2**60 + 1, None, 2**60 + 2], dtype="Int64").astype(object)
    codes, names = person_codes(np.array([*gaps, pandas.NaT], dtype=object))
    assert (codes.tolist(), len(names)) == ([0, -1, 1, -1], 2)  # and no digit is lost
    X, y, who = people()
    lost = joined((X, y, who), np.ones((4, 2)), np.ones(4), math.nan)
    for rows, as_before in ((loaded(*lost), loaded(X, y, who)),):
        assert rows.X.tolist() == as_before.X.tolist()
        assert rows.score_y.tolist() == as_before.score_y.tolist()


def test_a_row_that_moves_to_another_person_changes_two_persons():
    X, y, who = people()
    moved = who.copy()
    moved[np.flatnonzero(who == 3)[0]] = 5
    one, two = (PersonRows.of(X, y, groups, 10) for groups in (who, moved))
    assert len(one.names) - len(two.names) in (0, 1)  # 3 may have had one row
    for name in set(one.names) - {"3", "5"}:
        rows = [p.rows[p.codes == p.names.index(name)].tolist() for p in (one, two)]
        assert rows[0] == rows[1]


def test_the_split_is_by_persons_and_a_price_needs_their_number_only(tmp_path):
    X, y, who = people()
    for data in ({}, {"rows": PERSONS}):
        rows = loaded(X, y, who, **data)
        both = {tuple(row): person for row, person in zip(X.tolist(), who, strict=True)}
        training = {both[tuple(row)] for row in rows.X.tolist()}
        scoring = {both[tuple(row)] for row in rows.score_X.tolist()}
        assert not training & scoring
        assert len(training) + len(scoring) == PERSONS
        if not data:
            assert (len(training), len(scoring)) == (rows.places, rows.score_places)
    np.savez(tmp_path / "rows.npz", X=X, y=y, groups=who.astype(np.int64))
    read = settings()
    head, places = head_and_places(tmp_path / "rows.npz", read.data)
    assert places == PERSONS
    priced = price_job(read, head, places)
    planned = expost.plan_job(
        {
            "data": {"feature_bounds": [0, 1], "classes": 2},
            "model": {"kind": "logistic", "training": "progressive"},
            "goal": {"at_least": 0.7},
            "privacy": {"delta": 1e-5},
        },
        X,
        y,
        groups=who,
    )
    assert priced.worst_case == planned.worst_case
    assert priced.reasons == planned.reasons


def problems(document: Any) -> list[str]:
    return run_checks(document)["charge"]


def tuned(given: Any, seed: int = 1, **more: Any) -> Any:
    coins = SimulationRandomness(seed)
    return expost.tune(*given, randomness=coins, simulation=True, **{**FACTS, **more})


def test_every_door_gives_the_same_release(tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y, who = people()
    wanted = tuned((X, y), groups=who, features="plain", delta=1e-5)
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "t": y.astype(int), "who": who})
    files = [tmp_path / name for name in ("rows.csv", "rows.parquet", "rows.csv.gz")]
    frame.to_csv(files[0], index=False)
    frame.astype({"who": int}).to_parquet(files[1])
    frame.to_csv(files[2], index=False)
    pairs = {"feature_bounds": {"a": [0, 1], "b": [0, 1]}, "features": "plain", "delta": 1e-5}
    for source in (frame, *files):
        found = tuned((source,), target="t", user="who", **pairs)
        assert found.spent == wanted.spent, source
        assert found.score == wanted.score
        assert found.details["rows"] == wanted.details["rows"]
    job = {
        "data": {"path": str(files[0]), "target": "t", "user": "who", "classes": 2}
        | {"feature_bounds": {"a": [0, 1], "b": [0, 1]}, "holdout": 0.35},
        "model": {"kind": "logistic", "training": "auto", "features": "plain"},
        "goal": {"at_least": 0.7},
        "privacy": {"delta": 1e-5},
    }
    found = expost.tune(job, randomness=SimulationRandomness(1), simulation=True)
    assert (found.spent, found.score) == (wanted.spent, wanted.score)
    named = tuned((frame.drop(columns="who"),), target="t", groups=frame["who"], **pairs)
    assert (named.spent, named.details["data"]["user"]) == (wanted.spent, "who")


def test_several_files_and_databases(tmp_path):
    pandas, duckdb = pytest.importorskip("pandas"), pytest.importorskip("duckdb")
    X, y, who = people()
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "t": y.astype(int), "who": who})
    frame = frame.astype({"who": int})
    facts = {"target": "t", "user": "who", "feature_bounds": {"a": [0, 1], "b": [0, 1]}}
    for number, some in enumerate((frame.iloc[:500], frame.iloc[500:])):
        some.to_csv(tmp_path / f"rows-{number}.csv", index=False)
    found = [tuned((source,), **facts) for source in (frame, str(tmp_path / "rows-*.csv"))]
    assert found[0].score == found[1].score
    with duckdb.connect(str(tmp_path / "x.duckdb")) as database:
        database.register("f", frame)
        database.execute("create table t as select * from f order by a")  # in another order
    read = {**facts, "rows": PERSONS}
    one, two = tuned((frame,), **read), tuned((str(tmp_path / "x.duckdb"),), table="t", **read)
    assert (one.score, one.spent) == (two.score, two.spent)


def test_budgets_in_rho_and_a_score_after_a_miss(tmp_path):
    X, y, who = people()
    ledger = expost.Ledger.create(tmp_path / "ledger.db", expost.ZCDPBudget(1.0, "zero-out"))
    paid = expost.tune(X, y, groups=who, ledger=ledger, **FACTS)
    assert paid.release.spent.kind == "zcdp"
    assert not problems(paid.document())
    coins = np.random.default_rng(0).integers(0, 2, len(y))  # nothing to learn
    missed = tuned((X, coins), groups=who, at_least=0.8, max_epsilon=1.0, tell=0.3)
    assert not missed.passed
    assert 0.3 < missed.told.score < 0.7
    assert not problems(missed.document())


def test_the_command_names_the_unit(tmp_path, capsys, monkeypatch):
    def command(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["expost", *words])
        with pytest.raises(SystemExit) as done:
            main()
        assert done.value.code == 0
        return " ".join(capsys.readouterr().out.split())

    X, y, who = people()
    lines = [
        "a,b,t,who",
        *(f"{a},{b},{int(t)},{w}" for (a, b), t, w in zip(X, y, who, strict=True)),
    ]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    common = [str(tmp_path / "rows.csv"), "--target", "t", "--classes", "2", "--user", "who"]
    common += ["--feature-bounds", "0:1", "--at-least", "0.7", "--max-rows-per-user", "3"]
    assert "one person with all their rows" in command("tune", *common, "--plan")
    out = tmp_path / "out"
    said = command("tune", *common, "--out", str(out), "--verbose")
    assert "whether one person is in the data" in said
    document = json.loads((out / "release.json").read_text(encoding="utf-8"))
    assert document["tuning"]["data"]["max_rows_per_user"] == 3
    words = dict(certificate_words(document))
    assert words["protects"][0].startswith("one person with all their rows (zero-out), of which")
    assert "scoring persons" in words["score"][0]
    assert "persons" in words
    assert not problems(document)


def test_a_certificate_that_turns_rows_into_persons_is_refused():
    X, y, who = people()
    document = tuned((X, y)).document()
    document["tuning"]["data"] |= {"user": "who", "max_rows_per_user": 10}
    assert any("protects rows only" in text for text in problems(document))
    good = tuned((X, y), groups=who).document()
    assert not problems(good)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dp-sgd": ({"training": "dp-sgd"}, "progressive"),
    "a grid": ({"learning_rates": [1, 2]}, "samples rows one by one"),
    "maximize": ({"at_least": None, "maximize": True}, "progressive"),
    "a cap without persons": ({"groups": None, "max_rows_per_user": 3}, "user"),
    "a cap of 0": ({"max_rows_per_user": 0}, "max_rows_per_user"),
    "too few groups": ({"groups": [1, 2]}, "one per row"),
    "a name without a column": ({"groups": None, "user": "who"}, "groups="),
    "groups in two dimensions": ({"groups": [[1, 2]]}, "groups"),
    "one person": ({"groups": np.ones(len(people()[1]))}, "persons"),
    "nobody": ({"groups": np.full(len(people()[1]), np.nan)}, "data"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_charged(name, tmp_path):
    from expost import ApproxBudget, Ledger

    X, y, who = people()
    more, said = REFUSED[name]
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(4.0, 1e-3, "zero-out"))
    with pytest.raises(InvalidInput, match=said):
        expost.tune(X, y, ledger=ledger, **{**FACTS, "groups": who, **more})
    assert "reserve" not in {entry.action for entry in ledger.entries()}


def test_columns_that_are_refused(tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y, who = people()
    frame = pandas.DataFrame({"a": X[:, 0], "t": y, "who": who})
    facts = {**FACTS, "target": "t"}
    for more in ({"user": "whom"}, {"user": "t"}, {"user": "who", "features": ["a", "who"]}):
        with pytest.raises(InvalidInput):
            expost.plan_job(frame, **facts, **more)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(InvalidInput, match="name the column"):
        expost.plan_job(tmp_path / "rows.csv", groups=who, **facts)
    job = {"data": {"name": "digits", "user": "who"}, "model": {"kind": "softmax"}}
    (tmp_path / "job.toml").write_text(
        "data.classes = 2\nmodel.kind = 'logistic'\ngoal.at_least = 0.8\nprivacy.delta = 1e-5"
    )
    with pytest.raises(InvalidInput, match="add user"):
        expost.plan_job(tmp_path / "job.toml", X, y, groups=who)
    with pytest.raises(InvalidInput, match="one row per person"):
        expost.plan_job({**job, "goal": {"at_least": 0.8}, "privacy": {"delta": 1e-5}})


def test_a_person_with_a_million_rows_changes_neither_plan_nor_numbers():
    others = without(people(), 7)
    generator = np.random.default_rng(0)
    many = joined(others, generator.random((10**6, 2)), np.ones(10**6), 7)
    one, two = (tuned((X, y), groups=who) for X, y, who in (many, joined(others, *BLANK, 7)))
    assert one.details["rows"] == two.details["rows"]
    assert one.forecast.as_dict() == two.forecast.as_dict()
    assert one.details["privacy"] == two.details["privacy"]


@pytest.mark.parametrize("data", [{}, {"rows": PERSONS}], ids=["public", "secret"])
def test_rows_in_parts_give_the_same_release(data, monkeypatch):
    X, y, who = people()
    wanted = tuned((X, y), groups=who, **data)
    monkeypatch.setattr("expost.tuning.rows.spread_rows.LARGE", 0)
    monkeypatch.setattr("expost.tuning.rows.job_rows.PIECE", 37)  # persons are cut in two
    found = tuned((X, y), groups=who, **data)
    assert (found.score, found.spent) == (wanted.score, wanted.spent)
    assert found.model.parameters["weight"].tolist() == wanted.model.parameters["weight"].tolist()


REGRESSION: dict[str, Any] = {
    "classes": None,
    "target_bounds": [0, 1],
    "metric": "mse",
    "at_least": None,
    "at_most": 0.2,
    "max_epsilon": 20,
}


@pytest.mark.parametrize("training", ["noise-reduction", "progressive"])
def test_regressions(training, monkeypatch):
    X, _, who = people()
    wanted = tuned((X, X[:, 0]), groups=who, training=training, **REGRESSION)
    assert wanted.passed
    monkeypatch.setattr("expost.tuning.rows.spread_rows.LARGE", 0)
    found = tuned((X, X[:, 0]), groups=who, training=training, **REGRESSION)
    assert (found.score, found.spent) == (wanted.score, wanted.spent)


def test_an_interrupted_job_with_a_secret_number_of_persons_goes_on(tmp_path, monkeypatch):
    X, y, who = people()
    how: dict[str, Any] = {**FACTS, "groups": who, "rows": PERSONS, "out": tmp_path / "out"}

    def crash(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr("expost.tuning.job.conclude", crash)
        with pytest.raises(KeyboardInterrupt):
            expost.tune(X, y, **how)
    assert expost.tune(X, y, **how).passed


def test_facts_are_bought_per_person():
    pandas = pytest.importorskip("pandas")
    X, y, who = people(2000)
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "t": y.astype(int), "who": who})
    found = expost.tune(frame, user="who", target="t", at_least=0.7, learn_facts=2.0)
    document = found.document()
    assert document["facts"]["facts"]["user"] == "who"
    assert "who" not in document["facts"]["facts"]["columns"]
    assert not problems(document)


def test_facts_have_the_persons_of_their_job(monkeypatch):
    """A person who is written in two ways counted twice in the facts, and once in the job."""
    X, y, who = people(2000)
    again = np.array([f" {person}.0" if index % 2 else person for index, person in enumerate(who)])
    seen = []

    def counts(columns, user, randomness):
        seen.append([None if cell is None else str(cell) for cell in columns[user]])
        return original(columns, user, randomness)

    original = bought_facts.array_counts
    monkeypatch.setattr(bought_facts, "array_counts", counts)
    for groups in (who, again.astype(object)):
        groups[7] = math.nan
        given = {"feature_bounds": None, "learn_facts": 2.5, "max_epsilon": 8.0}
        tuned((X, y), groups=groups, **given, delta=1e-5)
    assert seen[0] == seen[1]
    assert seen[0][7] is None


def test_a_search_of_scikit_learn():
    from expost.sklearn import DPLogisticRegression, ExPostSearch

    X, y, who = people()
    model = DPLogisticRegression(feature_bounds=(0, 1), classes=[0, 1], delta=1e-5)
    search = ExPostSearch(model, at_least=0.7, max_rows_per_user=4)
    search.fit(X, y, groups=who)
    document = json.loads(search.certificate())
    assert document["tuning"]["data"]["user"] == "groups"
    assert document["tuning"]["rows"] == {"training": 195, "scoring": 105}
    assert not problems(document)
    public = ExPostSearch(model, at_least=0.7, scoring=lambda fitted: fitted.score(X, y))
    public.fit(X, y, groups=who)
    assert public.release_.spent.neighbours == "zero-out"
    with pytest.raises(InvalidInput, match="groups"):
        ExPostSearch(model, {}, epsilons=[1.0], at_least=0.7).fit(X, y, groups=who)
    with pytest.raises(InvalidInput, match="one per row"):
        search.fit(X, y, groups=who[1:])


torch_is_there = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


def _network() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


@torch_is_there
@pytest.mark.parametrize("name", HOSTILE)
def test_a_person_moves_the_sum_of_a_network_by_at_most_the_clip(name):
    """Positions are fixed, so that nobody else's gradient is rounded in another way."""
    others = without(people(40), 7)
    most, sums = 4, []
    training = ModuleTraining(_network, "softmax", 26, clip=0.01, together=most)
    descent = training.start(RunKey(bytes(32), True))
    for X, y in (HOSTILE[name], BLANK):
        rows = loaded(*joined(others, X, y, 7), max_rows_per_user=most).in_positions()
        assert rows.shares is not None
        assert rows.X.shape == (26 * most, 2)
        assert rows.score_X.shape == (14 * most, 2)
        prepared = training.rows_of(rows.X, rows.y, "cpu", rows.shares[0] / SHARES)
        sums.append(training.exact_sum(prepared, descent, 0))
    assert np.linalg.norm(sums[0] - sums[1]) <= training.sensitivity
    full = training.rows_of(rows.X, rows.y, "cpu")
    assert np.linalg.norm(training.exact_sum(full, descent, 0)) > np.linalg.norm(sums[1])


@torch_is_there
def test_a_network_is_trained_per_person():
    X, y, who = people()
    found = tuned((X, y), groups=who, model=_network, training="progressive", max_rows_per_user=3)
    assert found.passed
    assert dict(certificate_words(found.document()))["protects"][0].startswith("one person")


def test_positions_hold_the_rows_of_each_person():
    X, y, who = people(30)
    persons = PersonRows.of(X, y, who, 3)
    wide, goals, shares = in_slots(persons.rows, persons.labels, persons.shares, 30, 3)
    assert wide.shape == (90, 2)
    assert (shares.reshape(30, 3).sum(axis=1) == SHARES).all()
    assert wide[shares > 0].tolist() == persons.rows.tolist()
    assert np.isnan(goals[shares == 0]).all()


def test_a_coin_of_a_person_depends_on_the_key_and_the_name_alone():
    X, y, who = people()
    persons = PersonRows.of(X, y, who, 10)
    fewer = PersonRows.of(*without((X, y, who), 7), 10)
    keys = [KeyedRandomness(bytes([number]) * 32).bytes(32) for number in range(40)]
    for key in keys:
        coins = dict(zip(persons.names, persons.held_out(0.35, key).tolist(), strict=True))
        again = dict(zip(fewer.names, fewer.held_out(0.35, key).tolist(), strict=True))
        assert {name: coins[name] for name in again} == again
    share = np.mean([persons.held_out(0.35, key).mean() for key in keys])
    assert abs(share - 0.35) < 0.025  # 12,000 coins: 5.7 standard deviations
    # The public split: a person less in the list moves at most one other person.
    public = dict(zip(persons.names, persons.held_out(0.35, b"").tolist(), strict=True))
    again = dict(zip(fewer.names, fewer.held_out(0.35, b"").tolist(), strict=True))
    assert sum(public[name] != again[name] for name in again) <= 1
