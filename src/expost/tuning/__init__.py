"""Private hyperparameter tuning of DP-SGD models, from a TOML file to a model with a certificate.

Training needs the extra ``[torch]``.

=================  ==============================================================================
``job``            :func:`tune`: runs a whole job. :func:`plan_job`: its plan alone.
``defaults``       :func:`default_job`: a job from rows and keywords, with public defaults.
``example``        :data:`EXAMPLE`: a commented TOML file.
``config_file``    Reads TOML files; errors name the key and its line.
``settings``       :func:`read_settings`: checks all tables of a job.
``data_settings``  Checks the ``[data]`` table.
``model_settings`` Checks the ``[model]`` table.
``factories``      Finds the function that makes a torch module; each job has its own.
``encoding``       Cells as numbers; no cell makes it fail.
``table_schema``   :class:`TableSchema`: public facts about columns, and the encoding of rows.
``tables``         Reads arrays, data frames and files; no row makes it fail.
``missing_facts``  From settings to a schema; asks once for every public fact that is missing.
``rows``           Loads, encodes and splits the rows: zero-out or add-remove neighbours.
``model``          :class:`Model` and :func:`load_model`: the released model and its file.
``model_file``     Writes and reads ``model.npz``; reading runs no code.
``scoring``        Scores: noisy on held-out rows, exact on public rows.
``candidates``     Every setting at every privacy level: DP-SGD, then a score.
``confidence``     By how much a noisy score must exceed the bar.
``rehearsal``      Runs every kind of candidate on made-up rows, before anything is charged.
``pace``           How long runs take, measured by the rehearsal.
``run_attempts``   Prices the planned attempts of a job and makes them in turn.
``forecast``       What a job would cost and reach, before anything runs.
``job_folder``     The job's folder: finished attempts, the checkpoint and the published files.
``certificate``    :class:`Tuned`: the released model, its total cost and its certificate.
=================  ==============================================================================
"""

from expost.tuning.certificate import Tuned
from expost.tuning.defaults import default_job
from expost.tuning.example import EXAMPLE
from expost.tuning.job import plan_job, tune
from expost.tuning.model import Model, load_model
from expost.tuning.settings import read_settings

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
