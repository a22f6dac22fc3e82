"""Sizes that the twin fixes."""

MAX_LOCAL_EXPERTS = 1024
"""Experts of a rank: as many counts fit into a call's header (operator_readme.txt, localMoeExpertNum, has it too)."""
