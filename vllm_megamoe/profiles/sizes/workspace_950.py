"""The workspace of a call on 950, from the torch allocator; layers share it one after another.

Source: op kernel arch35, workspace header of the 9.1.0 branch (mega_moe_workspace_info.h) and of 2026-08
(mega_moe_workspace.h), with 50 MB of reserve that the tiling adds. Left out: what the framework adds for its own
library (GetLibApiWorkSpaceSize, a constant of the platform that stands in no source), and what combine_comm_mode=1
adds, whose code was not seen.
"""

from dataclasses import dataclass

from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.sizes.common import MIB, ceil_div, received_rows, round_up
from vllm_megamoe.profiles.sizes.window_950 import server_count
from vllm_megamoe.profiles.use_cases import UseCase

RESERVE = 50 * MIB
# Flags stand once per cube core. Dies have 28 to 36; the largest (op kernel arch35, MAX_AICORE_NUM) stands for all.
CUBE_CORES = 36
_LINE = 64  # every flag has a cache line of its own


@dataclass(frozen=True, slots=True)
class Call950:
    """What the formulas look at.

    Attributes:
        profile, buffer, use_case: as given.
        rows: tokens of the call.
        received: rows that a rank makes room for.
        intermediate: I of the routed experts.
        shared_experts, shared_intermediate: count and I of the fused shared experts.
    """

    profile: Profile
    buffer: BufferFacts
    use_case: UseCase
    rows: int
    received: int
    intermediate: int
    shared_experts: int
    shared_intermediate: int

    @property
    def urma(self) -> bool:
        """Whether EP spans super-nodes."""
        return self.profile.topology == "urma"

    @property
    def wave(self) -> bool:
        """Whether the FP8 pipeline over MTE runs, which keeps all rows of the second GEMM."""
        return self.use_case is UseCase.A8W8_FP and not self.urma

    @property
    def a8w4(self) -> bool:
        """Whether the FP8 x FP4 pipeline runs, in whose prologue weights are widened."""
        return self.use_case is UseCase.A8W4_FP


def workspace_bytes(call: Call950) -> int:
    """The whole workspace."""
    if call.profile.revision == "9.1":
        return RESERVE + _common(call, scales=call.received * call.buffer.hidden // 32) + _flags_of_9_1(call)
    # Scales of a received row come in pairs since 2026-08.
    scales = call.received * ceil_div(call.buffer.hidden, 64) * 2
    size = _common(call, scales=scales) + _flags(call) + _first_gemm(call)
    size = _second_gemm(call, size) + _tile_states(call)
    return RESERVE + size + _urma(call) + _shared(call)


def make_call(
    profile: Profile,
    buffer: BufferFacts,
    use_case: UseCase,
    intermediate: int,
    rows: int,
    shared: tuple[int, int],
) -> Call950:
    """Facts of a call; `shared` is count and I of the shared experts."""
    received = received_rows(profile, buffer, rows)
    return Call950(profile, buffer, use_case, rows, received, intermediate, *shared)


def _common(call: Call950, scales: int) -> int:
    """Received codes and scales, quantised activations and theirs, counts per core, 32 bytes of origin per row."""
    received, intermediate = call.received, call.intermediate
    areas = [
        received * call.buffer.hidden,
        scales,
        received * intermediate,
        received * intermediate // 32,
        call.buffer.experts_per_rank * 32 * CUBE_CORES,
        received * 32,
    ]
    if call.urma and call.buffer.topk_weights_type == 1:
        areas.append(received * round_up(4 * call.buffer.num_topk, 32))
    return sum(round_up(area, 512) for area in areas)


def _flags_of_9_1(call: Call950) -> int:
    """A line per expert, and four bytes per expert and 256 received rows, to a line."""
    waves = ceil_div(call.received, 256)
    return call.buffer.experts_per_rank * (_LINE + 4 * round_up(waves, 16))


def _flags(call: Call950) -> int:
    """Lines of notice per expert, core and 256 rows."""
    experts = call.buffer.experts_per_rank
    waves = ceil_div(call.received, 256)
    activation = waves if not call.urma and call.use_case is not UseCase.A4W4_FP else 1
    lines = experts * (activation + waves + CUBE_CORES)
    if call.use_case is not UseCase.A8W8_FP:
        lines += CUBE_CORES
    if call.wave:
        lines += experts * CUBE_CORES
    if call.urma or (call.buffer.combine_quant_mode != 0 and not call.wave):
        lines += experts * _combine_slots(call)
    if call.shared_experts:
        lines += ceil_div(call.rows, 256) * call.shared_experts
    return lines * _LINE


def _combine_slots(call: Call950) -> int:
    """One slot for each 256 rows that an expert can get, at least one for each core that sends."""
    most = ceil_div(call.buffer.num_max_tokens_per_rank * call.buffer.ep_world_size, 256)
    cores = 2 * CUBE_CORES if call.urma and call.use_case is UseCase.A8W8_FP else CUBE_CORES
    return max(most, cores)


def _first_gemm(call: Call950) -> int:
    """bf16 rows of the first GEMM, where they do not stay on the core."""
    size = 0
    if call.a8w4:
        size += round_up(4 * call.buffer.experts_per_rank * call.buffer.ep_world_size, 32) * CUBE_CORES
    if call.a8w4 or call.buffer.topk_weights_type == 1:
        size += 2 * call.received * 2 * call.intermediate
    return size


def _second_gemm(call: Call950, before: int) -> int:
    """`before` plus the bf16 rows of the second GEMM, where they do not go home at once."""
    rows = 2 * call.received * call.buffer.hidden
    if call.wave:
        return round_up(before, 512) + round_up(rows, 512)
    fp4 = call.use_case is not UseCase.A8W8_FP
    return before + (rows if fp4 or call.urma or call.buffer.combine_quant_mode != 0 else 0)


def _tile_states(call: Call950) -> int:
    """A line for each tile of the first GEMM, where router weights are waited for (topk_weights_type=1)."""
    if call.buffer.topk_weights_type != 1:
        return 0
    tiles = round_up(ceil_div(call.received, 256) * ceil_div(2 * call.intermediate, 256), 16)
    return round_up((call.buffer.experts_per_rank * tiles + 1) * _LINE, 512)


def _urma(call: Call950) -> int:
    """Bitmaps to send, relay lists per server, cursors and snapshots per core; the kernel's count of servers."""
    if not call.urma:
        return 0
    servers, routes = server_count(call.buffer), call.rows * call.buffer.num_topk
    bitmap = round_up(round_up(routes * 4, 256) // 4 // 8, 32) + 32
    areas = [
        call.buffer.experts_per_rank * call.buffer.ep_world_size * bitmap,
        servers * (32 + call.rows * 32),
        servers * 4,
        CUBE_CORES * 4,
    ]
    snapshots = CUBE_CORES * round_up(call.rows * 8, 512)
    return sum(round_up(area, 512) for area in areas) + snapshots


def _shared(call: Call950) -> int:
    """Areas of the shared experts: bf16 results and first outputs, quantised inputs and activations."""
    if not call.shared_experts:
        return 0
    rows, hidden = call.rows, call.buffer.hidden
    all_rows, width = rows * call.shared_experts, call.shared_intermediate
    areas = [
        2 * all_rows * hidden,
        2 * all_rows * 2 * width,
        rows * hidden,
        rows * ceil_div(hidden, 32) * 2,
        all_rows * width,
        all_rows * width // 32,
    ]
    return sum(round_up(area, 512) for area in areas)
