"""A folder."""
