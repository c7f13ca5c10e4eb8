"""From a question to its result.

``datasets``, ``questions``, ``tuning_jobs``, ``states`` of requests, ``ledgers``, ``runner``.
"""
