"""What a mechanism promises, and what a selection costs.

``guarantees``  PureDP, ApproxDP, ZCDP, RenyiDP: add, compare, convert
``charges``     a table: outcome → guarantee
"""

from expost.privacy.charges import Charges
from expost.privacy.conversions import gaussian_for
from expost.privacy.dpsgd import calibrate_noise, dpsgd_curve, dpsgd_curves
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
