"""The HTTP API: ``routes`` and the bodies of requests; ``access``."""
