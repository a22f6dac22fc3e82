"""Adapter to `cann_ops_transformer.ops`: passes on what the installed revision takes, rejects the rest by name.

The public arguments are those of the newest revision. Older ones lack some; an argument they lack is left out while it
has its default, since that is what they do anyway. Where a profile is set, its rules are looked at first, from metadata
of the tensors alone: what the package rejects anyway comes with a remedy, what the device gets wrong without a word is
rejected at all.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.environment import simulated_profile
from vllm_megamoe.errors import OperatorError
from vllm_megamoe.numerics.activations import named_parameters
from vllm_megamoe.ops.arguments import (
    CALL,
    CREATE,
    Argument,
    CallArguments,
    CreateArguments,
    check_create,
    check_kinds,
    tensors_of,
)
from vllm_megamoe.ops.buffer import BoundCall, SymmBuffer, buffer_facts, check_new, communicator_of
from vllm_megamoe.ops.cann.installed import PACKAGE, installed, simulated_device
from vllm_megamoe.ops.facts import call_facts, check_orientation, check_sides, check_width, judge
from vllm_megamoe.ops.given import Given, read_arguments
from vllm_megamoe.ops.rejection import raise_broken, rejection
from vllm_megamoe.ops.settings import Settings, active_settings
from vllm_megamoe.profiles.profile import Profile, find_profile

FP4_CODE = AclDtype.FLOAT4_E2M1.code
"""The wrapper knows no torch dtype for packed FP4; ACL's number + 256 works (op csrc, GetAclDataType)."""

_OWN = ("group_name", "rank_id", "ccl_buffer_size", "context", "topo_type", "rank_num_per_server")
"""What the package finds out for its buffer; older revisions lack some."""


def create(arguments: CreateArguments, settings: Settings) -> SymmBuffer:
    """A SymmBuffer around the package's own.

    Raises:
        OperatorError: no group, an argument that this revision does not have, or what the profile's product rejects.
    """
    group = arguments.group
    if group is None or isinstance(group, str):
        raise OperatorError(
            f"get_symm_buffer_for_mega_moe: group={group!r}; expected the torch.distributed process group (backend "
            "hccl) of the communicator. A single NPU needs a group too; for one process without NPU take "
            "settings(backend='cpu')."
        )
    check_create(arguments, late=False)
    given = {argument.name: getattr(arguments, argument.name) for argument in CREATE[1:]}
    given["dispatch_quant_out_dtype"] = _out_dtype(given["dispatch_quant_out_dtype"])
    expected = _sayable(CREATE, given, installed().create_names)
    buffer = SymmBuffer(group, arguments, settings)
    facts = check_new(buffer, settings.found_profile)
    make_communicator(group)
    buffer.held = held = PackagesBuffer(installed().create(group, **expected))
    held.tell(buffer)
    communicator_of(group).add(buffer, facts)
    return buffer


def make_communicator(group: Any) -> None:
    """Make sure that HCCL has the group's communicator: the operator looks it up but does not create it."""
    simulated = simulated_profile()
    if simulated:
        simulated_device(simulated).make_communicator(group)
        return
    rank = torch.distributed.get_rank(group)
    group._get_backend(torch.device("npu")).get_hccl_comm_name(rank)


