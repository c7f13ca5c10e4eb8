"""Tables 1 and 2: counts within 10 % under a total budget (``tables``), by mechanism."""
