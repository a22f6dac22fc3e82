"""A model as its config files describe it: found, read, and turned into facts."""
