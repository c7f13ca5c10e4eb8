"""The figures: the user's matplotlib settings do not change, labels do not overlap or get cut."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from expost import plots

mpl = pytest.importorskip("matplotlib")

METHODS = [
    ("expost: this outcome", 0.4),
    ("expost: most expensive outcome", 3.1),
    ("repeat and select, all levels\n(Papernot–Steinke)", 2.9),
    ("repeat and select, if this level\nhad been known in advance", 0.38),
    ("train every setting up to\nthis level (composition)", 123456.0),
]


def tuning(path: Path, attempts: list[Any], target: float | None) -> None:
    plots.draw_tuning(
        path,
        methods=METHODS,
        delta=1e-5,
        attempts=attempts,
        total_delta=3e-5,
        metric="accuracy",
        target=target,
    )


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are drawn, instead of files."""
    found: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: found.append(figure))
    return found


def texts(figure: Any) -> list[Any]:
    """Every text that is shown."""
    found = []
    for axes in figure.axes:
        legend = axes.get_legend()
        found += [axes.xaxis.label, axes.yaxis.label, axes.title, axes._left_title, *axes.texts]
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            inside = sorted((low, high))
            places = zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
            found += [label for place, label in places if inside[0] <= place <= inside[1]]
        found += [] if legend is None else legend.get_texts()
    return [each for each in found if each.get_text() and each.get_visible()]


@pytest.mark.parametrize(
    ("attempts", "target"),
    [
        ([(0.4, 0.82, 0.01, True)], 0.8),
        ([(0.4, 0.5, 0.01, False), (1.1, 0.83, 0.02, True)], 0.8),
        ([(0.4, -3.5, 0.2, None)], None),
        ([], 0.8),
    ],
)
def test_no_label_collides_and_nothing_is_cut(
    kept: list[Any], attempts: list[Any], target: float | None
) -> None:
    tuning(Path("unused.png"), attempts, target)
    check(kept[0])


def check(figure: Any) -> None:
    """No text touches another or the edge."""
    figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    boxes = [(each.get_text(), each.get_window_extent()) for each in texts(figure)]
    assert all(
        box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height for _, box in boxes
    )
    touching = [(a[0], b[0]) for a, b in combinations(boxes, 2) if a[1].overlaps(b[1])]
    assert touching == []


@pytest.mark.parametrize("levels", [1, 2, 10])
def test_a_plan_has_readable_labels(kept: list[Any], levels: int) -> None:
    from expost.selection.attempts import ReachRow

    rows = [
        ReachRow(0.1 * level, share, 0.995, 0.3 * level, 0.4 * level, 20.0 / share)
        for level in range(1, levels + 1)
        for share in (0.5, 0.1, 0.02)
    ]
    plots.draw_reach(Path("unused.png"), rows, delta=1e-6)
    check(kept[0])


def test_counts_have_readable_labels(kept: list[Any]) -> None:
    import expost
    from expost.analytics.answer_charts import draw_answers

    result = expost.count({"a": 900, "b": 400, "c": 3}, keys=["a", "b", "c"], epsilon=1.0)
    draw_answers(result.answer_table(), Path("unused.png"))
    check(kept[0])
    assert kept[0].axes[0].get_legend() is not None


def test_settings_and_backend_of_the_user_stay(tmp_path: Path) -> None:
    """A library must not change how its user's own figures look."""
    with mpl.rc_context({"font.size": 17, "axes.grid": False, "legend.frameon": True}):
        before, backend = dict(mpl.rcParams), mpl.rcParams._get_backend_or_none()
        tuning(tmp_path / "x.png", [(0.4, 0.82, 0.01, True)], 0.8)
        assert dict(mpl.rcParams) == before
        assert mpl.rcParams._get_backend_or_none() == backend
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_settings_of_the_user_do_not_change_the_figure(tmp_path: Path) -> None:
    tuning(tmp_path / "plain.png", [(0.4, 0.82, 0.01, True)], 0.8)
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "black", "legend.frameon": True}):
        tuning(tmp_path / "styled.png", [(0.4, 0.82, 0.01, True)], 0.8)
    assert (tmp_path / "plain.png").read_bytes() == (tmp_path / "styled.png").read_bytes()


def test_pyplot_is_not_imported() -> None:
    """Importing pyplot would choose a backend for the user."""
    source = Path(plots.__file__).read_text(encoding="utf-8")
    assert "pyplot" not in source.replace("without pyplot", "")


def test_costs_are_not_drawn_too_small(kept: list[Any], tmp_path: Path) -> None:
    """Catches a figure that shows a smaller ε than the certificate."""
    plots.draw_tuning(
        tmp_path / "a.png",
        methods=[("one", 0.571362)],
        delta=1e-5,
        attempts=[(0.571362, 0.8, 0.0, True)],
        total_delta=1e-5,
        metric="accuracy",
        target=None,
    )
    shown = [each.get_text() for each in texts(kept[0])]
    assert "0.572" in shown
    assert "0.571" not in shown
    assert any("δ = 1e-05" in each for each in shown)
