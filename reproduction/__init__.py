"""The paper's tables and figures, recomputed. Not part of the installed package.

Run from the root of the repository:

===========================================  ==================================================
``python -m reproduction figure1``           Figure 1: the number of runs of Algorithm 3
``python -m reproduction table1``            Table 1: counts within 10 % under a total ε of 10
``python -m reproduction table2``            Table 2: counts within 10 % under a total (10, 10⁻⁶)
``python -m reproduction table3``            Table 3: the cost of a model that passes a bar
``python -m reproduction tightness``         how tight the charges are, by search for attacks
``python -m reproduction.table3.make_bank``  train a bank for Table 3 (best on a GPU)
===========================================  ==================================================

Each command of ``python -m reproduction`` accepts ``--help`` and ``--json``.

Modules: ``cli`` (the commands), ``figure1``, ``tightness`` (results and page), ``tightness_search``
(the attacks), ``counting`` (Tables 1 and 2), ``table3``, and ``counterexamples`` (finite mechanisms
that attack a theorem). Everything here is a simulation or uses public data; docs/reproduction.md
explains the results.
Tests: ``tests/reproduction``.
"""
