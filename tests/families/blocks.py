"""Layers that no model class on a CPU carries, and what each of them computes.

vLLM's MoE for CPUs has no clamp, none of the other activations, and a sigmoid router only with expert groups.
"""

from dataclasses import dataclass

from families import formulas as f


@dataclass(frozen=True)
class Block:
    """What a family computes in one layer.

    Attributes:
        family: name of its config in block_configs.py.
        layer: decoder layer.
        factor: routed scaling factor, in the router weights.
        routed: activation of the routed experts.
        shared: activation of the shared MLP where the plan fuses it into the call, None where it does not.
        wrong: what a mistaken layer would compute instead of `routed`.
        has_shared: whether there is a shared MLP at all.
    """

    family: str
    layer: int
    factor: float
    routed: f.Activation
    shared: f.Activation | None
    wrong: dict[str, f.Activation]
    has_shared: bool = True


OAI = f.swiglu_oai(7.0, 1.702, 1.0)
PLAIN = f.swiglu()

BLOCKS: dict[str, Block] = {
    "MiniMax-M2": Block("MiniMax-M2", 1, 1.0, PLAIN, None, {"clamp": f.swiglu(7.0)}, has_shared=False),
    "DeepSeek-V4": Block(
        "DeepSeek-V4",
        4,
        1.5,
        f.swiglu(10.0),
        f.swiglu(10.0),
        {"no clamp": PLAIN, "clamp after silu": f.swiglu_step(10.0)},
    ),
    "DeepSeek-V4 hash layer": Block("DeepSeek-V4", 0, 1.5, f.swiglu(10.0), f.swiglu(10.0), {"no clamp": PLAIN}),
    "MiniMax-M3": Block(
        "MiniMax-M3",
        3,
        2.0,
        OAI,
        OAI,
        {
            "plain swiglu": PLAIN,
            "no clamp": f.swiglu_oai(1e30, 1.702, 1.0),
            "alpha 1": f.swiglu_oai(7.0, 1.0, 1.0),
            "beta 0": f.swiglu_oai(7.0, 1.702, 0.0),
        },
    ),
    "Kimi-K3": Block(
        "Kimi-K3", 1, 1.0, f.situ(4.0, 25.0), None, {"linear up": f.situ(4.0, None), "beta 1": f.situ(1.0, 25.0)}
    ),
    "Step-3.5 layer without limits": Block("Step-3.5", 42, 3.0, PLAIN, PLAIN, {"limit 7": f.swiglu_step(7.0)}),
    "Step-3.5 routed limit": Block(
        "Step-3.5", 43, 3.0, f.swiglu_step(7.0), None, {"no limit": PLAIN, "clamp before silu": f.swiglu(7.0)}
    ),
    "Step-3.5 both limits": Block(
        "Step-3.5", 44, 3.0, f.swiglu_step(7.0), None, {"shared limit": f.swiglu_step(16.0), "no limit": PLAIN}
    ),
    # Its shared MLP has no clamp.
    "HY-V4": Block("HY-V4", 1, 2.5, f.swiglu(10.0), None, {"no clamp": PLAIN}),
    "GLM-5.3-Flash": Block("GLM-5.3-Flash", 1, 2.5, f.swiglu(10.0), f.swiglu(10.0), {"no clamp": PLAIN}),
    "EXAONE-MoE layer without limit": Block("EXAONE-MoE", 1, 2.5, PLAIN, PLAIN, {"limit 5": f.swiglu(5.0)}),
    "EXAONE-MoE": Block("EXAONE-MoE", 2, 2.5, f.swiglu(5.0), f.swiglu(5.0), {"no clamp": PLAIN}),
    # Its shared MLP clamps after silu, the routed experts before.
    "Bailing-V3": Block(
        "Bailing-V3", 2, 2.5, f.swiglu(7.0), None, {"no clamp": PLAIN, "shared clamp": f.swiglu_step(7.0)}
    ),
}
