"""What a rank can receive, and the window."""

from profiles.cases.case import INT4, INT8, case, each
from profiles.legal import (
    A2_91,
    A2_92,
    A2_A3,
    A3_91,
    A3_92,
    N91,
    N92,
    NINES,
    URMA,
    Change,
    buffer,
    call,
)

# Receiving. torch_api.txt:439; operator_readme.txt:575; 64 tokens x 2 ranks x min(topk, experts per rank).
capacity = "max_recv_token_num"
case(
    "receive-bound",
    A2_A3,
    each(buffer, capacity, 0, 5, 300),
    each(buffer, capacity, -1),
    "max_recv_token_num=-1; expected at least 0",
)
case(
    "receive-bound",
    [N91],
    each(buffer, capacity, 0, 768),
    each(buffer, capacity, 769, -1),
    r"max_recv_token_num=-?\d+; expected in \[0, 768\]",
)
case(
    "receive-bound",
    NINES,
    each(buffer, capacity, 0, 256),
    each(buffer, capacity, 257, -1),
    r"max_recv_token_num=-?\d+; expected in \[0, 256\]",
)
case(
    "receive-int4",
    [A3_91],
    [INT4 | buffer(max_recv_token_num=512), INT8],
    [INT4 | buffer(max_recv_token_num=n) for n in (0, 256, 511)],
    r"max_recv_token_num=\d+; expected at least 512: 2 x tokens x ranks",
    "come back as zeros",
)
room = buffer(max_recv_token_num=20)
TOO_MANY = "max_recv_token_num=20; expected at least 21, the rows that rank 1 receives"
case(
    "receive-overflow",
    A2_A3,
    [room | call(received_rows=(3, 20)), call(received_rows=(3, 2000)), room],
    [room | call(received_rows=(3, 21))],
    TOO_MANY,
    "drops the rows beyond it",
)
case(
    "receive-overflow",
    (N91, *NINES),
    [room | call(received_rows=(3, 20)), call(received_rows=(3, 200))],
    [room | call(received_rows=(3, 21))],
    TOO_MANY,
    "a hang",
)

# Window: the worked examples of the size formulas (torch_api.txt:381-423), whole windows, both halves.
big = {"num_experts": 256, "num_topk": 8, "hidden": 7168}
on_a2 = INT8 | buffer(**big, ep_world_size=8, num_max_tokens_per_rank=256) | call(rows=256)
on_a3 = INT8 | buffer(**big, ep_world_size=16, num_max_tokens_per_rank=256) | call(rows=256)
on_950 = buffer(**big, ep_world_size=16, num_max_tokens_per_rank=128) | call(rows=128)


def windows(base: Change, least: int) -> tuple[list[Change], list[Change]]:
    return [base | call(ccl_buffer_size=least)], [base | call(ccl_buffer_size=least - 1)]


WINDOW = r"ccl_buffer_size=\d+; expected at least \d+ bytes"
case("window", (A2_A3[0], A2_A3[2]), *windows(on_a2, 522_535_936), WINDOW)
case("window", (A2_A3[1], A2_A3[3]), *windows(on_a3, 112_492_544), WINDOW)
# The tiling counts the rows of the call. The document counts what the buffer could take (torch_api.txt:381-423), which
# is never less, so in 9.1 it decides; the later document has no formula.
few, roomy = call(rows=1), buffer(num_max_tokens_per_rank=4096)
case("window", [A2_91], *windows(on_a2 | few, 522_535_936), WINDOW)
case("window", [A3_91], *windows(on_a3 | few, 112_492_544), WINDOW)
case("window", [A2_92], *windows(on_a2 | roomy, 522_535_936), WINDOW)
case("window", [A3_92], *windows(on_a3 | roomy, 112_492_544), WINDOW)
case("window", [N91], *windows(on_950, 15_728_640), WINDOW)
case("window", [N92], *windows(on_950, 15_728_640), WINDOW)
# rows across super-nodes are kept once per server, so it takes more than MTE
case("window", [URMA], [on_950 | call(ccl_buffer_size=30 << 20)], [on_950 | call(ccl_buffer_size=15 << 20)], WINDOW)
