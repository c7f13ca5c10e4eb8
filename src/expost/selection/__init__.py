"""Private selection: one algorithm one file, all of the same shape (``selector``)."""
