"""Counts to the accuracy you need.

``levels``     noise levels of a refinement, and exact noise for many groups at once
``rules``      when an estimate is good enough, and intervals that keep their coverage although the estimate decides
``counting``   the job: which group is refined next, what it costs, what is released
``source``     tables: files, databases, data frames → one count per group
``partition``  which groups exist, privately
"""
