"""Tuning to a bar as a sequence of attempts: what to ask, in which order, and what to expect.

An attempt is one run of Algorithm 2 (:class:`expost.selection.above_threshold.AboveThreshold`)
with its own draw, its own charges and its own share of δ. A miss releases nothing and costs about
the attempt's overhead. The attempts are planned before data is read.

==============  =================================================================================
``belief``      which share of the settings passes at each level: scenarios with weights
``chances``     probability of each outcome of one attempt, and its expected number of runs
``estimates``   fast estimates of an attempt's charges, for the search
``schedule``    the attempts that were chosen, as public records
``planner``     the search for the schedule with the least expected total ε
``reach``       chance of passing, total ε and runs, level by level, for a given schedule
``bar_plan``    all of it together, for ``expost plan``
==============  =================================================================================

Composition of attempts: docs/theory.md ("Attempts in sequence"),
``tests/theorems/test_attempts.py``.
"""

from expost.selection.attempts.bar_plan import BarPlan, plan_for_bar
from expost.selection.attempts.belief import Belief
from expost.selection.attempts.planner import plan_attempts
from expost.selection.attempts.reach import ReachRow, reach_of
from expost.selection.attempts.schedule import Attempt, Ladder, Schedule

__all__ = [
    "Attempt",
    "BarPlan",
    "Belief",
    "Ladder",
    "ReachRow",
    "Schedule",
    "plan_attempts",
    "plan_for_bar",
    "reach_of",
]
