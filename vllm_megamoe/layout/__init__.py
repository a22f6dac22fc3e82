"""Canonical experts <-> operator operands: orders, NZ blocks, packings and scales, each with its inverse."""

from vllm_megamoe.layout.acl import AclFormat
from vllm_megamoe.layout.formatted import format_cast

__all__ = ["AclFormat", "format_cast"]
