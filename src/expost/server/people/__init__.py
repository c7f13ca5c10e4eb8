"""Who may do what: ``accounts``, roles and tokens; ``signin``, sessions, proxies and OpenID."""
