"""What a communicator must be: its size and shape, its buffers, and the sizes of the layers that they are made for.

Most is looked at when a buffer is created. H, K and the number of experts are looked at there loosely and at the call
closely, so each of these sizes has two rules, at the two points of the device.
"""

from vllm_megamoe.profiles.facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import Cell, Limits, Numbers, legal_ep_sizes
from vllm_megamoe.profiles.limits.row import API, ARCH35_92, README, WRAPPER_91
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import buffer_rule, call_rule


@buffer_rule("ep-size")
def ep_size(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """How many ranks there may be; a single one exists in profile `none` only."""
    if buffer.ep_world_size in limits.ep_sizes.value:
        return None
    remedy, cell = choose_ranks(limits, buffer), limits.ep_sizes
    if buffer.ep_world_size == 1:
        remedy = f"One rank alone exists in profile 'none' only. {remedy}"
    return Broken("ep_world_size", str(buffer.ep_world_size), str(cell.value), cell.source, remedy)


def choose_ranks(limits: Limits, buffer: BufferFacts) -> str:
    """The remedy for a wrong number of ranks: those that this number of experts can be spread over."""
    sizes = legal_ep_sizes(limits, [buffer.num_experts])
    if not sizes:
        return f"No number of ranks suits {buffer.num_experts} experts here; do without the operator for this model."
    return f"Choose a number of ranks (tensor x data parallel) from {list(sizes)}."


@buffer_rule("topology")
def topology(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """9.1.0 of 950 knows one UB domain; URMA came later."""
    if profile.name != "950@9.1" or profile.topology != "urma":
        return None
    source = f"{WRAPPER_91} (no topo_type)"
    return Broken("topology", "'urma'", "'mte'", source, "Keep the communicator inside one UB domain.")


@buffer_rule("ranks-per-server")
def ranks_per_server(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """Across super-nodes the ranks form servers of one size."""
    found = buffer.rank_num_per_server
    if profile.topology != "urma" or not found or (found >= 2 and buffer.ep_world_size % found == 0):
        return None
    expected = f"at least 2, and a divisor of the {buffer.ep_world_size} ranks, on URMA"
    source = f"{README}:515; {ARCH35_92} (rankNumPerServer)"
    return Broken("rank_num_per_server", str(found), expected, source, "Choose ranks that fill whole servers.")


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
    expected = "a communicator without any: one buffer for the life of the communicator"
    silent = "the new buffer has no memory and no peer addresses, so calls with it never finish or read wrong memory"
    remedy = "Share one buffer between all layers, or make a new process group for each."
    return Broken("group", value, expected, limits.many_buffers.source, remedy, silent)


@buffer_rule("alike")
def alike(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """Layers lay out the communicator's memory alike."""
    if buffer.earlier is None:
        return None
    for name in ALIKE:
        mine, theirs = getattr(buffer, name), getattr(buffer.earlier, name)
        if mine != theirs:
            expected = f"{theirs}, as the first buffer of the communicator has it,"
            silent = "layers that differ lay out the memory that they share differently, which the documents rule out"
            remedy = "Use a process group of its own for layers that differ."
            return Broken(name, str(mine), expected, f"{API}:378; {README}:529", remedy, silent)
    return None


@buffer_rule("capture")
def capture(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """Creation is host work with the other ranks."""
    if not buffer.capturing:
        return None
    silent = "the graph does not hold the creation, so a replay uses whatever the capture left behind"
    source = "op wrapper comm_context.cpp (host handshake and allocation)"
    expected = "no graph capture, and no compiled code, around the creation"
    remedy = "Create the buffer before the graph is captured, and keep it for as long as the graph."
    return Broken("get_symm_buffer_for_mega_moe", "a call while a graph is captured", expected, source, remedy, silent)


@buffer_rule("buffer-arguments")
def buffer_arguments(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """They came later, so that only their default can be said."""
    if profile.revision != "9.1":
        return None
    for name in ("topk_weights_type", "combine_comm_mode"):
        value = getattr(buffer, name)
        if value:
            remedy = "Leave it at 0, or use an operator of revision 9.2."
            return Broken(name, str(value), "0: 9.1.0 has no such argument", f"{API}:291", remedy)
    return None


_FEWER = "The model fixes it: do without the operator for this model, or take a profile that has it (docs/limits.md)."


@buffer_rule("created-experts")
def created_experts(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """What creation takes; the call is stricter."""
    cell = limits.created_experts
    if buffer.num_experts in cell.value:
        return None
    return Broken("num_experts", str(buffer.num_experts), str(cell.value), cell.source, _FEWER)


@buffer_rule("experts-divide")
def experts_divide(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """Every rank holds as many experts as every other."""
    experts, ranks = buffer.num_experts, buffer.ep_world_size
    if experts >= ranks and experts % ranks == 0:
        return None
    source = f"{API}:431; {README}:574"
    expected = f"a multiple of the {ranks} ranks, and as many at least"
    return Broken("num_experts", str(experts), expected, source, choose_ranks(limits, buffer))


@call_rule("experts")
def experts(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """All routed experts of the layer."""
    cell = limits.max_experts
    if buffer.num_experts <= cell.value:
        return None
    return Broken("num_experts", str(buffer.num_experts), f"at most {cell.value}", cell.source, _FEWER)


@call_rule("experts-per-rank")
def experts_per_rank(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Routed experts of one rank."""
    cell = limits.max_experts_per_rank
    if buffer.experts_per_rank <= cell.value:
        return None
    value = f"{buffer.num_experts} over {buffer.ep_world_size} ranks, {buffer.experts_per_rank} per rank"
    expected = f"at most {cell.value} per rank"
    return Broken("num_experts", value, expected, cell.source, choose_ranks(limits, buffer))


def _topk_outside(buffer: BufferFacts, cell: Cell[Numbers]) -> Broken | None:
    if buffer.num_topk in cell.value:
        return None
    remedy = "The model fixes it: do without the operator, or take a profile that has it (docs/limits.md)."
    return Broken("num_topk", str(buffer.num_topk), str(cell.value), cell.source, remedy)


@buffer_rule("created-topk")
def created_topk(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """What creation takes; the call may be stricter."""
    return _topk_outside(buffer, limits.created_topk)


@call_rule("topk")
def topk(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """What the call takes."""
    return _topk_outside(buffer, limits.topk)


def _hidden_outside(buffer: BufferFacts, cell: Cell[Numbers]) -> Broken | None:
    if buffer.hidden in cell.value:
        return None
    larger = cell.value.at_least(buffer.hidden)
    remedy = "The operator does not take such wide rows." if larger is None else f"Pad with zeros to {larger}."
    return Broken("hidden", str(buffer.hidden), str(cell.value), cell.source, remedy)


@buffer_rule("created-hidden")
def created_hidden(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """What creation takes; the call may be stricter."""
    return _hidden_outside(buffer, limits.created_hidden)


@call_rule("hidden")
def hidden(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """What the call takes."""
    return _hidden_outside(buffer, limits.hidden)
