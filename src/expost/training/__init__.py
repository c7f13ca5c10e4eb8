"""DP-SGD for fleets of models (extra ``[torch]``): configurations in, parameters and promises out."""

from expost.training.configuration import Configuration
from expost.training.engines import Trained
from expost.training.fleet import Fleet
from expost.training.mechanism import DPSGD, candidates
from expost.training.progress import progress_bar

__all__ = ["DPSGD", "Configuration", "Fleet", "Trained", "candidates", "progress_bar"]
