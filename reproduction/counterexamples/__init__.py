"""Search for finite mechanisms that violate a theorem: ``attacks`` and ``search``."""
