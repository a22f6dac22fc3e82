"""The operator's CPU twin: same layouts, same rounding points, torch.distributed in place of the device's windows.

In the order of a call:

- arguments, op: the public arguments as those of one opaque custom op
- run: the steps inside it
- checks: what a call must be; its result is a `Call`
- routing, dispatch: which row goes to which expert, and the record that travels
- session (header, facts, link): the conversation with the other ranks
- work: received records through their experts, by a family (dense, ints with int8 and int4, mx) on gemm and blocks
- plain_return, merged_return, rows: output rows on their way back
- combine, stale, shared: the sum of a token
"""
