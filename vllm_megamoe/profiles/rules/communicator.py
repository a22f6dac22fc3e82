"""What buffers of one communicator must have in common, and when they may be made."""

from vllm_megamoe.profiles.call_facts import Broken, BufferFacts
from vllm_megamoe.profiles.limits import Limits
from vllm_megamoe.profiles.limits.sources import API, README
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import buffer_rule

ALIKE = (
    "num_experts",
    "max_recv_token_num",
    "dispatch_quant_mode",
    "dispatch_quant_out_dtype",
    "num_max_tokens_per_rank",
    "topk_weights_type",
    "combine_comm_mode",
)
"""Arguments that all layers of a communicator share (torch_api.txt:378, operator_readme.txt:529)."""


@buffer_rule("one-buffer")
def one_buffer(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """950 finds the first buffer's cached context, even of one that was destroyed, and fills the new one with zeros."""
    if limits.many_buffers.value or not buffer.buffers_before:
        return None
    value = f"a communicator that {buffer.buffers_before} buffer(s) have been made on, destroyed ones included"
    wanted = "a communicator without any: one buffer for the life of the communicator"
    silent = "the new buffer has no memory and no peer addresses, so calls with it never finish or read wrong memory"
    remedy = "Share one buffer between all layers, or make a new process group for each."
    return Broken("group", value, wanted, limits.many_buffers.source, remedy, silent)


@buffer_rule("alike")
def alike(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """Layers lay out the communicator's memory alike."""
    if buffer.earlier is None:
        return None
    for name in ALIKE:
        mine, theirs = getattr(buffer, name), getattr(buffer.earlier, name)
        if mine != theirs:
            wanted = f"{theirs}, as the first buffer of the communicator has it,"
            silent = "layers that differ lay out the memory that they share differently, which the documents rule out"
            remedy = "Use a process group of its own for layers that differ."
            return Broken(name, str(mine), wanted, f"{API}:378; {README}:529", remedy, silent)
    return None


@buffer_rule("capture")
def capture(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """Creation is host work with the other ranks."""
    if not buffer.capturing:
        return None
    silent = "the graph does not hold the creation, so a replay uses whatever the capture left behind"
    source = "op wrapper comm_context.cpp (host handshake and allocation)"
    wanted = "no graph capture, and no compiled code, around the creation"
    remedy = "Create the buffer before the graph is captured, and keep it for as long as the graph."
    return Broken("get_symm_buffer_for_mega_moe", "a call while a graph is captured", wanted, source, remedy, silent)
