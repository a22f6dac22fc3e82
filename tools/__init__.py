"""Helpers for setting up and releasing; not part of the package."""
