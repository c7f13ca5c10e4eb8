"""Rows of progressive training on a device, such as a GPU.

The rows are whole numbers and the weights lie on a lattice, so products and sums are exact in
double precision in any order: a device gives the same bits as any other machine
(:mod:`expost.training.lattice_rows`). Only the two products are made there; residuals are not.

Tests: ``tests/training/test_device_rows.py``.
"""

from __future__ import annotations

import numpy as np
import torch

from expost.arrays import Floats, Integers


class DeviceRows:
    """A block of rows in steps 2^{−15} on a device."""

    def __init__(self, whole: Floats, device: str) -> None:
        self._rows = torch.from_numpy(whole.astype(np.int16)).to(device)

    def __len__(self) -> int:
        return len(self._rows)

    def products(self, weights: Floats) -> Floats:
        """Return the products of the rows, in steps, with weights of shape (width, outputs)."""
        outputs = self._rows.double() @ self._sent(weights)
        return np.asarray(outputs.cpu().numpy())

    def weighted_sum(self, residuals: Floats) -> Integers:
        """Return rowsᵀ · residuals of shape (width, outputs); residuals are whole numbers."""
        sums = self._rows.double().T @ self._sent(residuals)
        return np.asarray(sums.cpu().numpy().astype(np.int64))

    def _sent(self, values: Floats) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._rows.device)
