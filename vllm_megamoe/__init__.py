"""Serve Mixture-of-Experts models through the fused Ascend operator `mega_moe`.

The way of the data: checkpoint files -> canonical experts -> operands of a use case -> one operator call per layer.

    plugin, cli, demo      what a user starts
    quant_config           which layers are ours
    lanes                  all that depends on a vLLM version
    method                 the MoE layer: weights, buffer, call
    plan, checkpoint       every decision; every format
    ops                    the operator: the CANN package on an NPU, its CPU twin elsewhere
    layout                 canonical weights <-> operator operands
    weights                canonical experts
    numerics, profiles     number formats and rounding; limits per product
    errors

A module imports only from lines below its own. Importing this package imports nothing else.
"""
