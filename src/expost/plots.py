"""Figures that read well in print; matplotlib is an extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from expost.errors import InvalidInput, MissingExtra

INK = ("#1b4965", "#ca6702", "#6a994e", "#9b2226", "#5e548e")
_FORMATS = (".png", ".pdf", ".svg")


def figure(columns: int, width: float = 5.0, height: float = 3.6) -> tuple[Any, list[Any]]:
    """A figure with ``columns`` panels side by side, and its axes."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtra("matplotlib", "plot") from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update(
        {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True}
    )
    plt.rcParams.update({"grid.alpha": 0.3, "legend.frameon": False, "svg.hashsalt": "expost"})
    drawn, axes = plt.subplots(
        1, columns, figsize=(width * columns, height), layout="constrained", squeeze=False
    )
    return drawn, list(axes[0])


def check_path(path: Path | None) -> None:
    """Refuse early what could not be written later."""
    if path is not None and path.suffix.lower() not in _FORMATS:
        raise InvalidInput("plot", str(path), "give a file name ending in " + ", ".join(_FORMATS))
    if path is not None and not path.resolve().parent.is_dir():
        raise InvalidInput("plot", str(path), "the folder does not exist")


def save(drawn: Any, path: Path) -> None:
    """Write a figure; the ending says the format."""
    drawn.savefig(path, dpi=160)
    from matplotlib import pyplot as plt

    plt.close(drawn)


def draw_ledger(
    path: Path,
    *,
    name: str,
    unit: str,
    limit: float,
    settled: Sequence[float],
    held: Sequence[float],
    worst: Sequence[float],
) -> None:
    """Draw how a budget was spent, entry by entry, and write the figure.

    Parameters
    ----------
    path : Path
        The file; its ending determines the format.
    name : str
        Name of the budget.
    unit : str
        Symbol of the amounts, for example ``"ε"``.
    limit : float
        The limit of the budget.
    settled, held : sequence of float
        The settled and the held amount after each entry.
    worst : sequence of float
        The sum of the worst cases of all requests after each entry.

    Raises
    ------
    MissingExtra
        matplotlib is not installed.
    """
    used = [paid + waiting for paid, waiting in zip(settled, held, strict=True)]
    drawn, (axes,) = figure(1, width=6)
    for values, ink, line, label in (
        (settled, INK[0], "-", "settled: cost of the released answers"),
        (used, INK[1], "--", "settled and held"),
        (worst, INK[3], ":", "if every request cost its worst case"),
    ):
        axes.step(range(len(values)), values, where="post", color=ink, linestyle=line, label=label)
    axes.axhline(limit, color="black", linewidth=0.8, label="budget")
    axes.set(xlabel="entry", ylabel=unit)
    axes.set_title(f"Spending of {name}", loc="left")
    drawn.legend(loc="outside lower center", ncols=2, fontsize=8)  # never over the lines
    save(drawn, path)
