"""Facts about the columns of a table, bought privately: kinds, bounds, categories, rows.

``readings``    what a cell can be read as, how often each reading occurs, and ranges of numbers
``column_facts``  noisy looks at columns with a total precision; files of facts
``describe``    ``expost.describe``: check, price, reserve, read, look, settle; :class:`Facts`
"""
