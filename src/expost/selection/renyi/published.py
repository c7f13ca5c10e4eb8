"""``theorem:max-score-rdp`` exactly as published, for comparison only.

The drop rates equal the divergences at the order of the analysis. For each order α::

    ε̃(i) = (2+ℓ_i)ε_i + (1+ℓ_i)ε′ + (ln(τ+1) + Σ_{j≠i} e^{−ε_j(1+αℓ_i)})/(α−1),
    τ = Σ_j ε′/(ε′+ε_j),

and the conversion to an (ε̃, δ) claim (``lem:rdp-v-dp``) adds ln(1/δ)/(α−1). Here each level uses
its own best α and ℓ. This makes the published bound look better than it is, because one run has
one α.
"""

from __future__ import annotations

import numpy as np

from expost.arrays import Floats

_SLACKS = np.concatenate([[0.0], np.geomspace(1e-3, 64.0, 240)])  # ℓ


def published_charges(
    orders: Floats, curves: Floats, copies: Floats, overhead: float, log_delta: float
) -> Floats:
    """Return the smallest published (ε̃, δ) charge of a copy in each group.

    Parameters
    ----------
    orders : array of shape (orders,)
        Rényi orders α > 1.
    curves : array of shape (groups, orders)
        Rényi divergence of one copy of each group.
    copies : array of shape (groups,)
        Number of copies in each group.
    overhead : float
        ε′, the parameter of the drop level.
    log_delta : float
        ln δ of the claim.

    Returns
    -------
    array of shape (groups,)
    """
    best = np.full(len(curves), np.inf)
    for place, order in enumerate(orders):
        losses = curves[:, place]
        runs = float(copies @ (overhead / (overhead + losses)))
        factors = np.exp(-losses[:, None] * (1 + order * _SLACKS))  # groups × ℓ
        others = copies @ factors - factors
        own = (2 + _SLACKS) * losses[:, None] + (1 + _SLACKS) * overhead
        charges = own + (np.log1p(runs) + others - log_delta) / (order - 1)
        best = np.minimum(best, charges.min(axis=1))
    return best
