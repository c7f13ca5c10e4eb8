"""One end of a column of numbers: how many cells are beyond a distance, by all looks together.

The cells beyond the distance v from an outer quartile are taken as a process with independent
increments around a shape T·(1 − v/R)^k. Increments are normal; their variance is proportional to
their mean, so that a column with a few frequent numbers is as possible as a smooth one. For a shape
the looks then have a posterior in closed form. Each R and k is weighted by its likelihood with the
best T, and by how common it is. All of this is post-processing of what looks released.
Tests: ``tests/facts/test_ranges.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from expost.arrays import Floats

_NEAR = (1.0, 1.5, 2.0)  # ends of intervals of a tail, in distances between quartile and median
_OCTAVES = 44
_PER_OCTAVE = 4  # lengths R that are tried
_POWERS = (0.7, 1.0, 1.5, 2.5, 5.0, 9.0)  # of the shapes that a tail may have
_MISFIT = 0.08  # relative error of every shape
_ROUGH = 0.02  # variance of an increment, in units of T times its mean
_STRAY = 0.02  # of the cells are anywhere
_ATOM_SURPRISE = 0.3  # e-folds by which a tail is less common that is twice as long
_SURPRISE = 0.7  # the same for one that is twice as long or as short as usual
_FINE = 16  # points between two cuts


@dataclass
class Tail:
    """One end of a column, by the distance from an outer quartile outwards.

    ``looks`` holds what was released: from and up to a distance, the count, and its precision.
    """

    sign: int
    anchor: float
    spread: float
    unit: float
    whole: bool
    looks: list[tuple[float, float, float, float]] = field(default_factory=list)

    @property
    def atom(self) -> bool:
        """Whether the quartile and the median are the same point."""
        return self.spread < self.unit

    def point(self, distance: float) -> float:
        """Return the number at a distance."""
        return self.anchor + self.sign * distance

    def distances(self) -> list[float]:
        """Return where the intervals of the tail begin."""
        steps = [2.0**power for power in range(_OCTAVES)]
        ends = [self.unit * step for step in steps]
        if not self.atom:
            ends = [self.spread * step for step in (*_NEAR, *steps[2:])]
        if self.whole:
            ends = [float(math.floor(end)) for end in ends]
        return [0.0, *sorted({end for end in ends if end > 0})]

    def note(self, begin: float, end: float, count: float, precision: float) -> None:
        """Note a released count."""
        self.looks.append((begin, end, count, precision))

    def crossings(self, target: float, chances: tuple[float, ...]) -> list[float]:
        """Return from where on at most ``target`` cells are beyond, with each probability."""
        return _Posterior(self).crossings(target, chances)


class _Posterior:
    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        begins, ends, counts, precisions = (
            np.array(part) for part in zip(*tail.looks, strict=True)
        )
        self.cuts = np.unique(np.concatenate([begins, ends[np.isfinite(ends)], [0.0]]))
        scale = tail.unit if tail.atom else tail.spread
        reach = scale * 2.0 ** np.arange(0.0 if tail.atom else -1.0, _OCTAVES, 1 / _PER_OCTAVE)
        lengths, powers = (part.ravel() for part in np.meshgrid(reach, _POWERS, indexing="ij"))
        octaves = np.log2(lengths / scale / (1 + powers))
        score = -_ATOM_SURPRISE * octaves if tail.atom else -_SURPRISE * np.abs(octaves)
        # which shapes are worth a closer look
        self.lengths, self.powers = lengths, powers
        inside = (begins[:, None] <= self.cuts) & (self.cuts < ends[:, None])
        A = inside.astype(np.float64)
        shape = self._increments()
        seen = shape @ A.T
        soft = 1 / (1 / precisions + (_MISFIT * counts) ** 2)
        total = np.maximum((seen * soft) @ counts, 0.0) / np.maximum((seen**2 * soft).sum(axis=1), 1e-300)
        rough = score - 0.5 * ((counts - total[:, None] * seen) ** 2 * soft).sum(axis=1)
        keep = np.argsort(-rough)[:KEEP]
        self.lengths, self.powers = lengths[keep], powers[keep]
        shape, seen, total, score = shape[keep], seen[keep], np.maximum(total[keep],1.0), score[keep]
        D = _ROUGH * total[:, None] ** 2 * shape
        info = A.T @ (precisions[:, None] * A)
        info = info[None] + np.eye(len(self.cuts)) / D[:, None, :]
        P = np.linalg.inv(info)
        r = counts - total[:, None] * seen
        g = (r * precisions) @ A
        move = np.einsum("hij,hj->hi", P, g)
        self.mean = total[:, None] * shape + move
        _, logdet = np.linalg.slogdet(info)
        ll = -0.5 * ((r**2 * precisions).sum(axis=1) - (g * move).sum(axis=1)) - 0.5 * (logdet + np.log(D).sum(axis=1))
        score = score + ll
        w = np.exp(score - score.max())
        self.w = w / w.sum()
        self.P, self.D = P, D

    def _beyond(self, distances):
        left = np.maximum(0.0, 1.0 - distances[None, :] / self.lengths[:, None])
        return np.asarray(left ** self.powers[:, None])

    def _increments(self):
        b = self._beyond(self.cuts)
        s = b - np.concatenate([b[:, 1:], np.zeros((len(b), 1))], axis=1)
        return (1 - _STRAY) * s + _STRAY / s.shape[1]

    def crossings(self, target, chances):
        K = len(self.cuts)
        mean = np.cumsum(self.mean[:, ::-1], axis=1)[:, ::-1]
        C = np.cumsum(np.cumsum(self.P[:, ::-1, ::-1], axis=1), axis=2)[:, ::-1, ::-1]
        var = np.einsum("hii->hi", C)
        prob = self.w @ ncdf((target - mean) / np.sqrt(np.maximum(var, 1e-12)))
        out = []
        for chance in chances:
            j = int(np.argmax(prob >= chance)) if np.any(prob >= chance) else K
            if j == 0:
                out.append(float(self.cuts[0])); continue
            j -= 1
            lo = self.cuts[j]
            if j == K - 1:
                out.append(float(lo)); continue
            hi = self.cuts[j + 1]
            pts = np.linspace(lo, hi, _FINE + 1)[1:]
            if self.tail.whole:
                pts = np.unique(np.ceil(pts))
            b = self._beyond(np.concatenate([[lo], pts, [hi]]))
            base = (1-_STRAY)*(b[:, :1] - b[:, -1:]) + _STRAY / K
            lin = (hi - pts) / (hi - lo)
            f = ((1-_STRAY)*(b[:, 1:-1] - b[:, -1:]) + _STRAY / K * lin) / base   # share of the interval beyond
            after = mean[:, j+1:j+2] if j + 1 < K else 0.0
            m = after + f * self.mean[:, j:j+1]
            # var of sum_{>j} + f x_j
            cross = self.P[:, j, j+1:].sum(axis=1)[:, None]
            v = var[:, j+1:j+2] + 2 * f * cross + f**2 * self.P[:, j, j][:, None] + self.D[:, j:j+1] * f * (1 - f)
            p = self.w @ ncdf((target - m) / np.sqrt(np.maximum(v, 1e-12)))
            i = int(np.argmax(p >= chance)) if np.any(p >= chance) else len(pts) - 1
            out.append(float(pts[i]))
        return out

KEEP = 64
def ncdf(x):
    from math import erf
    return 0.5 * (1 + _erf(x / math.sqrt(2)))
def _erf(x):
    t = 1 / (1 + 0.3275911 * np.abs(x))
    y = 1 - (((((1.061405429 * t - 1.453152027) * t) + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t * np.exp(-x * x)
    return np.sign(x) * y
