"""Facts about the columns of a table, bought privately: kinds, bounds, categories, rows.

``readings``    what a cell can be read as, how often each reading occurs, and ranges of numbers
``mechanism``   noisy looks at columns: one Gaussian mechanism with a total precision
``describe``    ``expost.describe``: check, price, reserve, read, look, settle; :class:`Facts`
"""
