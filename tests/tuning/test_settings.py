"""Settings: every mistake is named by its key and its line, before anything else happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from expost.errors import InvalidInput
from expost.tuning import EXAMPLE, read_settings
from tests.tuning.jobs import TOML, job

ROOT = Path(__file__).parent.parent.parent


def read(folder: Path, text: str) -> Any:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return read_settings(path)


def test_a_job_is_read(tmp_path: Path) -> None:
    settings = read(tmp_path, TOML)
    assert settings.search.epsilons == (1.0, 4.0)
    assert len(settings.search.settings) == 2
    assert settings.goal.least_score == 0.7
    assert settings.data.path == tmp_path / "rows.npz"
    assert settings.privacy.scoring == "private"


@pytest.mark.parametrize(
    ("line", "instead", "key", "number"),
    [
        ("classes = 2", "classes = 1", "data.classes", 4),
        ("classes = 2", "classes = true", "data.classes", 4),
        ("classes = 2", "clases = 2", "data.clases", 4),
        ("feature_bounds = [0, 1]", "feature_bounds = [1, 0]", "data.feature_bounds", 3),
        ("feature_bounds = [0, 1]", "feature_bounds = 1", "data.feature_bounds", 3),
        ('kind = "logistic"', 'kind = "forest"', "model.kind", 7),
        ('kind = "logistic"', "kind = 3", "model.kind", 7),
        ('kind = "logistic"', 'kind = "linear"', "model.kind", 7),
        ("epsilons = [1, 4]", "epsilons = [4, 1]", "search.epsilons", 10),
        ("epsilons = [1, 4]", "epsilons = []", "search.epsilons", 10),
        ("epsilons = [1, 4]", "epsilons = [1, 1]", "search.epsilons", 10),
        ("epsilons = [1, 4]", "epsilons = [0.0]", "search.epsilons", 10),
        ("epsilons = [1, 4]", "epsilons = [nan]", "search.epsilons", 10),
        ("epsilons = [1, 4]", 'epsilons = "small"', "search.epsilons", 10),
        ("clips = [1]", "clips = [-1]", "search.clips", 14),
        ("clips = [1]", "", "search.clips", 9),
        ("clips = [1]", "clips = [1]\nsamples = 0", "search.samples", 15),
        ("at_least = 0.7", "at_least = 1.2", "goal.at_least", 18),
        ("at_least = 0.7", "at_least = 0", "goal.at_least", 18),
        ("at_least = 0.7", "at_most = 0.7", "goal.at_most", 18),
        ("at_least = 0.7", "at_least = 0.7\nmaximize = true", "goal.maximize", 19),
        ("at_least = 0.7", "maximize = false", "goal.maximize", 18),
        ("at_least = 0.7", "", "goal.at_least", 16),
        ('metric = "accuracy"', 'metric = "auc"', "goal.metric", 17),
        ("delta = 1e-4", "delta = 1", "privacy.delta", 21),
        ("delta = 1e-4", "", "privacy.delta", 20),
        ("attempts = 3", 'overhead = "much"', "privacy.overhead", 22),
        ("attempts = 3", "overhead = -1", "privacy.overhead", 22),
        ("attempts = 3", "repeats = 1.5", "privacy.repeats", 22),
        ("attempts = 3", "attempts = 0", "privacy.attempts", 22),
        ("attempts = 3", 'scoring = "exact"', "privacy.scoring", 22),
        ("attempts = 3", 'scoring = "public"', "data.public_test", 1),
        ("attempts = 3", "order = [0.5]", "privacy.order", 22),
        ("attempts = 3", "ordre = [2]", "privacy.ordre", 22),
        (
            'path = "rows.npz"',
            'path = "rows.npz"\npublic_test = "other.npz"',
            "data.public_test",
            3,
        ),
        (
            'classes = 2\n\n[model]\nkind = "logistic"',
            'classes = 12\n\n[model]\nkind = "cnn"',
            "data.classes",
            4,
        ),
    ],
)
def test_a_mistake_is_named_by_key_and_line(
    tmp_path: Path, line: str, instead: str, key: str, number: int
) -> None:
    assert line in TOML
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path, TOML.replace(line, instead))
    assert caught.value.field == f"{key} (line {number})"


def test_a_table_on_one_line_has_a_line_too(tmp_path: Path) -> None:
    text = TOML.replace('[model]\nkind = "logistic"\ntraining = "dp-sgd"\n', "")
    with pytest.raises(InvalidInput, match=r"model\.colour \(line 1\)"):
        read(tmp_path, 'model = {kind = "logistic", colour = 3}\n' + text)


def test_public_rows_are_other_rows(tmp_path: Path) -> None:
    """Catches private rows given as public rows: their exact score would be published."""
    text = (
        TOML.replace('path = "rows.npz"', 'path = "rows.npz"\npublic_test = "./rows.npz"')
        + 'scoring = "public"\n'
    )
    with pytest.raises(InvalidInput, match=r"data\.public_test \(line 3\).*protect"):
        read(tmp_path, text)


def test_unknown_tables_and_broken_text(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"extra \(line 25\).*unknown"):
        read(tmp_path, TOML + "\n[extra]\nkey = 1\n")
    with pytest.raises(InvalidInput, match="at line 2"):
        read(tmp_path, "[data]\nname =\n")
    with pytest.raises(InvalidInput, match="no such file"):
        read_settings(tmp_path / "missing.toml")
    with pytest.raises(InvalidInput, match=r"without \[model\], \[goal\], \[privacy\]"):
        read_settings({"data": {}})
    with pytest.raises(InvalidInput, match=r"without \[search\], \[privacy\]"):
        read_settings({"data": {}, "model": {"kind": "nets.py:Net"}, "goal": {}})


def test_regression_needs_public_bounds() -> None:
    wanted = {"metric": "mse", "at_least": None, "at_most": 2, "loss_bound": 25}
    changes: dict[str, Any] = {
        "model": {"kind": "linear"},
        "data": {"classes": None, "target_bounds": [0, 10]},
        "goal": wanted,
    }
    assert read_settings(job(**changes), given_data=True).goal.least_score == -2
    for table, key, value in (
        ("data", "target_bounds", [10, 0]),
        ("goal", "loss_bound", None),
        ("goal", "at_most", 30),
    ):
        changed = {**changes, table: {**changes[table], key: value}}
        with pytest.raises(InvalidInput, match=rf"{table}\.{key}"):
            read_settings(job(**changed), given_data=True)


def test_samples_are_drawn_publicly() -> None:
    wide = {"learning_rates": [1, 2, 3, 4], "epochs": [1, 2, 3], "samples": 5}
    first = read_settings(job(search=wide), given_data=True).search.settings
    assert len(first) == 5
    assert first == read_settings(job(search=wide), given_data=True).search.settings


def test_the_example_parses_and_is_the_file_in_examples(tmp_path: Path) -> None:
    assert read(tmp_path, EXAMPLE).data.name == "digits"
    assert (ROOT / "examples" / "digits.toml").read_text(encoding="utf-8") == EXAMPLE


def test_the_grid_has_optimisers_schedules_decays_and_class_weights() -> None:
    more = {
        "optimisers": ["sgd", "adam"],
        "schedules": ["constant", "cosine", "linear"],
        "weight_decays": [0, 0.01],
        "class_weights": [[1, 1], [1, 5]],
    }
    settings = read_settings(job(search=more), given_data=True)
    points = settings.search.settings
    assert len(points) == len(set(points)) == 2 * 2 * 3 * 2 * 2
    assert {each.optimiser for each in points} == {"sgd", "adam"}
    assert {each.schedule for each in points} == {"constant", "cosine", "linear"}
    assert {each.weight_decay for each in points} == {0.0, 0.01}
    assert {each.class_weights for each in points} == {(1.0, 1.0), (1.0, 5.0)}
    few = read_settings(job(search={**more, "samples": 7}), given_data=True).search.settings
    assert len(few) == 7
    assert set(few) < set(points)
    plain = read_settings(job(), given_data=True).public()["search"]["settings"][0]
    assert list(plain) == ["learning_rate", "epochs", "batch_size", "clip"]


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("optimisers", ["sgd", "lion"]),
        ("optimisers", ["sgd", "sgd"]),
        ("optimisers", []),
        ("optimisers", [1]),
        ("schedules", ["step"]),
        ("schedules", 3),
        ("weight_decays", [-1]),
        ("weight_decays", [0.1, 0.1]),
        ("weight_decays", ["a"]),
        ("weight_decays", [True]),
        ("class_weights", "balanced"),
        ("class_weights", [1, 5]),
        ("class_weights", [[1, 0]]),
        ("class_weights", [[1, 5], [1.0, 5.0]]),
        ("class_weights", [["a", "b"]]),
        ("class_weights", []),
    ],
)
def test_wrong_axes_of_the_grid_are_refused(key: str, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"search\.{key}"):
        read_settings(job(search={key: wrong}), given_data=True)


def test_axes_that_do_not_fit_the_model_are_refused() -> None:
    both = job(search={"optimisers": ["sgd", "adam"]}, model={"optimiser": "adam"})
    with pytest.raises(InvalidInput, match=r"search\.optimisers"):
        read_settings(both, given_data=True)
    regression = job(
        model={"kind": "linear"},
        data={"classes": None, "target_bounds": [0, 10]},
        goal={"metric": "mse", "at_least": None, "at_most": 2, "loss_bound": 25},
        search={"class_weights": [[1, 2]]},
    )
    with pytest.raises(InvalidInput, match=r"search\.class_weights"):
        read_settings(regression, given_data=True)
