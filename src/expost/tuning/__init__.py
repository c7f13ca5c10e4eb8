"""Private hyperparameter tuning of DP-SGD models, from a TOML file to a model with a certificate.

Training needs the extra ``[torch]``.

===========  ====================================================================================
``job``      :func:`tune` runs a whole job; :func:`plan_job` makes its plan alone.
``request``  What is asked: :class:`.TuneRequest`, the one list of settings, from TOML, keywords and
             options; :func:`read_settings` checks that they fit together; defaults; metrics.
``rows``     Arrays, frames, files and databases become encoded rows; no row makes this fail.
``plan``     :class:`.JobPlan`: what a job may cost and reach; which strategy comes first.
``runs``     The requests: trainings that stop when they pass, and attempts over DP-SGD.
``model``    Scores; :class:`Model` and its file; :class:`Tuned`, the result and its certificate;
             :func:`expost.subgroup_errors`, a model's errors in public subgroups.
===========  ====================================================================================
"""

from pathlib import Path

from expost.tuning.job import plan_job, tune
from expost.tuning.model.released_model import Model, load_model
from expost.tuning.model.tuned import Tuned
from expost.tuning.request.defaults import default_job
from expost.tuning.request.settings import read_settings

EXAMPLE = (Path(__file__).parent / "example.toml").read_text(encoding="utf-8")
"""The commented job of ``expost tune --init``; ``examples/digits.toml`` is the same text."""

__all__ = [
    "EXAMPLE",
    "Model",
    "Tuned",
    "default_job",
    "load_model",
    "plan_job",
    "read_settings",
    "tune",
]
