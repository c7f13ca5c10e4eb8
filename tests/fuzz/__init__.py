"""Fuzzing: no traceback reaches the user, no charge is lost or invented, no secret is printed.

``EXPOST_FUZZ=long`` runs longer.
"""
