"""The keystream of :mod:`expost.training.keystream` on a torch device: ChaCha20 by integer tensor operations, many blocks at once.

Gaussians (Box–Muller in float64), uniforms (53 bits) and Poisson samples (geometric gaps) are made as there, with the same caveats. Every
model of a batched fleet reads words of its own; no word is used twice. A simulation uses the same keystream under a seeded key.
Tests: ``tests/training/test_keystream.py`` (equal to the native keystream word by word).
"""

from __future__ import annotations

import math

import numpy as np
import torch

from expost.randomness.source import Randomness

_BLOCKS = 1 << 17  # blocks a refill at least: 8 MiB of keystream, so that launching its 500 operations costs little
_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<i4")


class DeviceStream:
    """Random numbers on ``device`` under a fresh key from ``randomness``."""

    def __init__(self, randomness: Randomness, device: str) -> None:
        key = np.frombuffer(randomness.bytes(32), dtype="<i4")
        self._head = torch.tensor(np.concatenate([_CONSTANTS, key]), dtype=torch.int32, device=device)
        self._device, self._next_block = device, 0
        self._buffer = torch.empty(0, dtype=torch.int32, device=device)
        self._used = 0

    def uniforms(self, *shape: int) -> torch.Tensor:
        """float64 in (0, 1]: k·2^{−53}, k = 1 … 2^{53}."""
        words = self._words(2 * math.prod(shape)).view(-1, 2).to(torch.int64)
        high = (words[:, 0] & 0xFFFFFFFF) << 21
        return ((high | ((words[:, 1] >> 11) & 0x1FFFFF)).to(torch.float64) + 1.0).mul_(2.0**-53).view(shape)

    def gaussians(self, *shape: int) -> torch.Tensor:
        """Standard Gaussians in float64."""
        count = math.prod(shape)
        drawn = self.uniforms(2, (count + 1) // 2)
        radius, angle = torch.sqrt(-2.0 * torch.log(drawn[0])), 2.0 * math.pi * drawn[1]
        return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)])[:count].view(shape)

    def poisson_samples(self, rate: float, rows: int, models: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A Poisson sample for each model: row numbers, models × largest batch, and which of them count (the rest is padding).

        Gaps are drawn until every model has passed the last row: no sample is ever cut short.
        """
        if rate >= 1.0:
            every = torch.arange(rows, device=self._device).expand(models, rows)
            return every, torch.ones_like(every, dtype=torch.bool)
        enough = math.ceil(rate * rows + 6 * math.sqrt(rate * rows) + 8)
        places = torch.full((models, 1), -1.0, dtype=torch.float64, device=self._device)
        while True:
            gaps = torch.floor(torch.log(self.uniforms(models, enough)) / math.log1p(-rate)) + 1.0
            places = torch.cat([places, places[:, -1:] + torch.cumsum(gaps, dim=1)], dim=1)
            taken = places[:, 1:] < rows
            largest, passed = torch.stack([taken.sum(1).max(), (places[:, -1] >= rows).all().to(torch.int64)]).tolist()
            if passed:
                taken = taken[:, :largest]
                return torch.where(taken, places[:, 1 : 1 + largest], 0.0).to(torch.int64), taken

    def _words(self, count: int) -> torch.Tensor:
        """The next ``count`` 32-bit words."""
        if self._used + count > len(self._buffer):
            blocks = max(_BLOCKS if self._device != "cpu" else 256, -(-count // 16))
            self._buffer, self._used = self.blocks(blocks).flatten(), 0
        start, self._used = self._used, self._used + count
        return self._buffer[start : self._used]

    def blocks(self, count: int) -> torch.Tensor:
        """The next ``count`` blocks of the keystream, 16 words each."""
        counter = torch.arange(self._next_block, self._next_block + count, dtype=torch.int64, device=self._device)
        self._next_block += count
        start = torch.zeros(16, count, dtype=torch.int32, device=self._device)
        start[:12] = self._head[:, None]
        start[12], start[13] = counter.to(torch.int32), (counter >> 32).to(torch.int32)
        a, b, c, d = start.view(4, 4, count).clone()
        for _ in range(10):
            a, b, c, d = _quarter_rounds(a, b, c, d)
            a, b, c, d = _quarter_rounds(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
            b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
        return (torch.cat([a, b, c, d]) + start).T.contiguous()


def _quarter_rounds(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """RFC 8439 §2.1, four quarter rounds side by side in every block."""
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


def _rotated(value: torch.Tensor, bits: int) -> torch.Tensor:
    return (value << bits) | ((value >> (32 - bits)) & ((1 << bits) - 1))
