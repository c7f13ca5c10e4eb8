"""Columns and cells of tables as NumPy arrays and numbers. No cell makes this fail.

``column_cells``  columns of data frames, lists and arrays as NumPy arrays
``encoding``      cells as numbers: numbers, truth values, days, positions in a list of labels
"""