class PackagesBuffer:
    """The package's own SymmBuffer behind a public one.

    Attributes:
        own: of the package; None once it was destroyed.
    """

    def __init__(self, own: Any) -> None:
        self.own = own
        self._context: Any = getattr(own, "context", None)
        self._seen: dict[str, Any] = {}

    def tell(self, buffer: SymmBuffer) -> None:
        """Copy what the package found out into the public buffer's attributes."""
        for name in _OWN:
            found = getattr(self.own, name, getattr(buffer, name))
            setattr(buffer, name, getattr(found, "value", found))
        self._seen = {name: getattr(buffer, name) for name in (*(a.name for a in CREATE[1:]), *_OWN)}

    def _pass_on(self, buffer: SymmBuffer) -> None:
        """Copy attributes that the caller has changed since into the package's buffer, which reads them at every call.

        Raises:
            OperatorError: this revision has no such attribute.
        """
        for name, seen in self._seen.items():
            now = getattr(buffer, name)
            if now is seen or (not isinstance(now, Tensor) and now == seen):
                continue
            if not hasattr(self.own, name):
                raise _lacking("get_symm_buffer_for_mega_moe", [f"{name}={now!r}"], installed().create_names)
            setattr(self.own, name, _out_dtype(now))
            self._seen[name] = now

    def call(self, arguments: CallArguments) -> tuple[Tensor, Tensor]:
        """Run the operator of this machine.

        Raises:
            OperatorError: what this revision cannot say, or what the profile's product does not take.
        """
        given = self._told(arguments)
        y, counts = installed().run(**given)
        return y, counts

    def bind(self, fixed: CallArguments) -> BoundCall:
        """See `ops.api.bind`: the package's function, called with what `_checked` made of `fixed`."""
        run, known = installed().run, dict[Any, dict[str, Any]]()

        def call(x: Tensor, topk_ids: Tensor, topk_weights: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
            of_mask = None if mask is None else (type(mask), mask.dtype, mask.shape)
            rows = [type(x), x.dtype, x.shape, type(topk_ids), topk_ids.dtype, topk_ids.shape, type(topk_weights)]
            form = (*rows, topk_weights.dtype, topk_weights.shape, of_mask, active_settings())
            given = known.get(form)
            if given is None or self.own is None:
                mine: dict[str, Any] = {
                    "x": x,
                    "topk_ids": topk_ids,
                    "topk_weights": topk_weights,
                    "x_active_mask": mask,
                }
                told = self._told(replace(fixed, **mine))
                known[form] = given = {name: value for name, value in told.items() if name not in mine}
            y, counts = run(x=x, topk_ids=topk_ids, topk_weights=topk_weights, x_active_mask=mask, **given)
            return y, counts

        return call

    def _told(self, arguments: CallArguments) -> dict[str, Any]:
        """See `_checked`; where it rejects the call, simulated peers are told."""
        try:
            return self._checked(arguments)
        except OperatorError as error:
            # Between devices there is no way to say so: the others wait until HCCL gives up. Simulated ones are told.
            simulated = simulated_profile()
            if simulated:
                simulated_device(simulated).refuse(self._context, error)
            raise

    def _checked(self, arguments: CallArguments) -> dict[str, Any]:
        """What the package's function gets."""
        buffer: SymmBuffer = arguments.sym_buffer
        if self.own is None:
            remedy = "Make a new one with get_symm_buffer_for_mega_moe."
            raise rejection("sym_buffer", "a destroyed buffer", "a live one", "torch_api.txt, sym_buffer", remedy)
        check_kinds(arguments)
        check_create(buffer, late=False)
        # Whatever the product: it would read the first entry of a list alone.
        asked = read_arguments(arguments)
        profile = _profile(buffer)
        if profile.product != "none":
            _check_call(profile, buffer, asked)
        self._pass_on(buffer)
        given = {argument.name: _passed(argument, getattr(arguments, argument.name)) for argument in CALL}
        if isinstance(given["activation_params"], (list, tuple)):  # the wrapper takes names only
            clamp, named = named_parameters(*(given[name] for name in _ACTIVATION))
            given |= {"activation_clamp": clamp, "activation_params": named or None}
        given["sym_buffer"] = self.own
        names = installed().run_names
        return _sayable(CALL, _without_repeats(given, names), names)

    def destroy(self) -> None:
        """Give the package's buffer back: memory on 950, nothing on A2 and A3."""
        own, self.own = self.own, None
        if own is not None and hasattr(own, "destroy"):
            own.destroy()


_ACTIVATION = ("activation", "activation_clamp", "activation_params")


def _check_call(profile: Profile, buffer: SymmBuffer, given: Given) -> None:
    """The profile's rules before the package is called, from metadata of the tensors: no device is asked.

    Raises:
        OperatorError: naming argument, value, rule, source and remedy.
    """
    facts = call_facts(given, buffer.hidden, buffer.ccl_buffer_size)
    raise_broken(judge(profile, buffer_facts(buffer), facts))
    for first, second in ((given.l1, given.l2), (given.shared_l1, given.shared_l2)):
        if first.tensors:
            check_orientation(first, second, buffer.hidden)
            check_sides(first)
            check_sides(second)
    check_width(buffer.intermediate_hidden, facts.routed.intermediate_hidden)


def _profile(buffer: SymmBuffer) -> Profile:
    """The profile of the open settings, else the buffer's; its topology is the communicator's where none is named."""
    config = active_settings() or buffer.settings
    found = config.found_profile
    if found.is_950 and config.topology == "auto" and buffer.topo_type:
        return find_profile(config.profile, "urma")
    return found


def _sayable(table: tuple[Argument, ...], values: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """The arguments that the revision takes; others must have their defaults."""
    lacking = [a for a in table if a.name in values and a.name not in names and not a.is_default(values[a.name])]
    if lacking:
        shown = [f"{argument.name}={_shown(values[argument.name])}" for argument in lacking]
        raise _lacking(lacking[0].function, shown, names)
    return {name: value for name, value in values.items() if name in names}


def _lacking(function: str, shown: list[str], names: frozenset[str]) -> OperatorError:
    return OperatorError(
        f"{function}: {', '.join(shown)}; expected the default, because {PACKAGE}.{function} of this installation has "
        f"no such argument (it has {', '.join(sorted(names))}). Install a newer operator package, or leave it out."
    )


def _without_repeats(arguments: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """Leave out types of shared weights that only repeat the routed ones', where the revision cannot say them.

    It then takes weight1_type and weight2_type for both (op csrc of 2026-08; op tiling arch35 wants them equal).
    """
    repeats = {f"shared_{name}" for name in ("weight1_type", "weight2_type")}
    return {
        name: None if name in repeats - names and value == arguments.get(name.removeprefix("shared_")) else value
        for name, value in arguments.items()
    }


def _shown(value: Any) -> str:
    return f"a list of {len(value)}" if isinstance(value, list) else repr(value)


def _passed(argument: Argument, value: Any) -> Any:
    """The operator takes lists only; one stack is a list of one."""
    return tensors_of(value) if argument.kind in ("weights", "side") and value is not None else value


def _out_dtype(value: Any) -> Any:
    """A spelling that the wrapper's table knows: bf16 is None there, packed FP4 a number."""
    if value is torch.bfloat16:
        return None
    return FP4_CODE if value is torch.float4_e2m1fn_x2 else value
