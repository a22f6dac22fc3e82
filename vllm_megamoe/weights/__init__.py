"""Canonical experts: what every checkpoint format becomes and every operand is made of.

Quantised or not is a type, not a pair of optional fields. All are frozen, and checked when they are made.
"""

from vllm_megamoe.weights.dense import DenseExperts
from vllm_megamoe.weights.ints import IntExperts
from vllm_megamoe.weights.mx import MxExperts

Experts = DenseExperts | IntExperts | MxExperts

__all__ = ["DenseExperts", "Experts", "IntExperts", "MxExperts"]
