"""The keystream of :mod:`expost.training._native.noise` on a torch device.

Each model has its own 256-bit key. A number is a function of key, step, purpose and place: words
12 … 15 of the ChaCha20 state hold the block, the step, the purpose, and how often a sample was
continued. So no word is used twice, the numbers of a model do not depend on the other models in the
group, and a step can be repeated with the same numbers.

Uniforms (53 bits) and Poisson samples (geometric gaps) are made as in the native keystream. Noise
is the exact rounded Gaussian of :mod:`expost.training.exact_noise`: :meth:`DeviceStream.noisy`
decides nearly all coordinates in float64 by the operations that the proof there covers, and
:meth:`DeviceStream.settle` decides the others on the host, with further digits that have a purpose
of their own in the keystream. On CUDA a fused kernel makes noise and uniforms
(:mod:`expost.training._torch.noise_kernels`, if Triton is installed and its noise equals that of
tensor operations on a sample). Elsewhere tensor operations make them.

Tests: ``tests/training/test_device_keystream.py`` (equal to the native keystream word by word).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch

from expost.randomness import samplers
from expost.randomness.samplers import NoiseLattice, decided_release
from expost.randomness.source import Randomness

SAMPLE, NOISE, FURTHER = 0, 1, 2  # purposes
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
        uniforms = self._make(models, count, step, steps, SAMPLE, again)
        return uniforms.reshape(steps, models, -1)[:, :, :count]

    def noisy(
        self, total: torch.Tensor, lattices: torch.Tensor, step: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the noisy sums of one step, rounded, and which of them are not decided.

        ``total`` is models × width, ``lattices`` (see :func:`lattices_of`) models × 4, ``step`` a
        tensor of one int64. A model without noise keeps its sum. What is not decided must go
        through :meth:`settle`.
        """
        if self._kernels is not None:
            out, doubt = torch.empty_like(total), torch.empty_like(total, dtype=torch.bool)
            self._kernels.add_noise(total, out, doubt, lattices, self.keys, step)
            return out, doubt
        models, width = total.shape
        blocks = -(-width // 8)
        words = self.blocks(models, blocks, step, 1, NOISE).to(torch.int64)[:, 0]
        whole = (words[0::2] << 32) | (words[1::2] & 0xFFFFFFFF)  # 8 × models × blocks
        noise, errors = _scaled_pairs(whole[:4], whole[4:], lattices[:, 3, None])
        return _rounded(
            total,
            _in_order(noise, models, width),
            _in_order(torch.cat([errors, errors]), models, width),
            lattices,
        )

    def settle(
        self,
        total: torch.Tensor,
        noisy: torch.Tensor,
        doubt: torch.Tensor,
        lattices: torch.Tensor,
        step: int,
    ) -> None:
        """Decide the coordinates of ``noisy`` where ``doubt`` is true exactly, on the host."""
        width = total.shape[1]
        blocks = -(-width // 8)
        for model, coordinate in doubt.nonzero().tolist():
            slot, block = divmod(coordinate, blocks)
            key = [int(word) & 0xFFFFFFFF for word in self.keys[model].tolist()]
            words = chacha20_block(key, (block, step, NOISE, 0))
            radius, angle = (
                words[2 * word] << 32 | words[2 * word + 1] for word in (slot % 4, slot % 4 + 4)
            )

            def more(
                part: int, key: list[int] = key, pair: int = 4 * block + slot % 4
            ) -> tuple[int, int]:
                digits = chacha20_block(key, (pair, step, FURTHER, part))
                first, second = (
                    b"".join(word.to_bytes(4, "little") for word in half)
                    for half in (digits[:8], digits[8:])
                )
                return int.from_bytes(first, "little"), int.from_bytes(second, "little")

            lattice = NoiseLattice(*lattices[model].tolist())
            noisy[model, coordinate] = decided_release(
                float(total[model, coordinate]), lattice, (radius, angle), slot >= 4, more
            )

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
        samples = []
        while True:
            gaps = torch.floor(
                self.uniforms(models, enough, step, steps, again).log_().mul_(scale)
            ).add_(1.0)
            positions = gaps.cumsum_(dim=2).add_(last)
            samples.append(positions)
            last, again = positions[:, :, -1:], again + 1
            if bool((last >= rows).all()):
                break
        positions = samples[0] if len(samples) == 1 else torch.cat(samples, dim=2)
        taken = positions < rows
        return torch.where(taken, positions, 0.0).to(torch.int64), taken.sum(2)

    @cached_property
    def _kernels(self) -> Any:
        """The module of fused CUDA kernels, or None where it is not available."""
        return None if self.device == "cpu" else _checked_kernels(self.device)

    def _make(
        self,
        models: int,
        count: int,
        step: torch.Tensor,
        steps: int,
        purpose: int,
        again: int,
    ) -> torch.Tensor:
        """Make eight uniforms per block: (steps · models) × 8 × blocks."""
        blocks = -(-count // 8)
        if self._kernels is not None:
            out = torch.empty(steps * models, 8, blocks, dtype=torch.float64, device=self.device)
            self._kernels.fill(out, self.keys, step, models, purpose, again)
            return out
        words = self.blocks(models, blocks, step, steps, purpose, again).to(torch.int64)
        high, low = (words[0::2] & 0xFFFFFFFF) << 21, (words[1::2] >> 11) & 0x1FFFFF
        # 8 × steps × models × blocks
        uniforms = ((high | low).to(torch.float64) + 1.0).mul_(2.0**-53)
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


def chacha20_block(key: Sequence[int], last: Sequence[int]) -> list[int]:
    """Return one block of the keystream on the host; ``last`` are words 12 … 15 of the state."""
    start = [word & 0xFFFFFFFF for word in (*_CONSTANTS, *key, *last)]
    x = list(start)

    def quarter_round(a: int, b: int, c: int, d: int) -> None:
        for first, second, third, bits in (
            (a, b, d, 16),
            (c, d, b, 12),
            (a, b, d, 8),
            (c, d, b, 7),
        ):
            x[first] = (x[first] + x[second]) & 0xFFFFFFFF
            mixed = x[third] ^ x[first]
            x[third] = ((mixed << bits) | (mixed >> (32 - bits))) & 0xFFFFFFFF

    for _ in range(10):
        for column in range(4):
            quarter_round(column, 4 + column, 8 + column, 12 + column)
        for column in range(4):
            quarter_round(column, 4 + (column + 1) % 4, 8 + (column + 2) % 4, 12 + (column + 3) % 4)
    return [(a + b) & 0xFFFFFFFF for a, b in zip(x, start, strict=True)]


def lattices_of(lattices: Sequence[NoiseLattice], device: Any) -> torch.Tensor:
    """Return the lattices of a group of models as one tensor: models × 4."""
    return torch.tensor([list(lattice) for lattice in lattices], dtype=torch.float64, device=device)


def _in_order(numbers: torch.Tensor, models: int, width: int) -> torch.Tensor:
    """Return 8 × models × blocks numbers as models × width."""
    return numbers.permute(1, 0, 2).reshape(models, -1)[:, :width]


def _scaled_pairs(
    radii: torch.Tensor, angles: torch.Tensor, deviation: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both Gaussians of each pair of words, times ``deviation``, and their error bound.

    The operations are those of :func:`expost.training._native.noise.scaled_pairs`.
    """
    u = (((radii >> 1) & 0x7FFFFFFFFFFFFFFF) | 1).to(torch.float64) * samplers.LAST
    r = torch.sqrt(-2.0 * _logarithm(u))
    length, (x, y) = deviation * r, _turn(angles)
    rest = u - samplers.LAST
    unread = (samplers.LENGTH_ERROR * rest + samplers.UNREAD) / (rest * r)
    errors = deviation * (samplers.RADIUS_ERROR * r + unread) + samplers.CONSTANT_ERROR
    return torch.cat([length * x, length * y]), errors


def _logarithm(u: torch.Tensor) -> torch.Tensor:
    """Return ln u as :func:`expost.training._native.noise.logarithm` does."""
    bits = u.view(torch.int64)
    exponent = (bits - samplers.HALF_ROOT) >> 52
    f = (bits - (exponent << 52)).view(torch.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    tail = z * _series(samplers.ARTANH, z)
    half, e = 0.5 * f * f, exponent.to(torch.float64)
    inner = s * (half + tail) + e * samplers.LN2_LOW
    return e * samplers.LN2_HIGH - ((half - inner) - f)


def _turn(angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine as :func:`expost.training._native.noise.turn` does."""
    quarter = (angles + (1 << 61)) >> 62
    x = (angles - (quarter << 62)).to(torch.float64) * samplers.QUARTER
    z = x * x
    sine = x + x * z * _series(samplers.SINE, z)
    cosine = 1.0 - (0.5 * z - z * z * _series(samplers.COSINE, z))
    odd = (quarter & 1) != 0
    first, second = torch.where(odd, sine, cosine), torch.where(odd, cosine, sine)
    return (
        torch.where(((quarter + 1) & 2) != 0, -first, first),
        torch.where((quarter & 2) != 0, -second, second),
    )


def _series(coefficients: Sequence[float], z: torch.Tensor) -> torch.Tensor:
    """Evaluate a polynomial by Horner's rule, highest power first."""
    total = torch.full_like(z, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * z + coefficient
    return total


def _rounded(
    total: torch.Tensor, noise: torch.Tensor, errors: torch.Tensor, lattices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the noisy sums on the lattice, and which of them are not decided."""
    step, scale, silent = lattices[:, 1, None], lattices[:, 2, None], lattices[:, 3, None] == 0
    s = total * scale
    whole = torch.floor(s + 0.5)
    t = (s - whole) + noise
    near = torch.floor(t + 0.5)
    decided = 0.5 - (t - near).abs() > errors
    return torch.where(silent, total, (whole + near) * step), ~(decided | silent)


@cache
def _checked_kernels(device: str) -> Any:
    """Return the fused kernels if they exist and make the noise of the tensor operations."""
    try:
        from expost.training._torch import noise_kernels
    except ImportError:
        return None
    keys = torch.arange(16, dtype=torch.int32).view(2, 8)
    total = torch.linspace(-50.0, 50.0, 2 * 1003, dtype=torch.float64).view(2, -1)
    lattices = lattices_of([samplers.lattice_for(0.5), samplers.lattice_for(6.0)], "cpu")
    step = torch.tensor([3])
    plain = DeviceStream([], "cpu")
    plain.keys = keys
    wanted, open_ = plain.noisy(total, lattices, step)
    out, doubt = (
        torch.empty_like(total, device=device),
        torch.empty_like(total, dtype=torch.bool, device=device),
    )
    noise_kernels.add_noise(
        total.to(device), out, doubt, lattices.to(device), keys.to(device), step.to(device)
    )
    same = bool((out.cpu() == wanted)[~open_ & ~doubt.cpu()].all()) and int(doubt.sum()) < 10
    return noise_kernels if same else None
