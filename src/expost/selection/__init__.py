"""Private selection: run several candidates, release one, and charge for that one.

Each algorithm has its own file; all follow the same steps, which are in ``selector``.
CONTRIBUTING.md has the order in which to read Algorithm 3, from the call to the release.

Selectors
    ``random_dropping``     Algorithm 3: drop candidates at random, release the best that is left
    ``above_threshold``     Algorithms 1 and 2: release the first candidate that reaches a goal
    ``baselines``           a random number of runs, release the best; or run in order, pay for all
    ``noise_path``          a query or statistic at several noise levels, stopped by a score or by
    ``held_out``            noisy counts on held-out rows

Shared parts
    ``selector``            describe, price, reserve, run, release, settle
    ``candidate``           what may run, and groups of equal candidates
    ``drop_law``            which copies are kept (Algorithms 2 and 3), and with which chances
    ``release``             the certificate that a selection returns
    ``renyi_table``         from candidates to a table of charges under Rényi DP, by
    ``renyi_charges``       (T1), (T2) and (T3), and the search for the best order and shift

Planning
    ``plan``                what a tuning job would cost, from public numbers
    ``attempts``            tuning to a goal: levels, attempts, chances and what to expect
    ``attempt_planner``     which attempts to make, in which order
"""
