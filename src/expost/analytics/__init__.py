"""Counts, sums and means to the accuracy you need: request → price → run → answers.

``request``       what is asked, checked before anything is charged
``pricing``       how the total is split, ``price(request)``, and the price of a certificate
``query``         the public functions (reserve, read, refine, settle) and what they release
``contribution``  columns that matter; capping groups and rows of a user, and what the caps remove
``refinement``    which group is looked at next, and the charge: the sum of the m largest
``means``         two sums on one path
``refinement_noise``  costs of looks, exact noise, bounds on it, when to stop, intervals that hold
``private_keys``  which groups exist, privately
``count_plan``    what a request would cost, without data
"""
