"""Canonical weights <-> operator operands: formats, packings and scale encodings, each with its inverse."""

from vllm_megamoe.acl import AclFormat
from vllm_megamoe.layout.cast import format_cast

__all__ = ["AclFormat", "format_cast"]
