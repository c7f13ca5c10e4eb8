"""What a job may cost and reach, before anything runs."""
