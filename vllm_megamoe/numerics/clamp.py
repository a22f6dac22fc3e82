"""Which limits of an activation clamp nothing; without torch, so that config readers and the plan share it."""

import math


def no_clamp(limit: float | None) -> float | None:
    """None for a limit that clamps nothing, which is written as None, 0 or infinity; else the limit.

    Configs write all three. The operator's documents say 0 (activation_clamp, activation_params); where a product
    executes a 0, the profile's rules say so.
    """
    return None if limit is None or limit == 0 or math.isinf(limit) else float(limit)
