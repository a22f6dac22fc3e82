"""Ranks, experts and tokens that a product takes, one number inside and one outside of each limit."""

from profiles.cases.case import LEGAL, case, each, ranks
from profiles.legal import (
    A2_A3,
    ALL,
    N91,
    NEW,
    NINES,
    OLD,
    URMA,
    Change,
    buffer,
    call,
    earlier,
)

# Communicator. torch_api.txt:436,459; operator_readme.txt:573,515; 9.1.0's own code: A2/A3 up to 32.
case(
    "ep-size", OLD, ranks(2, 4, 8, 16, 32), ranks(1, 3, 64), r"ep_world_size=\d+; expected one of 2, 4, 8, 16, 32 with"
)
case(
    "ep-size",
    NEW,
    ranks(2, 4, 8, 16, 32, 64),
    ranks(1, 6, 128),
    r"ep_world_size=\d+; expected one of 2, 4.*32, 64 with",
)
case("ep-size", [N91], ranks(2, 3, 768), ranks(1, 769), r"ep_world_size=\d+; expected in \[2, 768\] with")
case("ep-size", NINES, ranks(2, 3, 1024), ranks(1, 1025), r"ep_world_size=\d+; expected in \[2, 1024\] with")
case("topology", [N91], [LEGAL], [Change(topology="urma")], "topology='urma'; expected 'mte' with")
case(
    "ranks-per-server",
    [URMA],
    [LEGAL, *(buffer(ep_world_size=4, rank_num_per_server=n) for n in (2, 4))],
    [buffer(ep_world_size=4, rank_num_per_server=n) for n in (1, 3)],
    r"rank_num_per_server=\d; expected at least 2, and a divisor of the 4 ranks",
)
case(
    "capture",
    ALL,
    [LEGAL],
    [buffer(capturing=True)],
    ".* while a graph is captured; expected no graph capture",
    "a replay uses",
)
case(
    "one-buffer",
    (N91, *NINES),
    [LEGAL],
    each(buffer, "buffers_before", 1, 3),
    r"group=a communicator that \d buffer\(s\).*destroyed ones included; expected a communicator without any",
    "no memory and no peer addresses",
)
# torch_api.txt:378, operator_readme.txt:529
case(
    "alike",
    ALL,
    [LEGAL, earlier(), earlier(num_topk=4, hidden=2048, combine_quant_mode=3)],
    [
        earlier(num_experts=32),
        earlier(max_recv_token_num=7),
        earlier(dispatch_quant_mode=2),
        earlier(dispatch_quant_out_dtype="INT8"),
        earlier(num_max_tokens_per_rank=8),
        earlier(topk_weights_type=1),
        earlier(combine_comm_mode=1),
    ],
    r"\w+=\w+; expected \w+, as the first buffer of the communicator",
    "layers that differ",
)
case(
    "buffer-arguments",
    (*OLD, N91),
    [LEGAL],
    [buffer(topk_weights_type=1), buffer(combine_comm_mode=1)],
    "(topk_weights_type|combine_comm_mode)=1; expected 0: 9.1.0 has no such argument",
)

# Experts. torch_api.txt:431,437,457; operator_readme.txt:571,574.
many = {"ep_world_size": 32, "num_topk": 8}
case(
    "created-experts",
    A2_A3,
    [buffer(**many, num_experts=1024)],
    [buffer(**many, num_experts=2080), buffer(num_experts=0)],
    r"num_experts=\d+; expected in \[1, 2048\]",
)
case(
    "created-experts",
    [N91],
    [buffer(ep_world_size=64, num_experts=1024)],
    [buffer(num_experts=1088, ep_world_size=64), buffer(num_experts=0)],
    r"num_experts=\d+; expected in \[1, 1024\]",
)
case(
    "created-experts",
    NINES,
    [buffer(num_experts=2048)],
    [buffer(num_experts=2050), buffer(num_experts=0)],
    r"num_experts=\d+; expected in \[1, 2048\]",
)
case(
    "experts-divide",
    ALL,
    [LEGAL, buffer(num_experts=12)],
    [buffer(num_experts=7), buffer(num_experts=1)],
    r"num_experts=\d; expected a multiple of the 2 ranks",
)
case(
    "experts",
    A2_A3,
    [buffer(**many, num_experts=1024)],
    [buffer(**many, num_experts=1056)],
    r"num_experts=\d+; expected at most 1024 with",
)
case(
    "experts",
    [N91],
    [buffer(ep_world_size=64, num_experts=1024)],
    [buffer(ep_world_size=64, num_experts=1088)],
    r"num_experts=\d+; expected at most 1024 with",
)
case(
    "experts",
    NINES,
    [buffer(num_experts=2048)],
    [buffer(num_experts=2050)],
    r"num_experts=2050; expected at most 2048 with",
)
case(
    "experts-per-rank",
    A2_A3,
    [buffer(num_experts=256)],
    [buffer(num_experts=258)],
    "num_experts=258 over 2 ranks, 129 per rank; expected at most 128 per rank",
)
case(
    "experts-per-rank",
    [N91],
    [buffer(num_experts=32)],
    [buffer(num_experts=34)],
    "num_experts=34 over 2 ranks, 17 per rank; expected at most 16 per rank",
)
case(
    "experts-per-rank",
    NINES,
    [buffer(num_experts=2048)],
    [buffer(num_experts=2050)],
    "num_experts=2050 over 2 ranks, 1025 per rank; expected at most 1024 per rank",
)

# Tokens. torch_api.txt:435,438,454,460; operator_readme.txt:567-568.
full = {n: buffer(num_max_tokens_per_rank=n) | call(rows=n) for n in (1, 512, 513, 4096)}
case(
    "max-tokens",
    A2_A3,
    [full[1], buffer(num_max_tokens_per_rank=4096)],
    each(buffer, "num_max_tokens_per_rank", 0, 4097),
    r"num_max_tokens_per_rank=\d+; expected in \[1, 4096\]",
)
case(
    "max-tokens",
    [N91],
    [full[1], full[512]],
    [full[513], buffer(num_max_tokens_per_rank=0)],
    r"num_max_tokens_per_rank=\d+; expected in \[1, 512\]",
)
case(
    "max-tokens",
    NINES,
    [full[1], buffer(num_max_tokens_per_rank=100_000)],
    each(buffer, "num_max_tokens_per_rank", 0),
    "num_max_tokens_per_rank=0; expected at least 1",
)
case(
    "rows",
    (*A2_A3, *NINES),
    each(call, "rows", 1, 64),
    each(call, "rows", 0, 65),
    r"x: rows=\d+; expected in \[1, 64\]",
)
case("rows", [N91], each(call, "rows", 64), each(call, "rows", 0, 65), r"x: rows=\d+; expected in \[1, 64\]")
case(
    "rows-full",
    [N91],
    [LEGAL, full[1]],
    each(call, "rows", 1, 63),
    r"x: rows=\d+; expected 64, num_max_tokens_per_rank",
)
case(
    "rows-alike",
    A2_A3,
    each(call, "rows_of_ranks", (5, 5), ()),
    each(call, "rows_of_ranks", (5, 4), (4, 5)),
    r"x: rows=\d, \d on ranks 0, 1, ...; expected the same number on all ranks",
    "wrong rows",
)
case(
    "rows-alike",
    [N91],
    each(call, "rows_of_ranks", (64, 64)),
    each(call, "rows_of_ranks", (64, 63)),
    "x: rows=64, 63 on ranks 0, 1, ...; expected the same number on all ranks",
)
