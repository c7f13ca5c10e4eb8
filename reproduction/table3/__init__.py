"""Table 3: the cost of a model that passes a bar.

================  ==============================================================================
``tasks``         the data sets, the grid of settings, the bars, and the paper's numbers
``bank``          a bank of real trainings, from which the trials draw
``bank_builder``  trains a bank
``make_bank``     the command ``python -m reproduction.table3.make_bank``
``problem``       candidates with their promises, outcomes from a bank, and a bar
``baselines``     doubling and Brownian noise reduction
``table``         Algorithm 3, and the rows of the table
================  ==============================================================================
"""
