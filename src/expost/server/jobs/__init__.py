"""From a question to its result.

``datasets``, ``questions``, ``tuning_jobs``, ``states`` of requests, ``ledgers``, ``runner``.
"""

WARM = "expost.server.jobs.warm"
"""The module that a process has imported when it is ready for questions."""
