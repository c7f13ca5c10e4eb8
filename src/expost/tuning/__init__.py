"""Private hyperparameter tuning of DP-SGD models, from a TOML file to a model with a certificate.

Training needs the extra ``[torch]``.

=================  ==============================================================================
``job``            :func:`tune`: runs a whole job. :func:`plan_job`: its plan alone.
``defaults``       :func:`default_job`: a job from rows and keywords, with public defaults.
``example``        :data:`EXAMPLE`: a commented TOML file.
``request``        :class:`.TuneRequest`: the one list of settings; reads TOML, keywords and texts.
``setting_kinds``  What a setting may be: numbers, names, bounds, …, each with its JSON Schema.
``settings``       :func:`read_settings`: checks that the settings of a request fit together.
``pricing``        :func:`.price_job`: what a job may cost, from public facts.
``factories``      Finds the function that makes a torch module; each job has its own.
``table_schema``   :class:`TableSchema`: public facts about columns, and the encoding of rows.
``tables``         Reads arrays, data frames and files; no row makes it fail.
``missing_facts``  From settings to a schema; asks once for every public fact that is missing.
``rows``           Loads, encodes and splits the rows: zero-out or add-remove neighbours.
``model``          :class:`Model` and :func:`load_model`: the released model and its file.
``model_file``     Writes and reads ``model.npz``; reading runs no code.
``scoring``        Scores: noisy on held-out rows, exact on public rows.
``candidates``     Every setting at every privacy level: DP-SGD, then a score.
``confidence``     By how much a noisy score must exceed the goal.
``rehearsal``      Runs every kind of candidate on made-up rows, before anything is charged.
``timing``         How long runs take, measured by the rehearsal.
``run_attempts``   Prices the planned attempts of a job and makes them in turn.
``forecast``       What a job would cost and reach, before anything runs.
``job_folder``     The job's folder: finished attempts, the checkpoint and the published files.
``tuned``          :class:`Tuned`: the released model, its total cost and its certificate.
=================  ==============================================================================
"""

from expost.tuning.defaults import default_job
from expost.tuning.example import EXAMPLE
from expost.tuning.job import plan_job, tune
from expost.tuning.model import Model, load_model
from expost.tuning.settings import read_settings
from expost.tuning.tuned import Tuned

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
