"""The keystream of :mod:`expost.training._native.keystream` on a torch device.

Each model has its own 256-bit key. A number is a function of key, step, purpose and place: words
12 … 15 of the ChaCha20 state hold the block, the step, the purpose, and how often a sample was
continued. So no word is used twice, the numbers of a model do not depend on the other models in the
group, and a step can be repeated with the same numbers.

Gaussians (Box–Muller in float64), uniforms (53 bits) and Poisson samples (geometric gaps) are made
as in the native keystream, with the same limitations. On CUDA one fused kernel makes them
(:mod:`expost.training._torch.noise_kernels`, if Triton is installed). Elsewhere integer tensor
operations make them.

Tests: ``tests/training/test_device_keystream.py`` (equal to the native keystream word by word).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from expost.randomness.source import Randomness

SAMPLE, NOISE = 0, 1  # purposes
_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<i4").tolist()
# numbers drawn at once, in standard deviations above the expected batch size; a sample that needs
# more is continued
_SPARE = 6


class DeviceStream:
    """Random numbers of one model per source, each under a new key from its source."""

    def __init__(self, sources: Sequence[Randomness], device: str) -> None:
        keys = np.frombuffer(b"".join(source.bytes(32) for source in sources), dtype="<i4").reshape(
            len(sources), 8
        )
        self.keys, self.device = torch.tensor(keys, device=device), device

    def of(self, models: Sequence[int]) -> DeviceStream:
        """Return the streams of some of the models."""
        chosen = DeviceStream([], self.device)
        chosen.keys = self.keys[torch.tensor(models, device=self.device)]
        return chosen

    def uniforms(
        self, models: int, count: int, step: torch.Tensor, steps: int = 1, again: int = 0
    ) -> torch.Tensor:
        """Return uniforms for sampling: steps × the first ``models`` models × ``count``.

        They are float64 in (0, 1]: k·2^{−53} with k = 1 … 2^{53}.
        """
        made = self._make(models, count, step, steps, SAMPLE, again, gaussian=False)
        return made.reshape(steps, models, -1)[:, :, :count]

    def gaussians(self, models: int, count: int, step: torch.Tensor) -> torch.Tensor:
        """Return the noise of one step: standard Gaussians in float64, models × ``count``.

        ``step`` is a tensor of one int64.
        """
        return self._make(models, count, step, 1, NOISE, 0, gaussian=True).reshape(models, -1)[
            :, :count
        ]

    def poisson_samples(
        self, rate: float, rows: int, models: int, first: int, steps: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw one Poisson sample per model for each of ``steps`` steps, beginning with ``first``.

        Return the row numbers, steps × models × the largest sample (padded with 0), and the sizes
        of the samples, steps × models. Gaps are drawn until every sample has passed the last row,
        so no sample is truncated.
        """
        if rate >= 1.0:
            every = torch.arange(rows, device=self.device).expand(steps, models, rows)
            return every, torch.full((steps, models), rows, device=self.device)
        step = torch.tensor([first], dtype=torch.int64, device=self.device)
        enough = math.ceil(rate * rows + _SPARE * math.sqrt(rate * rows) + 8)
        scale, again = 1.0 / math.log1p(-rate), 0
        last = torch.full((steps, models, 1), -1.0, dtype=torch.float64, device=self.device)
        found = []
        while True:
            gaps = torch.floor(
                self.uniforms(models, enough, step, steps, again).log_().mul_(scale)
            ).add_(1.0)
            places = gaps.cumsum_(dim=2).add_(last)
            found.append(places)
            last, again = places[:, :, -1:], again + 1
            if bool((last >= rows).all()):
                break
        places = found[0] if len(found) == 1 else torch.cat(found, dim=2)
        taken = places < rows
        return torch.where(taken, places, 0.0).to(torch.int64), taken.sum(2)

    @cached_property
    def _kernels(self) -> Any:
        """The module of fused CUDA kernels, or None where it is not available."""
        if self.device == "cpu":
            return None
        try:
            from expost.training._torch import noise_kernels
        except ImportError:
            return None
        return noise_kernels

    def _make(
        self,
        models: int,
        count: int,
        step: torch.Tensor,
        steps: int,
        purpose: int,
        again: int,
        *,
        gaussian: bool,
    ) -> torch.Tensor:
        """Make eight numbers per block: (steps · models) × 8 × blocks."""
        blocks = -(-count // 8)
        if self._kernels is not None:
            out = torch.empty(steps * models, 8, blocks, dtype=torch.float64, device=self.device)
            self._kernels.fill(out, self.keys, step, models, purpose, again, gaussian)
            return out
        words = self.blocks(models, blocks, step, steps, purpose, again).to(torch.int64)
        high, low = (words[0::2] & 0xFFFFFFFF) << 21, (words[1::2] >> 11) & 0x1FFFFF
        # 8 × steps × models × blocks
        uniforms = ((high | low).to(torch.float64) + 1.0).mul_(2.0**-53)
        if gaussian:
            radius, angle = torch.sqrt(-2.0 * torch.log(uniforms[:4])), 2.0 * math.pi * uniforms[4:]
            uniforms = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)])
        return uniforms.permute(1, 2, 0, 3).reshape(steps * models, 8, blocks)

    def blocks(
        self,
        models: int,
        blocks: int,
        step: torch.Tensor,
        steps: int = 1,
        purpose: int = SAMPLE,
        again: int = 0,
    ) -> torch.Tensor:
        """Return words of the keystream: 16 × steps × models × blocks."""
        start = torch.zeros(16, steps, models, blocks, dtype=torch.int32, device=self.device)
        # word by word, as a CUDA graph cannot record a copy from the host
        for word, constant in enumerate(_CONSTANTS):
            start[word] = constant
        start[4:12] = self.keys[:models].T[:, None, :, None]
        start[12] = torch.arange(blocks, dtype=torch.int32, device=self.device)
        start[13] = (step + torch.arange(steps, device=self.device)).to(torch.int32)[:, None, None]
        start[14], start[15] = purpose, again
        a, b, c, d = start.view(4, 4, -1).clone()
        for _ in range(10):
            a, b, c, d = _quarter_rounds(a, b, c, d)
            a, b, c, d = _quarter_rounds(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
            b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
        return torch.cat([a, b, c, d]).view(start.shape) + start


def _quarter_rounds(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Apply four quarter rounds of RFC 8439 §2.1 side by side in every block."""
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
    """Rotate int32 words to the left."""
    return (value << bits) | ((value >> (32 - bits)) & ((1 << bits) - 1))
