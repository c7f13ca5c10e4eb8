"""``expost serve``: a desk where people ask, and the data stays behind it.

``settings``    where a desk keeps its files, and how it listens
``tables``      the tables of a desk
``store``       transactions on SQLite or PostgreSQL
``acts``        the chained list of administrative acts
``passwords``   tokens and their slow hash
``people``      owners, analysts and auditors, and their tokens
``signin``      sessions, proxy headers, the first owner, limits on attempts
``datasets``    what owners register, and what is publicly known about it
``questions``   a question against the public facts of its data set, and its price
``tuning_jobs`` the same for tuning
``ledgers``     budgets, entries and verification
``charging``    the ledger as a request sees it: reserved before, settled after
``queue``       the table of requests: claims, leases, results
``views``       what people see of requests and releases, at fixed ticks
``runner``      runs queued requests and publishes their results
``service``     every action, with the role that it needs; used by API and pages alike
``documents``   a release in words, and in the fields of a public registry
``models``      the bodies of HTTP requests
``security``    headers, body limits, host check, logs
``api``         the HTTP API
``app``         the application
``client``      ``expost.connect``

Nothing here adds privacy theory. Every answer is a release of :mod:`expost.analytics` or
:mod:`expost.tuning`, and every charge is one of :mod:`expost.budget`.
Tests: ``tests/server/``.
"""
