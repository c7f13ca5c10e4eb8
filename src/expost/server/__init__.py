"""``expost server start``: analysts ask, the data stays where it is, and only releases leave.

``settings``        where a server keeps its files, and how it listens
``problems``        errors with their HTTP status
``database``        the tables, and transactions on SQLite or PostgreSQL
``audit_log``       the chained log of administrative acts
``people/``         accounts and tokens, signing in, roles
``jobs/``           from a question to its result
``service``         every action, with the role that it needs; used by API and pages alike
``administration``  the actions of owners and auditors
``notices``         webhooks and mail
``api/``            the HTTP API
``pages/``          the pages
``app``             the application
``client``          ``expost.connect``

A question takes this path: ``api/routes`` or ``pages/ask_pages`` → ``service.ask`` →
``jobs/questions`` (checked and priced from public facts) → reserved in the ledger → ``jobs/states``
(queued) → ``jobs/runner`` (run, recorded, settled, published at a tick).

Nothing here adds privacy theory. Every answer is a release of :mod:`expost.analytics` or
:mod:`expost.tuning`, and every charge is one of :mod:`expost.budget`. Tests: ``tests/server/``.
"""
