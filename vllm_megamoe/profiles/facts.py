"""What the rules of a product look at, and what they answer: plain values of a buffer and of a call, no tensor in them.

The twin fills them from its arguments, the CANN adapter from the tensors' metadata, the plan from the model's config,
so that one set of rules serves all three. Element types and formats go by ACL's names (`BF16`, `INT4`, `FRACTAL_NZ`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_megamoe.acl import AclDtype, AclFormat

E5M2, E4M3 = AclDtype.FLOAT8_E5M2.name, AclDtype.FLOAT8_E4M3FN.name
E2M1 = AclDtype.FLOAT4_E2M1.name
MX_ELEMENTS = (E5M2, E4M3, E2M1)
"""Element types in groups of 32 with a power-of-two scale."""
ND, NZ = AclFormat.ND.name, AclFormat.FRACTAL_NZ.name
C0_32 = AclFormat.FRACTAL_NZ_C0_32.name


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferFacts:
    """Arguments of `get_symm_buffer_for_mega_moe`, and the group's size.

    Attributes:
        dispatch_quant_out_dtype: ACL name, None when undefined.
        buffers_before: buffers that this process has already made on the communicator, destroyed ones included.
        capturing: whether a graph is being captured.
        earlier: the oldest buffer that still lives on the communicator, as it was created; None when there is none.
        The others as in the public function.
    """

    ep_world_size: int
    num_experts: int
    num_max_tokens_per_rank: int
    num_topk: int
    hidden: int
    max_recv_token_num: int = 0
    dispatch_quant_mode: int = 0
    dispatch_quant_out_dtype: str | None = None
    combine_quant_mode: int = 0
    comm_alg: str = ""
    topk_weights_type: int = 0
    combine_comm_mode: int = 0
    rank_num_per_server: int = 0
    buffers_before: int = 0
    capturing: bool = False
    earlier: "BufferFacts | None" = None

    @property
    def experts_per_rank(self) -> int:
        """Routed experts that a rank holds (floor)."""
        return self.num_experts // self.ep_world_size

    def receive_bound(self, rows: int) -> int:
        """Most rows that a rank can receive when every rank brings `rows` tokens with distinct ids."""
        return rows * self.ep_world_size * min(self.num_topk, self.experts_per_rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFacts:
    """The routed or the shared experts of a call.

    Attributes:
        element1, element2: ACL element types of the two weights.
        carrier: ACL name of the tensors' own dtype where it differs (`INT32` for INT4 in int32), else the element.
        format1, format2: ACL formats as the operator sees them.
        stacked: one 3-D stack instead of a list of matrices.
        count: experts.
        intermediate_hidden: I.
        has_scales, has_bias: whether they are passed.
    """

    element1: str
    element2: str
    format1: str = ND
    format2: str = ND
    carrier: str = ""
    stacked: bool = False
    count: int
    intermediate_hidden: int
    has_scales: bool = False
    has_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """Arguments of `mega_moe`.

    Attributes:
        rows: tokens of this rank.
        x_dtype, topk_weights_dtype: ACL element types.
        has_mask, has_scales: whether x_active_mask and scales are passed.
        routed, shared: experts; None for no shared ones.
        shared_out_dtype: shared_expert_quant_out_dtype, ACL name or None.
        activation, activation_clamp, activation_params: as passed.
        ccl_buffer_size: bytes of the buffer's whole window, None where it is not known.
        rows_of_ranks: tokens of every rank, known once the ranks have met; empty before.
        received_rows: rows that are routed to each rank, masked ones left out; empty before the ranks have met.
    """

    rows: int
    x_dtype: str = "BF16"
    topk_weights_dtype: str = "FLOAT"
    has_mask: bool = False
    has_scales: bool = False
    routed: WeightFacts
    shared: WeightFacts | None = None
    shared_out_dtype: str | None = None
    activation: str = "swiglu"
    activation_clamp: float | None = None
    activation_params: Mapping[str, float] = field(default_factory=dict, hash=False)
    ccl_buffer_size: int | None = None
    rows_of_ranks: tuple[int, ...] = ()
    received_rows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Broken:
    """One rule that a buffer or a call breaks.

    Attributes:
        argument: name in the public signature.
        value: what came, as it is printed.
        expected: the rule, as the end of a sentence that begins with "expected".
        source: document or file that the rule comes from.
        remedy: what the caller can do, a sentence.
        silent: empty where the device's own host checks reject; else what the device would do without a word.
        rule: id of the rule.
    """

    argument: str
    value: str
    expected: str
    source: str
    remedy: str
    silent: str = ""
    rule: str = ""
