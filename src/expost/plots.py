"""Figures that read well in print; matplotlib is an extra."""

from __future__ import annotations

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
