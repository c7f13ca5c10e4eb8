"""Array types that all modules share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of any element type."""

Floats = npt.NDArray[np.float64]
"""An array of 64-bit floats."""

Integers = npt.NDArray[np.int64]
"""An array of 64-bit integers."""
