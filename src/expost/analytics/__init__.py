"""Counts, sums and means to the accuracy you need.

``query``         the public functions
``request``       settings, checked before anything is charged
``execution``     reserve, read, refine, settle
``sources``       tables: files, databases, data frames
``columns``       the columns of a request, and conditions on rows
``contribution``  capping groups and rows of a user, choosing caps, what they remove
``refinement``    which group is looked at next, and the charge: the sum of the m largest
``means``         two sums on one path
``noise_levels``  costs of looks, coarse to fine, and exact noise
``noise_tails``   bounds on that noise
``intervals``     when to stop, and intervals that hold although the estimate decides
``private_keys``  which groups exist, privately
``plan``          what a request would cost, without data
``certificate``   what is released, and its certificate
"""
