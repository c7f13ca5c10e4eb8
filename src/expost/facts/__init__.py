"""Facts about the columns of a table, bought privately: kinds, bounds, categories, rows.

``readings``    what a cell can be read as, and how often each reading occurs in a column
``mechanism``   noisy looks at columns: one Gaussian mechanism with a total precision
``ranges``      the bounds of a column of numbers
``describe``    ``expost.describe``: check, price, reserve, read, look, settle; :class:`Facts`
"""
