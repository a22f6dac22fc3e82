"""Of pyACL: a name that vllm-ascend's allocator for sleep imports."""

from asked import answering

__getattr__ = answering("acl.rt")
