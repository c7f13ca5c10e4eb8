"""The HTTP API: ``routes``, ``bodies`` of requests, ``access``."""
