"""``expost plan`` and ``python -m reproduction figure1``: output, known values, errors, figures."""

import json

import pytest

from tests.cli.test_cli import expost

KEYS = {
    "epsilon",
    "charge",
    "charge_paper",
    "charge_repeat_and_select",
    "charge_composition",
    "bound",
    "order",
    "shift",
    "keep_probability",
}


@pytest.fixture(scope="module")
def ten_levels():
    done = expost(
        "plan",
        "--epsilons",
        "0.1:1.0:0.1",
        "--configurations",
        "162",
        "--overhead",
        "0.05",
        "--delta",
        "1e-6",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_contract(ten_levels):
    assert {"overhead", "delta", "expected_runs", "p_nothing", "runs", "levels"} <= set(ten_levels)
    assert set(ten_levels["runs"]) == {"p50", "p90", "p99", "max"}
    assert all(set(level) == KEYS for level in ten_levels["levels"])


def test_known_values(ten_levels):
    """Catches wrong prices: P(nothing) and the charges at levels 0.1, 0.2, 0.4, 1.0 are known."""
    assert ten_levels["p_nothing"] == pytest.approx(0.755, abs=0.002)
    assert ten_levels["runs"]["max"] == 1620
    charges = {level["epsilon"]: level["charge"] for level in ten_levels["levels"]}
    for epsilon, known in ((0.1, 0.1827), (0.2, 0.442), (0.4, 0.994), (1.0, 2.63)):
        assert charges[epsilon] == pytest.approx(known, rel=0.01)
    for level in ten_levels["levels"]:
        assert level["charge"] < level["charge_paper"] < level["charge_composition"] * 2


def test_an_ordinary_job_is_priced_at_a_useful_order():
    """Batch 256 of 60,000 for ten epochs: the search once ended at order 2 and asked for 16.7."""
    job = ["--epsilons", "1.0", "--configurations", "162", "--sampling-rate", "0.0043"]
    done = expost("plan", *job, "--epochs", "10", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["charges_to_a_bar"][0] <= 2.1
    assert plan["levels"][0]["charge"] <= min(2.2, plan["levels"][0]["charge_paper"])


def test_runs_are_consistent(ten_levels):
    runs = ten_levels["runs"]
    assert runs["p50"] <= runs["p90"] <= runs["p99"] <= runs["max"]
    assert ten_levels["expected_runs"] == pytest.approx(
        ten_levels["expected_runs_per_draw"] / (1 - ten_levels["p_nothing"]), rel=0.01
    )


def test_dp_sgd_levels_and_a_figure(tmp_path):
    """Catches curves that explode beyond their own order (DP-SGD) being priced at another's."""
    arguments = [
        "--epsilons",
        "0.1,1.0",
        "--configurations",
        "50",
        "--sampling-rate",
        "0.01",
        "--epochs",
        "2",
    ]
    done = expost("plan", *arguments, "--plot", str(tmp_path / "plan.png"), "--json")
    assert done.returncode == 0, done.stderr
    levels = json.loads(done.stdout)["levels"]
    assert levels[0]["charge"] < 0.3
    assert levels[1]["charge"] < 3
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_max_runs_and_target_charge():
    base = ["plan", "--epsilons", "0.1,0.2", "--configurations", "100", "--json"]
    limited = json.loads(expost(*base, "--overhead", "0.2", "--max-runs", "30").stdout)
    assert limited["runs"]["p99"] <= 30
    assert limited["minimum_drop_level"] > 0
    found = json.loads(expost(*base, "--target-charge", "0.25").stdout)
    assert found["levels"][0]["charge"] <= 0.26


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--epsilons", "0.2,0.1"], "epsilons"),
        (["--epsilons", "x"], "epsilons"),
        (["--epsilons", "0.1", "--overhead", "0"], "overhead"),
        (["--epsilons", "0.1", "--overhead", "nan"], "overhead"),
        (["--epsilons", "0.1", "--delta", "0"], "delta"),
        (["--epsilons", "0.1", "--epochs", "3"], "epochs"),
        (["--epsilons", "0.1", "--sampling-rate", "2", "--epochs", "1"], "sampling_rate"),
        (["--epsilons", "0.1", "--target-charge", "0.001"], "target_charge"),
        (["--epsilons", "0.1", "--plot", "plan.bmp"], "plot"),
        (["--epsilons", "0.1", "--max-runs", "0"], "max_runs"),
    ],
)
def test_bad_input_names_the_field(arguments, named):
    done = expost("plan", "--configurations", "3", *arguments)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr
