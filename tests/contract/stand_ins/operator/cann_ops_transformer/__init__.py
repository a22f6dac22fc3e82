"""Stands for the operator's package where no checkout of it is given: the simulator's look-alike, found by import.

vllm-ascend takes the package's presence for the operator's, and imports two modules of it.
"""
