"""All that a plan can be asked for, as a space with an axis for each choice, and the questions drawn from it."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from vllm_megamoe.checkpoint.formats import BF16, FORMATS, ExpertsFormat, Known
from vllm_megamoe.plan.facts import ActivationFacts, EngineFacts, MoeFacts, SharedFacts
from vllm_megamoe.plan.options import Options

PROFILES = (
    ("none", "auto"),
    ("a2@9.1", "auto"),
    ("a3@9.1", "auto"),
    ("950@9.1", "mte"),
    ("950@9.1", "urma"),
    ("a2@9.2", "auto"),
    ("a3@9.2", "auto"),
    ("950@9.2", "mte"),
    ("950@9.2", "urma"),
)
USE_CASES = ("auto", "a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp")
ACTIVATIONS = (
    ActivationFacts(),
    ActivationFacts("swiglu", limit=7.0),
    ActivationFacts(limit=0.0),
    ActivationFacts(limit=float("inf")),
    ActivationFacts("swiglustep"),
    ActivationFacts("swiglustep", limit=7.0),
    ActivationFacts("swigluoai"),
    ActivationFacts("swigluoai_uninterleave", limit=7.0, alpha=1.5, beta=0.0),
    ActivationFacts("situ"),
    ActivationFacts("situ", limit=3.0, beta=4.0, linear_beta=25.0),
    ActivationFacts("gelu"),
    ActivationFacts("relu2_no_mul"),
    ActivationFacts(limit=-1.0),
    ActivationFacts(limit=float("nan")),
    ActivationFacts("swigluoai", alpha=1e39),
    ActivationFacts("situ", beta=-2.0),
)
SHARED = ("none", "one", "two", "five", "gated", "narrow", "other rows", "other format", "other activation")
FORMATS_FEW = tuple(
    Known(name)
    for name in (
        "bf16", "fp8-block", "gptq-int4", "mxfp8", "gpt-oss-mxfp4", "fp8-block-ue8m0", "awq-int4", "quark-int8",
        "msmodelslim-w4a8-dynamic-group", "msmodelslim-w4a4-mxfp4", "compressed-tensors-mxfp4",
    )
)  # fmt: skip
"""One of each kind of numbers."""
SIZES = (
    (1024, 512),
    (1024, 768),
    (2048, 1024),
    (4096, 512),
    (5120, 3584),
    (96, 64),
    (33, 65),
    (1025, 511),
    (9000, 14336),
)
EXPERTS = ((8, 2), (12, 6), (16, 8), (64, 6), (6, 6), (4, 8), (2048, 8), (7, 1))
RANKS = ((1, 1), (2, 1), (1, 2), (2, 2), (1, 4), (1, 64), (3, 1))


@dataclass(frozen=True)
class Question:
    """One engine, one layer, one set of options."""

    engine: EngineFacts
    layer: MoeFacts
    options: Options


def shared_of(
    kind: str, hidden: int, width: int, activation: ActivationFacts, form: ExpertsFormat
) -> SharedFacts | None:
    pieces = {"two": 2, "five": 5}.get(kind, 1)
    whole = SharedFacts(pieces * width, hidden, activation, experts_format=form)
    changes: dict[str, dict[str, Any]] = {
        "gated": {"gated": True},
        "narrow": {"intermediate_hidden": width - width // 2},
        "other rows": {"hidden": 2 * hidden},
        "other format": {"experts_format": Known("mxfp8")},
        "other activation": {"activation": ActivationFacts("swiglu", limit=3.25)},
    }
    return None if kind == "none" else replace(whole, **changes.get(kind, {}))


def ask(
    profile: tuple[str, str],
    use_case: str,
    activation: ActivationFacts,
    shared: str,
    *,
    form: ExpertsFormat = BF16,
    sizes: tuple[int, int] = (1024, 512),
    experts: tuple[int, int] = (8, 2),
    ranks: tuple[int, int] = (1, 2),
    dtype: str = "bfloat16",
    rows: int = 8,
    **options: Any,
) -> Question:
    """The question with these choices; `ranks` are tensor and data parallel."""
    tensor, data = ranks
    hidden, width = sizes
    layer = MoeFacts(
        "model.layers.0.mlp.experts",
        *experts,
        hidden,
        width,
        index=0,
        activation=activation,
        experts_format=form,
        shared=shared_of(shared, hidden, width, activation, form),
        routed_scaling_factor=2.5,
        scale_on_output=True,
    )
    engine = EngineFacts(dtype, tensor, data, expert_parallel=tensor * data > 1, max_num_batched_tokens=rows)
    name, topology = profile
    chosen = Options(profile=name, topology=topology, use_case=use_case, **options)  # type: ignore[arg-type]
    return Question(engine, layer, chosen)


def everything(seed: int, formats: tuple[ExpertsFormat, ...] = FORMATS_FEW) -> Iterator[Question]:
    """Profile x use case x activation x shared experts, each once with every other choice drawn."""
    draw = random.Random(seed)
    for profile, use_case, activation, shared in product(PROFILES, USE_CASES, ACTIVATIONS, SHARED):
        yield ask(
            profile,
            use_case,
            activation,
            shared,
            form=BF16 if draw.random() < 0.7 else draw.choice(formats),
            sizes=draw.choice(SIZES),
            experts=draw.choice(EXPERTS),
            ranks=draw.choice(RANKS),
            dtype=draw.choice(("bfloat16", "bfloat16", "bfloat16", "float32", "float16")),
            rows=draw.choice((1, 8, 8192)),
            requant=draw.choice(("allow", "allow", "strict")),
            fuse_shared_experts=draw.choice(("auto", "on", "off")),
            combine_quant=draw.choice(("none", "none", "e5m2", "e4m3")),
            topk_weights_type=draw.choice((0, 0, 1)),
            combine_comm_mode=draw.choice((0, 0, 1)),
            max_recv_token_num=draw.choice((0, 0, 16, 10**6)),
            allow_token_drop=draw.random() < 0.3,
            max_padding_overhead=draw.choice((0.35, 100.0)),
            workspace_budget_gib=draw.choice((2.0, 2.0, 0.001)),
        )


def servable(seed: int, copies: int) -> Iterator[Question]:
    """Questions that two ranks of the twin can answer within a moment: small layers, in sizes that products take."""
    draw = random.Random(seed)
    for profile, use_case, _ in product(PROFILES, USE_CASES[1:], range(copies)):
        first_950, newer = profile[0] == "950@9.1", profile[0] in ("none", "950@9.2")
        # What the product lacks is refused anyhow, and asking for it seldom leaves questions for the operator.
        modes = newer and draw.random() < 0.7
        known = len(ACTIVATIONS) if profile[0] == "none" else 5 if "9.1" in profile[0] else 10
        sizes = (4096, 512) if first_950 else draw.choice(((1024, 512), (1024, 512), (1000, 500), (1024, 320)))
        if profile[0] == "none":
            sizes = draw.choice(((96, 64), (33, 65), (1024, 512)))
        yield ask(
            profile,
            use_case,
            draw.choice(ACTIVATIONS[: 1 if first_950 else known]),
            draw.choice(SHARED[:3]),
            sizes=sizes,
            experts=(6, 6) if first_950 else (4, 2),
            ranks=(1, 2),
            dtype=draw.choice(("bfloat16", "bfloat16", "float32")) if use_case == "a16w16" else "bfloat16",
            rows=draw.choice((1, 5)),
            requant="allow",
            fuse_shared_experts="auto",
            combine_quant=draw.choice(("none", "e5m2", "e4m3")) if modes else "none",
            topk_weights_type=draw.choice((0, 1)) if modes else 0,
            combine_comm_mode=draw.choice((0, 0, 1)) if modes else 0,
            max_padding_overhead=100.0,
        )
    for profile, use_case, form in product(PROFILES, ("a8w8-fp", "a8w4-fp", "a4w4-fp"), MX):
        # Shared experts of another type than the routed ones, where the profile takes that.
        if profile[0] in ("none", "950@9.2"):
            rows = draw.choice((1, 5))
            yield ask(
                profile, use_case, ACTIVATIONS[0], "other format", form=form, experts=(4, 2), rows=rows, requant="allow"
            )


MX = tuple(Known(name) for name in ("msmodelslim-w4a8-mxfp", "msmodelslim-w4a4-mxfp4"))
ALL_FORMATS = tuple(Known(name) for name in FORMATS)
