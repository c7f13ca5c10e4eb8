"""Charges of Algorithms 2 and 3 under Rényi DP. No data is read in this package.

``table``              from candidates to a table of charges, the least of what is proven
``sharp_charges``      (T1), (T2) and (T3), and the search for the best order and shift
``competitor_bounds``  bounds on how much a competitor adds to the Rényi moment of a winner
"""
