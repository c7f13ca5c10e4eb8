"""Benchmarks against other libraries, measured side by side. Run from the repository root.

``python -m benchmarks`` (or ``make bench``) runs all of them:

================  ==============================================================================
``foundation``    samplers, pricing, selection overhead, import time
``accounting``    Rényi accounting, against dp_accounting
``ledger``        the ledger, against bare durable commits; the filter, against OpenDP's
``counting``      ``expost count``, against the bare SQL query
``fleet``         DP-SGD training, against Opacus (more options: ``python -m benchmarks.fleet``)
``modules``       DP-SGD training of modules of one's own, against Opacus
``large_table``   progressive training on 10⁷ rows (``python -m benchmarks.large_table``)
``server``        ``expost server start``: many clients against one budget
``fleet_cases``   the models and data of ``fleet``, and the least work per example
``opacus_peers``  three ways to run Opacus
``measure``       timing in turns, and the rows of the tables
================  ==============================================================================
"""
