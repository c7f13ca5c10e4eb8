"""Charges of Algorithms 2 and 3 under Rényi DP. No data is read in this package.

=====================  ==========================================================================
``table``              from candidates and settings to a table of charges
``least_charges``      the least of what is proven: (T1), (T2), (T3) and composition
``sharp_charges``      (T1) and (T2), and the search for the best order and shift of each outcome
``profile_charges``    (T3), from privacy profiles
``competitor_bounds``  bounds on how much a competitor adds to the Rényi moment of a winner
``published``          ``theorem:max-score-rdp`` as published, for comparison
=====================  ==========================================================================

The theorem and its proof are in docs/theory.md. Tests: ``tests/theorems/test_renyi.py``,
``tests/selection/test_renyi_charges.py``.
"""
