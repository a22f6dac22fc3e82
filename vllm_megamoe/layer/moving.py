"""Experts of a running layer moved between slots and ranks as the bytes of their operands; nothing is converted."""

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor
from torch import distributed as dist

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.experts.operands import ExpertOperands, LayerOperands
from vllm_megamoe.layer.state import LayerState
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.plan.placement import wrong_layer


def move_experts(layer: LayerState, slots: Sequence[int]) -> int:
    """Place a layer's experts anew, on all ranks of its communicator together and between two steps.

    Operands keep their addresses, and so do the routes: a captured graph runs on with the new placement. Counters start
    again, because they are of slots.

    Args:
        layer: with a placement or without.
        slots: the logical expert of each physical slot, as many as there are.

    Returns:
        Slots of this rank that got another expert.

    Raises:
        ConfigError: no such placement; nothing has moved then, on any rank.
        OperatorError: a captured graph holds routes of another size.
    """
    plan, seat = layer.plan, layer.seat
    old = plan.slots or tuple(range(plan.facts.num_experts))
    said = wrong_layer(tuple(slots), plan.facts, seat.size)
    if len(slots) != len(old):
        said = f"{len(slots)} slots; expected {len(old)}, as many as at the start. Start the server with them."
    if not said and plan.stacked and inner(_first(layer.operands)).device.type != "cpu":
        said = f"{plan.profile.name} takes a stack of experts, of which no part is a tensor; expected a list."
    if said:
        raise ConfigError(f"{layer.name}: {said}")
    routes = layer.routes_of(slots)
    if layer.routes is None or layer.routes.size != routes.size:
        layer.check_free("its routes change their size")
        layer.routes = routes
    else:
        layer.routes.take(routes)
    moved = _exchange(layer, old, slots)
    layer.plan = replace(plan, facts=replace(plan.facts, slots=tuple(slots)))
    layer.load.clear()
    return moved


def _exchange(layer: LayerState, old: Sequence[int], new: Sequence[int]) -> int:
    """Send and receive what changes its place; the slots are written once all has been read."""
    rank, each = layer.seat.rank, layer.plan.experts_per_rank
    homes: dict[int, list[int]] = {}
    for slot, expert in enumerate(old):
        homes.setdefault(expert, []).append(slot)
    work: list[dist.P2POp] = []
    arrived: list[tuple[int, list[Tensor]]] = []
    for slot, expert in enumerate(new):
        if old[slot] == expert:
            continue
        near = [home for home in homes[expert] if home // each == slot // each]
        source = near[0] if near else homes[expert][slot % len(homes[expert])]
        giver, taker = source // each, slot // each
        if rank == giver:
            held = [tensor.clone() for tensor in parts_of(layer.operands, source % each)]
            if rank == taker:
                arrived.append((slot % each, held))
            else:
                work += [_p2p(dist.isend, tensor, taker, layer) for tensor in held]
        elif rank == taker:
            held = [torch.empty_like(tensor) for tensor in parts_of(layer.operands, slot % each)]
            arrived.append((slot % each, held))
            work += [_p2p(dist.irecv, tensor, giver, layer) for tensor in held]
    for request in dist.batch_isend_irecv(work) if work else []:
        request.wait()
    for slot, held in arrived:
        for place, tensor in zip(parts_of(layer.operands, slot), held, strict=True):
            place.copy_(tensor)
    return len(arrived)


def _p2p(operation: object, tensor: Tensor, peer: int, layer: LayerState) -> dist.P2POp:
    return dist.P2POp(operation, bytes_of(tensor), group=layer.seat.group, group_peer=peer)  # type: ignore[arg-type]


def bytes_of(tensor: Tensor) -> Tensor:
    """A view that every communicator sends: gloo knows neither FP8 nor E8M0, and bytes are bytes."""
    return tensor.view(torch.uint8) if tensor.device.type == "cpu" else tensor


def parts_of(operands: LayerOperands, slot: int) -> list[Tensor]:
    """The tensors of one expert, whatever the operand list: weights, scales, biases."""
    held = [getattr(operands, field.name) for field in fields(ExpertOperands)]
    return [inner(each)[slot] if isinstance(each, Tensor) else inner(each[slot]) for each in held if each is not None]


def _first(operands: LayerOperands) -> Tensor:
    return operands.l1 if isinstance(operands.l1, Tensor) else operands.l1[0]
