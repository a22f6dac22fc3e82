"""One MoE layer at an EP size: what a rank holds, sends and receives, and why a product does not go there."""

from dataclasses import dataclass

from vllm_megamoe.plan.bounds import Bound, Step, bound_of, layers_work
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import plan_layer
from vllm_megamoe.profiles.devices import Device, device_of
from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.limits import MOST_RANKS, limits_of
from vllm_megamoe.profiles.profile import find_profile
from vllm_megamoe.profiles.sizes.common import received_rows
from vllm_megamoe.profiles.sizes.memory import weight_bytes, workspace_bytes
from vllm_megamoe.profiles.sizes.window import window_memory
from vllm_megamoe.profiles.sizes.wire import WireBytes, wire_bytes_per_token
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase

EP_SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Shape:
    """Routed experts of a model's layer: their number, experts of a token, H and I."""

    name: str
    experts: int
    topk: int
    hidden: int
    intermediate: int


DEEPSEEK_V3 = Shape("DeepSeek-V3", 256, 8, 7168, 2048)
KIMI_K3 = Shape("Kimi-K3", 896, 16, 3584, 3072)
"""Its experts see rows of `routed_expert_hidden_size`, half the model's width."""

SHAPES = (DEEPSEEK_V3, KIMI_K3)


@dataclass(frozen=True)
class Setting:
    """How a layer runs: the profile, the use case, and rows that a rank brings to a call."""

    profile: str
    use_case: UseCase
    rows: int


@dataclass(frozen=True)
class Point:
    """A layer at an EP size; bytes.

    Attributes:
        experts: of a rank, in number.
        weights: operands of those.
        window, workspace: of a call of so many rows.
        receives: rows that a rank must be ready to receive.
        wire: of a token.
    """

    ep_size: int
    experts: int
    weights: int
    window: int
    workspace: int
    receives: int
    wire: WireBytes


def buffer_of(shape: Shape, setting: Setting, ep_size: int) -> BufferFacts:
    """The buffer, no capacity set: as many rows as can come."""
    facts = USE_CASES[setting.use_case]
    return BufferFacts(
        ep_world_size=ep_size,
        num_experts=shape.experts,
        num_max_tokens_per_rank=setting.rows,
        num_topk=shape.topk,
        hidden=shape.hidden,
        dispatch_quant_mode=facts.dispatch_quant_mode,
        dispatch_quant_out_dtype=None if facts.dispatched is None else facts.dispatched.name,
    )


def why_not(shape: Shape, setting: Setting, ep_size: int) -> str:
    """Why a layer cannot run on so many ranks, empty when it can."""
    limits, per_rank = limits_of(find_profile(setting.profile)), shape.experts // ep_size
    if shape.experts % ep_size:
        return f"{shape.experts} experts do not divide by {ep_size}"
    if ep_size > MOST_RANKS or ep_size not in limits.ep_sizes.value:
        return f"{setting.profile} takes {limits.ep_sizes.value} ranks"
    if per_rank > limits.max_experts_per_rank.value:
        return f"{per_rank} experts on a rank; {setting.profile} takes {limits.max_experts_per_rank.value}"
    if limits.max_tokens.value is not None and setting.rows > limits.max_tokens.value:
        return f"{setting.rows} rows in a call; {setting.profile} takes {limits.max_tokens.value}"
    return ""


def point_of(shape: Shape, setting: Setting, ep_size: int) -> Point:
    """What the size functions say, whether a product goes there or not."""
    profile, buffer = find_profile(setting.profile), buffer_of(shape, setting, ep_size)
    name, per_rank = setting.use_case.value, shape.experts // ep_size
    return Point(
        ep_size,
        per_rank,
        weight_bytes(name, per_rank, shape.hidden, shape.intermediate),
        window_memory(profile, buffer),
        workspace_bytes(profile, buffer, intermediate_hidden=shape.intermediate, use_case=name),
        received_rows(profile, buffer),
        wire_bytes_per_token(profile, buffer, use_case=name),
    )


def device_for(setting: Setting) -> Device:
    """The device that `plan` takes for the product where the user names none.

    Raises:
        ValueError: profile `none`, which is no product's.
    """
    device = device_of(find_profile(setting.profile).product)
    if device is None:
        raise ValueError(f"{setting.profile} is no product; expected one that has a device")
    return device


def time_bound(shape: Shape, setting: Setting, ep_size: int, skew: float) -> Bound:
    """The least time of one layer's call on the fullest rank, as `plan` bounds it (`plan.bounds`)."""
    engine = EngineFacts("bfloat16", data_parallel=ep_size, expert_parallel=True, max_num_batched_tokens=setting.rows)
    facts = MoeFacts(shape.name, shape.experts, shape.topk, shape.hidden, shape.intermediate)
    # All rows in one call, whatever its workspace.
    options = {"use_case": setting.use_case.value, "requant": "allow", "workspace_budget_gib": 1024}
    plan = plan_layer(engine, facts, Options(profile=setting.profile, **options))
    step = Step(tokens=setting.rows, sequences=setting.rows, seen=1, cached=1, skew=skew)
    work = layers_work(plan, step, ep_size, setting.rows * ep_size, setting.rows)
    return bound_of(work, device_for(setting))
