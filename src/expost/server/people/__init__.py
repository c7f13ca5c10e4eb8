"""Who may do what: ``accounts``, roles and tokens; ``signin``; ``openid``."""
