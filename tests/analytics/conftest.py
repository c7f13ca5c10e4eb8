"""Engines for the tests of sources.

The PostgreSQL server of the ledger tests, and Spark in this process.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.budget.conftest import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Local-mode Spark; skipped, with a warning that is printed, where it cannot be had."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--driver-memory 1g pyspark-shell")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    try:
        from pyspark.sql import SparkSession

        settings = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.default.parallelism": "1",
        }
        settings["spark.sql.warehouse.dir"] = str(tmp_path_factory.mktemp("warehouse"))
        session = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    except Exception as reason:  # no pyspark, no Java, a Java it does not like
        text = str(reason).splitlines()[0] if str(reason) else type(reason).__name__
        warnings.warn(f"tests on Spark are skipped: {text}", stacklevel=1)
        pytest.skip(text)
    yield session
    session.stop()
