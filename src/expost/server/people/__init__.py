"""Who may do what: ``accounts`` and tokens, ``signin``, ``roles``."""
