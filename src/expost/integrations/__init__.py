"""Connections to other libraries, one module per library. Only ``cli`` imports them.

``dask``           run candidates on a Dask cluster
``dp_accounting``  Rényi curves computed by dp_accounting
``loggers``        write what a job released to MLflow, TensorBoard or wandb
``opacus``         train one configuration with Opacus
``opendp``         use an OpenDP measurement as a mechanism
``optuna``         keep releases as an Optuna study
``ray``            run candidates on a Ray cluster
``spark``          sum over parts of a large table on a Spark cluster
``transformers``   train models of Hugging Face, and write their adapters
"""
