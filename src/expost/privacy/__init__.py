"""Privacy guarantees, what the outcomes of a selection cost, and accounting for DP-SGD.

``base``               the base class of guarantees, neighbouring relations, checks of fields
``guarantees``         PureDP, ApproxDP, ZCDP, RenyiDP: add, compare, convert
``tight_conversion``   from a Rényi divergence to ε at a given δ, on plain numbers
``conversions``        from an (ε, δ) target to the zCDP guarantee of a Gaussian mechanism
``profiles``           privacy profiles: δ for every ε, of one request
``loss_distribution``  the privacy loss distribution of DP-SGD, with certified errors
``step_loss``          the privacy loss of one step
``charges``            a table: one guarantee per outcome of a selection
``dpsgd``              Rényi curves of DP-SGD, and the noise that a target needs
``orders``             the default Rényi orders
``advice``             warnings about guarantees that protect little
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
