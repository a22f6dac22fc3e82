"""The figures of profile `none` are the bytes that the twin really exchanges, in every use case and mode."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from ops.calls import run_rank
from ops.operands import Form, buffer_arguments
from oracle.case import Case
from oracle.make import Shape, make_case
from torch import Tensor

from vllm_megamoe.ops.twin.session import Session
from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import find_profile
from vllm_megamoe.profiles.sizes.wire import wire_bytes_per_token

MODES: list[dict[str, Any]] = [
    {},
    {"topk_weights_type": 1},
    {"combine_comm_mode": 1},
    {"topk_weights_type": 1, "combine_comm_mode": 1},
    {"combine_quant_mode": 3},
    {"max_recv_token_num": 999},
]
USE_CASES = ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"]
NAMES = {
    torch.int8: "INT8",
    torch.float8_e4m3fn: "FLOAT8_E4M3FN",
    torch.float8_e5m2: "FLOAT8_E5M2",
    296: "FLOAT4_E2M1",
}


def facts_of(case: Case) -> BufferFacts:
    said = buffer_arguments(case)
    del said["intermediate_hidden"]
    out = said.pop("dispatch_quant_out_dtype")
    return BufferFacts(ep_world_size=1, dispatch_quant_out_dtype=None if out is None else NAMES[out], **said)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """What went out and came home in the last call, uint8 [rows, bytes]."""
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        original = getattr(Session, name)

        def recording(self: Session, chunks: Any, expected: Any, width: int) -> Any:
            kept[name] = torch.cat(list(chunks))
            return original(self, chunks, expected, width)

        return recording

    for name in ("exchange", "give_back"):
        monkeypatch.setattr(Session, name, keep(name))
    return kept


@pytest.mark.parametrize("use_case", USE_CASES)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_bytes_of_every_record_and_row(use_case: str, mode: dict[str, Any], moved: dict[str, Tensor]) -> None:
    case = replace(make_case(use_case, Shape(tokens=(5,)), grid=True), **mode)
    run_rank(case, 0, Form())
    wire = wire_bytes_per_token(find_profile("none"), facts_of(case), use_case=use_case)
    tokens, topk = case.ranks[0].topk_ids.shape
    assert moved["exchange"].numel() == tokens * wire.dispatch
    assert moved["exchange"].shape == (tokens * topk, wire.record)
    # One rank holds all experts: merged, a row for each token comes home.
    rows = tokens if mode.get("combine_comm_mode") else tokens * topk
    assert moved["give_back"].shape == (rows, wire.row)
    assert wire.cards_expected == wire.cards_worst == 1
    assert moved["give_back"].numel() == tokens * (wire.combine_merged_worst or 0) or rows != tokens
