"""`make demo`: make a small MoE checkpoint, serve it through the operator, ask it, compare it with vLLM's own MoE.

The demo's own process imports neither torch nor vLLM: what needs them runs in processes of its own.
"""
