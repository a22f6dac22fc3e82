"""Buffers of the worked examples, and random legal ones."""

from hypothesis import strategies as st

from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile, find_profile

A2 = [find_profile("a2@9.1"), find_profile("a2@9.2")]
A3 = [find_profile("a3@9.1"), find_profile("a3@9.2")]


def on_950(topology: str = "mte") -> Profile:
    return find_profile("950@9.2", topology)


def make(ranks: int, experts: int, tokens: int, topk: int, hidden: int, mode: int = 0, **more: int) -> BufferFacts:
    return BufferFacts(
        ep_world_size=ranks,
        num_experts=experts,
        num_max_tokens_per_rank=tokens,
        num_topk=topk,
        hidden=hidden,
        dispatch_quant_mode=mode,
        dispatch_quant_out_dtype={0: None, 2: "INT8", 4: "FLOAT8_E4M3FN"}[mode],
        **more,
    )


@st.composite
def legal_a2_a3(draw: st.DrawFn) -> BufferFacts:
    """Within the tables of both revisions of torch_api.txt and operator_readme.txt for A2/A3."""
    ranks = draw(st.sampled_from([2, 4, 8, 16, 32]))
    experts = ranks * draw(st.integers(1, min(128, 1024 // ranks)))
    topk = draw(st.integers(1, min(16, experts)))
    tokens, hidden = draw(st.integers(1, 4096)), 512 * draw(st.integers(2, 16))
    received = draw(st.sampled_from([0, 1, 777, 131072]))
    return make(ranks, experts, tokens, topk, hidden, draw(st.sampled_from([0, 2])), max_recv_token_num=received)


@st.composite
def legal_950(draw: st.DrawFn) -> BufferFacts:
    """Within operator_readme.txt for 950, any of its modes."""
    ranks = draw(st.sampled_from([2, 3, 16, 48, 256]))
    experts = ranks * draw(st.integers(1, 2048 // ranks))
    topk = draw(st.integers(1, min(32, experts)))
    tokens, hidden = draw(st.integers(1, 9000)), 64 * draw(st.integers(16, 128))
    return make(
        ranks,
        experts,
        tokens,
        topk,
        hidden,
        4,
        combine_quant_mode=draw(st.sampled_from([0, 3, 4])),
        topk_weights_type=draw(st.sampled_from([0, 1])),
        rank_num_per_server=draw(st.sampled_from([0, 2, 8])),
    )
