"""Serve Mixture-of-Experts models through the fused Ascend operator `mega_moe`.

The way of the data: checkpoint files -> canonical experts -> operands of a use case -> one operator call per layer.

    plugin, cli, demo      what a user starts
    testing                running engines for the demo and for tests
    lanes                  all of vLLM and vllm-ascend
    layer                  the MoE layer without vLLM: seat, buffers, calls, rows, load report
    plan                   every decision about a model, from config alone
    checkpoint             the format of a checkpoint's experts
    ops, simulator         the operator: the CANN package on an NPU, its CPU twin elsewhere; simulated packages
    experts                canonical experts, and every conversion between them and operands
    layout                 storage formats, packings and scale encodings
    environment            every environment variable that this package reads
    profiles, numerics     limits and sizes per product; number formats and rounding
    acl                    codes of formats and types
    errors

A module imports only from lines below its own. Importing this package imports nothing else.
"""
