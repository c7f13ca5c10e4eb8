"""What is asked, and what fits together."""
