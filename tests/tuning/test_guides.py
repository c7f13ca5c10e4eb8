"""The pages on trainers and clusters, run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages write files."""
    monkeypatch.chdir(tmp_path)


def run(page: str, least: int) -> dict[str, Any]:
    blocks = re.findall(
        r"^```python\n(.*?)^```",
        (DOCS / page).read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert len(blocks) >= least
    names: dict[str, Any] = {"__name__": page}
    exec(compile("\n".join(blocks), page, "exec", dont_inherit=True), names)
    return names


def test_bring_your_own_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("trainers.md", least=5)
    release = names["release"]
    assert release.theorem == "theorem:max-score"
    assert release.spent.epsilon == pytest.approx(2 * release.params["epsilon"] + 0.01)
    model, data = release.value, names["data"]
    depth = release.params["depth"]
    accuracy = (model.predict(data["test_X"][:, :depth]) == data["test_y"]).mean()
    assert abs(accuracy - model.accuracy) < 0.5  # 25 scales of the noise at the smallest ε
    assert "PureDP" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_from_a_trainer_script_to_a_certificate(tmp_path: Path) -> None:
    for package in ("peft", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    names = run("text.md", least=1)
    assert names["tuned"].spent.epsilon <= 12
    if names["tuned"].model is not None:
        assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


def test_a_fleet_of_ones_own_gives_what_single_runs_do() -> None:
    """The page's fleet, against the page's single runs."""
    from expost import Candidate, RandomDropping, SimulationRandomness

    names = run("trainers.md", least=5)

    def released(kind: Any) -> Any:
        given = [Candidate(kind(epsilon, 2), {"epsilon": epsilon}) for epsilon in (0.1, 0.2, 0.4)]
        options = {
            "randomness": SimulationRandomness(1),
            "simulation": True,
            "score": lambda model: model.accuracy,
        }
        return RandomDropping(5).select(given, names["data"], **options)

    one, other = released(names["NearestMean"]), released(names["Fleet"])
    assert (one.index, one.score) == (other.index, other.score)


@pytest.mark.slow
def test_on_a_ray_cluster() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    names = run("cluster.md", least=3)
    assert names["result"].spent.epsilon > 0
