"""`vllm-megamoe plan --recv`: the receive capacity of each kind of layer, in place of the plan."""

from pydantic import BaseModel, ConfigDict

from vllm_megamoe.cli.show.rows import make_console, print_whole, size
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.plan.receive import COVERED, DRAWS, Receive, receive_of
from vllm_megamoe.plan.screen import kinds, layer_numbers


class KindReport(BaseModel):
    """Layers that are alike.

    Attributes:
        layers: their numbers, as "0-3, 5".
        receive: what they need, and what the chosen value covers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: str
    receive: Receive


class ReceiveReport(BaseModel):
    """What `plan --recv --json` prints: each kind of layer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = 1
    kinds: tuple[KindReport, ...]


def show_receive(plan: Plan | None, *, as_json: bool) -> None:
    """Print the capacities.

    Args:
        plan: also one that violates rules; None where nothing could be planned.

    Raises:
        ConfigError: there is none.
    """
    if plan is None or not plan.layers:
        raise ConfigError("--recv: no layer could be planned. Run the same command without --recv: it says why.")
    chosen = plan.options.max_recv_token_num
    found = [KindReport(layers=layer_numbers(kind), receive=receive_of(kind[0], chosen)) for kind in kinds(plan.layers)]
    if as_json:
        print_whole(ReceiveReport(kinds=tuple(found)).model_dump_json(indent=2))
        return
    console = make_console()
    for each in found:
        for line in lines(each.layers, each.receive):
            console.print(line, soft_wrap=True)
    console.print(
        f"Routers: popularity of experts drawn {DRAWS} times from a symmetric Dirichlet distribution; a rank of e "
        "experts gets the share Beta(e x evenness, (E - e) x evenness) of all rows (vllm_megamoe/plan/receive.py)."
    )


def lines(layers: str, receive: Receive) -> list[str]:
    """One kind of layer."""
    zero = "0 does the same" if receive.zero_is_enough else "0 is too little on this product (W4A8 counts rows twice)"
    room = f", {size(receive.smallest_bytes)} of workspace a rank" if receive.smallest_bytes else ""
    found = [
        f"layers {layers}: calls of {receive.rows} rows from each of {receive.ranks} ranks",
        f"  cannot lose a row: max_recv_token_num {receive.smallest} or more{room}; {zero}",
        f"  an even router sends {receive.even} rows to each rank",
    ]
    if receive.chosen:
        room = f", {size(receive.chosen_bytes)} of workspace a rank" if receive.chosen_bytes else ""
        found.append(f"  chosen: {receive.chosen}{room}")
    for router in receive.routers:
        covers = "" if router.covered is None else f", {receive.chosen} for {100 * router.covered:.1f}%"
        found.append(
            f"  routers of evenness {router.evenness:g}: the fullest rank gets {router.fullest:.2f} times the even "
            f"number; {router.enough} rows are enough for {100 * COVERED:g}% of them{covers}"
        )
    return found
