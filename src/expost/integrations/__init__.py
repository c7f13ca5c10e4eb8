"""Bridges to other libraries, one file each; nothing in the core imports them."""
