"""The paper's tables and figures, recomputed (``python -m reproduction``). Not part of the wheel."""
