"""Privacy guarantees, what the outcomes of a selection cost, and accounting for DP-SGD.

``guarantees``         PureDP, ApproxDP, ZCDP, RenyiDP: add, compare, convert
``charges``            a table: one guarantee per outcome; warnings if it protects little
``profiles``           conversions to (ε, δ); privacy profiles: δ for every ε, of one request
``dpsgd``              Rényi curves of DP-SGD, and the noise that a target needs
``loss_distribution``  the privacy loss distribution of DP-SGD and of one step, certified
"""

from expost.privacy.charges import Charges
from expost.privacy.dpsgd import calibrate_noise, dpsgd_curve, dpsgd_curves, gaussian_for
from expost.privacy.guarantees import ZCDP, ApproxDP, Guarantee, PureDP, RenyiDP

__all__ = [
    "ZCDP",
    "ApproxDP",
    "Charges",
    "Guarantee",
    "PureDP",
    "RenyiDP",
    "calibrate_noise",
    "dpsgd_curve",
    "dpsgd_curves",
    "gaussian_for",
]
