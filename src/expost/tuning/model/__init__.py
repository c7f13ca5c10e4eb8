"""What a job releases."""
