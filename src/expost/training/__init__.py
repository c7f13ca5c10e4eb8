"""DP-SGD for many models at once.

A :class:`Configuration` holds the public settings of one training, and its privacy guarantee
follows from them. A :class:`Fleet` trains one model per configuration. :class:`DPSGD` is one
training as a mechanism, and :func:`candidates` makes a list of them for a selector.

Linear models need numba (extra ``[native]``). torch modules and CUDA devices need
torch (extra ``[torch]``). Both are imported at use: importing this package loads neither.

=============  =====================================================================================
configuration  settings of a training, the plan that follows from them, and its guarantee
fleet          training of many models: the public call
mechanism      one training as a mechanism; candidates for a selector
engines        the choice of the engine that trains, and the trained model
data           checks of rows and targets, which do not depend on values
exact_noise    the exact rounded Gaussian: its lattice, the proof of its bounds, its fallback
progress       a progress bar, and the count of processed examples
_native        compiled CPU kernels; DP-SGD's clip factors are in ``_native/clipping.py``
_torch         engines on torch; DP-SGD's clip factors are in ``_torch/clipping.py``
=============  =====================================================================================
"""

from expost.training.configuration import Configuration
from expost.training.engines import Trained
from expost.training.fleet import Fleet
from expost.training.mechanism import DPSGD, candidates
from expost.training.progress import progress_bar

__all__ = ["DPSGD", "Configuration", "Fleet", "Trained", "candidates", "progress_bar"]
