"""The paper's tables and figures, recomputed; one file each."""
