"""Puts tests/ on the path: the oracle is shared by several test folders and by the ranks that they start."""
