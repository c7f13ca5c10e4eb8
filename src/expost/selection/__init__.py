"""Private selection: run several candidates, release one, and charge for that one.

Each algorithm has its own file; all follow the same steps, which are in ``selector``.

Selectors
    ``random_dropping``     Algorithm 3: drop candidates at random, release the best that is left
    ``above_threshold``     Algorithms 1 and 2: release the first candidate that reaches a goal
    ``doubling``            run candidates in order, pay for all that ran
    ``repeat_and_select``   a random number of runs, release the best
    ``noise_reduction``     one query at several noise levels, pay for the last one

Shared parts
    ``selector``            describe, price, reserve, run, release, settle
    ``candidate``           what may run, and groups of equal candidates
    ``drop_law``            which copies are kept (Algorithms 2 and 3), and with which chances
    ``release``             the certificate that a selection returns
    ``renyi``               charges of Algorithms 2 and 3 under Rényi DP

Planning
    ``plan``                what a tuning job would cost, from public numbers
    ``attempts``            tuning to a goal: levels, attempts, chances and what to expect
    ``attempt_planner``     which attempts to make, in which order

How to read this
    Algorithm 3, from the call to the release, on one machine and under pure DP:

    1. ``selection/random_dropping.py``: the settings, the charges, the draw, and the runs
    2. ``selection/selector.py``: ``select``, the six steps that call them
    3. ``selection/drop_law.py``: ``DropLaw.draw``, which copies are kept
    4. ``execution/engine.py``: ``execute``, the runs and the choice among their outputs
    5. ``execution/calls.py``: what happens when a candidate or a score raises
    6. ``selection/release.py``: what is published

    For this path the other modules are needed for what their names and docstrings say only:
    ``candidate`` checks the list and joins equal candidates, ``privacy`` has guarantees and
    charges, ``randomness`` the exact coins and the key of the runs, and ``budget/charging.py``
    reserves and settles. Not on this path are ``execution/checkpoint.py`` and
    ``execution/identity.py`` (a call that can be resumed), ``execution/dispatch.py`` (runs on
    workers), and ``renyi`` (charges and drop rates when ``delta`` or ``order`` is given).
"""
