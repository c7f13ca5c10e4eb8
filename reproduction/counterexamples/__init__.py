"""The search for finite mechanisms that break a theorem."""
