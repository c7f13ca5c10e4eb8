"""From a bar to a certificate: private hyperparameter tuning of DP-SGD models (extra ``[torch]``)."""

from expost.tuning.certificate import Tuned
from expost.tuning.example import EXAMPLE
from expost.tuning.job import tune
from expost.tuning.model import Model, load_model
from expost.tuning.settings import read_settings

__all__ = ["EXAMPLE", "Model", "Tuned", "load_model", "read_settings", "tune"]
