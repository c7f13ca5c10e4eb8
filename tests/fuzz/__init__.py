"""Fuzzing: no traceback reaches the user, no charge is lost or made, no secret is printed. ``EXPOST_FUZZ=long`` looks for longer."""
