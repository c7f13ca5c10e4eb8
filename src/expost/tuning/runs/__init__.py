"""The requests of a job: candidates, paths and attempts."""
