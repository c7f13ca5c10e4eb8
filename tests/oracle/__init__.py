"""The oracle of the tests: the exact output law of a selector, and the smallest valid charges.

=========================  ====================================================================
``audit``                  :func:`~tests.oracle.audit.exact_audit` and its report
``finite_mechanism``       mechanisms given as two rows of probabilities
``selector_laws``          the exact output distributions of the library's selectors
``dropping_laws``          Algorithms 2 and 3: sums over the drop level, bracketed on both sides
``laws_without_dropping``  doubling, repeat and select, Algorithm 1, Laplace noise reduction
``smallest_charges``       from two distributions to the smallest charges that are valid
``transcripts``            the exact audit of the privacy filter: all transcripts of an analyst
=========================  ====================================================================

The search for mechanisms that violate a theorem is in ``reproduction/counterexamples``.
"""

from tests.oracle.audit import ExactReport, exact_audit
from tests.oracle.finite_mechanism import FiniteMechanism

__all__ = ["ExactReport", "FiniteMechanism", "exact_audit"]
