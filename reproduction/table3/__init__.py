"""Table 3: the cost of a model that passes a bar."""
