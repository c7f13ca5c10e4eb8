"""Charges of Algorithms 2 and 3 under Rényi DP. No data is read in this package.

=====================  ==========================================================================
``table``              from candidates and settings to a table of charges
``sharp_charges``      the charges, and the search for the best order and shift of each outcome
``competitor_bounds``  bounds on how much a competitor adds to the Rényi moment of a winner
``published``          ``theorem:max-score-rdp`` as published, for comparison
=====================  ==========================================================================

The theorem and its proof are in docs/theory.md. Tests: ``tests/theorems/test_renyi.py``,
``tests/selection/test_renyi_charges.py``.
"""
