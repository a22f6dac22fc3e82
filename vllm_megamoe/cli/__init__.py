"""What the exit code of a command says; `--help` of each command lists them."""

OK = 0
"""The plan holds, or nothing is missing."""
REJECTED = 1
"""A rule is violated, or something is missing."""
BAD_INPUT = 2
"""Wrong usage, or a file that cannot be read: nothing was decided."""
INTERRUPTED = 130
"""Ctrl-C, as shells say it."""
