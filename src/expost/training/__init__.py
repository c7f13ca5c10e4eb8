"""DP-SGD for many models at once.

A :class:`Configuration` holds the public settings of one training, and its privacy guarantee
follows from them. A :class:`Fleet` trains one model per configuration. :class:`DPSGD` is one
training as a mechanism, and :func:`candidates` makes a list of them for a selector.

Linear models need numba (extra ``[native]``). torch modules and CUDA devices need
torch (extra ``[torch]``). Both are imported at use: importing this package loads neither.

=============  =====================================================================================
configuration  settings of a training, the plan and the guarantee that follow, checks of its rows
fleet          training of many models: the public call; one training as a mechanism
engines        the choice of the engine that trains, the trained model, progress
exact_noise    the exact rounded Gaussian: its lattice, the proof of its bounds, its fallback
_native        compiled CPU kernels; DP-SGD's clip factors are in ``_native/linear.py``
_torch         engines on torch; DP-SGD's clip factors are in ``_torch/clipped_sums.py``
=============  =====================================================================================
"""

from expost.training.configuration import Configuration
from expost.training.engines import Trained, progress_bar
from expost.training.fleet import DPSGD, Fleet, candidates

__all__ = ["DPSGD", "Configuration", "Fleet", "Trained", "candidates", "progress_bar"]
