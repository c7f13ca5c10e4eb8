"""Empirical audits: run a mechanism on two neighbouring data sets, count, compare with its claim.

===================  ==========================================================================
``audit``            :func:`~expost.audit.empirical.audit.audit`, which puts the steps together
``subjects``         what can be audited: a selection, a mechanism, or a request
``import_subject``   subjects given as ``MODULE:NAME``, for the command line
``observations``     the runs, in this process or in several
``events``           how outputs are told apart: labels, numbers, and the cells they fall into
``tested_events``    which events are tested, and how they share the error probability
``clopper_pearson``  exact confidence bounds of a probability, and the number of runs needed
``lower_bounds``     from counts to lower bounds of the privacy loss
===================  ==========================================================================
"""
