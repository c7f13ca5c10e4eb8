"""The gallery: ten tasks with code, output and picture (``python -m scripts.gallery``).

Each task runs as it stands in a folder with the made-up customers of ``expost tour`` (it writes
them: ``expost tour``). What they print is kept in docs/results/gallery.json, their pictures in
docs/figures, and docs/gallery.md is written from both. ``python -m scripts.gallery counts`` runs
one task again. Tests: ``tests/test_gallery.py``.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from expost.cli.tour import write_customers
from scripts.screens import run

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "gallery.md"
RESULTS = ROOT / "docs" / "results" / "gallery.json"
FIGURES = ROOT / "docs" / "figures"


@dataclass(frozen=True)
class Task:
    """A task: what it shows, its code, and the picture that the code writes."""

    title: str
    text: str
    language: str
    code: str
    picture: str
    figure: str
    alt: str


TASKS = {
    "model": Task(
        "A model that is right for 8 of 10 people",
        "Bounds, categories and labels are bought with the model.",
        "sh",
        "expost tune customers.csv --target stays --at-least 0.8 --learn-facts 0.2 --out model",
        "model/privacy.png",
        "gallery_model.png",
        "Left: the cost of the job, far below the limit. Right: the accuracy above the goal",
    ),
    "facts": Task(
        "What is in this table?",
        "Kinds, bounds, categories and missing values of all columns, before you ask more.",
        "sh",
        "expost describe customers.csv --epsilon 0.2 --plot facts.png",
        "facts.png",
        "gallery_facts.png",
        "A small histogram per column, with bars for the noise",
    ),
    "counts": Task(
        "People per group, each within 5 %",
        "The list of regions is public, so nothing is charged for finding it.",
        "sh",
        "expost count customers.csv --by region --user customer --within 0.05 --epsilon 1 \\\n"
        "    --keys regions.txt --plot counts.png",
        "counts.png",
        "gallery_counts.png",
        "Five regions with their counts and short intervals",
    ),
    "two-keys": Task(
        "Two keys, groups found privately",
        "Nobody listed the groups: their names are found with noise, and that is charged, too.",
        "sh",
        "expost count customers.csv --by region --by contract --user customer --within 0.1 \\\n"
        "    --epsilon 1.5 --delta 1e-6 --private-keys --plot groups.png",
        "groups.png",
        "gallery_groups.png",
        "Ten pairs of region and contract with their counts and intervals",
    ),
    "means": Task(
        "A mean per group",
        "Ages are between 18 and 90, which is public knowledge; every customer has one row.",
        "sh",
        "expost count customers.csv --by region --mean age --bounds 18:90 --user customer \\\n"
        "    --one-row-per-user --within 0.05 --epsilon 1 --keys regions.txt --plot means.png",
        "means.png",
        "gallery_means.png",
        "The mean age in five regions, all a little above 50, with intervals",
    ),
    "plan": Task(
        "What will it cost, before anything runs?",
        "A plan reads no data and charges nothing; it holds if the settings are good enough.",
        "sh",
        "expost plan --epsilons 0.5,1,2 --configurations 20 --plot plan.png",
        "plan.png",
        "gallery_plan.png",
        "The total ε and the number of trainings by the level from which settings pass",
    ),
    "accuracy": Task(
        "What does accuracy cost?",
        "Three goals, three searches with scikit-learn's interface. Each search is charged.",
        "python",
        "from matplotlib.figure import Figure\n"
        "from sklearn.datasets import load_digits\n\n"
        "from expost.sklearn import DPLogisticRegression, ExPostSearch\n\n"
        "X, y = load_digits(return_X_y=True)\n"
        "goals = [0.4, 0.6, 0.75]\n"
        "costs = []\n"
        "for goal in goals:\n"
        "    model = DPLogisticRegression(classes=range(10), feature_bounds=[0, 16])\n"
        "    search = ExPostSearch(model, at_least=goal).fit(X, y)\n"
        "    costs.append(search.privacy_spent_.epsilon)\n"
        '    print(f"{goal:.0%}: passed = {search.passed_}, ε = {costs[-1]:.2f}")\n'
        'figure = Figure(figsize=(5, 3), layout="constrained")\n'
        "axes = figure.subplots()\n"
        'axes.plot(goals, costs, "o-")\n'
        'axes.set(xlabel="accuracy to reach", ylabel="privacy loss ε")\n'
        'figure.savefig("accuracy.png", dpi=160)\n',
        "accuracy.png",
        "gallery_accuracy.png",
        "Privacy loss ε over the accuracy to reach: it grows with the goal",
    ),
    "precision": Task(
        "One number, as precise as you need it",
        "Noise is reduced step by step until the answer is precise enough; the last step is "
        "charged.",
        "python",
        "from matplotlib.figure import Figure\n\n"
        "from expost import Candidate, DiscreteLaplace, NoiseReduction, Query\n\n"
        'visits = ["ana", "ben", "eve"] * 40\n'
        "levels = [0.02 * 1.3**step for step in range(16)]\n"
        'listed = [Candidate(DiscreteLaplace(Query(len), e), {"epsilon": e}) for e in levels]\n'
        "precise = lambda answer: 1 - answer.half_width(0.9) / max(1, abs(float(answer)))\n"
        "errors = [0.5, 0.2, 0.1]\n"
        "costs = []\n"
        "for error in errors:\n"
        "    selector = NoiseReduction(at_least=1 - error)\n"
        "    release = selector.select(listed, visits, score=precise)\n"
        "    costs.append(release.spent.epsilon)\n"
        '    print(f"within {error:.0%}: {float(release.value):.0f}, ε = {costs[-1]:.2f}")\n'
        'figure = Figure(figsize=(5, 3), layout="constrained")\n'
        "axes = figure.subplots()\n"
        'axes.bar([f"{error:.0%}" for error in errors], costs)\n'
        'axes.set(xlabel="error to stay within", ylabel="privacy loss ε")\n'
        'figure.savefig("precision.png", dpi=160)\n',
        "precision.png",
        "gallery_precision.png",
        "Three bars: a smaller error costs more ε",
    ),
    "budget": Task(
        "One budget for several questions",
        "The worst case is reserved before a question runs; what is unused is returned.",
        "sh",
        "expost ledger create ledger.db --name customers --epsilon 2\n"
        "for error in 0.2 0.1 0.05; do\n"
        "    expost count customers.csv --by region --user customer --within $error \\\n"
        "        --epsilon 0.5 --keys regions.txt --ledger ledger.db --json > $error.json\n"
        "done\n"
        "expost ledger show ledger.db --plot budget.png",
        "budget.png",
        "gallery_budget.png",
        "The budget over six entries: what is held rises and falls, what is settled rises slowly",
    ),
    "audit": Task(
        "Does a mechanism keep its guarantee?",
        "Many runs on two neighbouring data sets, here made up, are compared with the claim. This "
        "one claims ε = 0.3 and adds half of the noise that it needs.",
        "sh",
        "cat > careless.py << 'END'\n"
        "from expost import DiscreteLaplace, PureDP, Query\n\n"
        "noisy = DiscreteLaplace(Query(len), 0.6)  # ε = 0.6\n\n\n"
        "def mechanism(data, randomness):\n"
        "    return float(noisy(data, randomness)) > 100.5\n\n\n"
        "mechanism.guarantee = PureDP(0.3)  # claims less\n"
        "END\n"
        "python -c \"import numpy; numpy.savez('with.npz', rows=numpy.ones(101)); "
        "numpy.savez('without.npz', rows=numpy.ones(100))\"\n"
        "expost audit careless.py:mechanism --data with.npz --neighbour without.npz \\\n"
        "    --runs 4000 --plot audit.png || true",
        "audit.png",
        "gallery_audit.png",
        "Claimed and measured loss: the measured one is above the claim",
    ),
}


def perform(task: Task, folder: Path) -> str:
    """Run a task in a folder; return what it printed."""
    write_customers(folder / "customers.csv", folder / "regions.txt")
    command = task.code
    if task.language == "python":
        (folder / "task.py").write_text(task.code, encoding="utf-8")
        command = "python task.py"
    shell = f'python() {{ "{sys.executable}" "$@"; }}\nset -euo pipefail\n{command}'
    return run(shell, folder)


def page(outputs: dict[str, str]) -> str:
    """Return the page, from what the tasks printed."""
    parts = [
        "# Gallery: ten tasks\n\nEach task runs as it stands. The commands use two files that "
        "`expost tour` writes:\n`customers.csv`, 6,000 made-up people, and `regions.txt`, a public "
        "list. The outputs below are random:\nyours will differ.\n"
    ]
    for name, task in TASKS.items():
        parts.append(
            f"## {task.title}\n\n{task.text}\n\n```{task.language}\n{task.code.rstrip()}\n```\n\n"
            f"```text\n{outputs[name]}\n```\n\n"
            f"<!-- made by: make figures (scripts/gallery.py, docs/results/gallery.json) -->\n"
            f"![{task.alt}](figures/{task.figure})\n"
        )
    return "\n".join(parts)


def main(names: Sequence[str]) -> None:
    """Run the named tasks, or all, and write the page."""
    outputs = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    for name in names or TASKS:
        with tempfile.TemporaryDirectory() as made_up:
            outputs[name] = perform(TASKS[name], Path(made_up))
            shutil.copy(Path(made_up) / TASKS[name].picture, FIGURES / TASKS[name].figure)
    outputs = {name: outputs[name] for name in TASKS}
    RESULTS.write_text(json.dumps(outputs, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(outputs), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
