"""From rows, as they come, to what is trained on."""
