"""The options of `--additional-config '{"megamoe": {...}}'`, checked word by word.

Names and defaults are fixed by the design. An unknown name is an error that lists the valid ones and the nearest; so is
a block of ours under a misspelt name, and an option of ours outside of its block. Other keys beside the block are the
platform's own (vllm-ascend reads the same mapping).
"""

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from vllm_megamoe.environment import choose_profile
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.profile import PROFILE_NAMES, find_profile

KEY = "megamoe"

UseCaseOption = Literal["auto", "a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"]


class Options(BaseModel):
    """What the user may choose; everything else is decided by the plan. docs/options.md is written from here.

    Raises:
        ConfigError: from `parse`, with every wrong name and value at once.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    profile: str | None = Field(
        default=None,
        description="whose limits hold ([limits.md](limits.md)); without it VLLM_MEGAMOE_PROFILE, else `none`",
    )
    topology: Literal["auto", "mte", "urma"] = Field(
        default="auto",
        description="of a 950 communicator: inside one UB domain, or across super-nodes; `auto` is `mte` in the twin",
    )
    backend: Literal["auto", "cann", "cpu"] = Field(
        default="auto", description="who runs the operator; `auto` takes the CANN package where an NPU is"
    )
    use_case: UseCaseOption = Field(
        default="auto",
        description="`auto`: the exact one with the fewest bytes that the product has, and that all layers can share; "
        "without one, and with `requant`, the one that loses least ([checkpoints.md](checkpoints.md))",
    )
    requant: Literal["strict", "allow"] = Field(
        default="strict",
        description="`strict` takes exact conversions only, `allow` consents to a lossy one; the plan states the loss",
    )
    max_padding_overhead: float = Field(
        default=0.35,
        ge=0,
        allow_inf_nan=False,
        description="most weights and FLOPs, as a fraction, that zero-padding to a product's sizes may add",
    )
    fuse_shared_experts: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="inside the operator's call where profile, weights and model allow it, else on vLLM's own path; "
        "`on` makes that an error",
    )
    combine_quant: Literal["none", "e5m2", "e4m3"] = Field(
        default="none", description="rows travel home as MXFP8 (950)"
    )
    topk_weights_type: Literal[0, 1] = Field(
        default=0, description="1: the router weight travels with the token and multiplies the activation (950)"
    )
    combine_comm_mode: Literal[0, 1] = Field(
        default=0, description="1: a token's rows are merged on each card before they travel home (950, MTE)"
    )
    max_recv_token_num: int = Field(
        default=0, ge=0, description="rows that a rank makes room for in a call; 0 for as many as can come"
    )
    allow_token_drop: bool = Field(
        default=False,
        description="accept a `max_recv_token_num` below what can come; rows beyond it are lost, counted, and told in "
        "the log with their requests. `vllm-megamoe plan --recv` says what a value covers",
    )
    workspace_budget_gib: float = Field(
        default=2.0,
        gt=0,
        allow_inf_nan=False,
        description="a step is cut into as few equal calls as fit (profiles of a product; the twin has no workspace)",
    )
    expert_placement: str | None = Field(
        default=None,
        description="file of each layer's slots of experts, redundant copies included ([balance.md](balance.md)); "
        "without one each expert is in its own slot, in order",
    )

    @field_validator("profile")
    @classmethod
    def _known_profile(cls, name: str | None) -> str | None:
        if name is not None:
            try:
                find_profile(name)
            except ConfigError as error:
                raise PydanticCustomError("profile", "{reason}", {"reason": str(error)}) from error
        return name

    @property
    def chosen_profile(self) -> str:
        """The profile that holds: the option, else the environment's, else `none`."""
        return choose_profile(self.profile)

    @classmethod
    def parse(cls, additional_config: object) -> "Options":
        """Read the options out of vLLM's `additional_config` (a mapping, or anything else when none was given)."""
        options, wrong = cls.read(additional_config)
        if wrong:
            raise ConfigError("\n".join(["The megamoe options are wrong:", *(f"  - {line}" for line in wrong)]))
        return options

    @classmethod
    def read(cls, additional_config: object) -> tuple["Options", list[str]]:
        """As `parse`, but return what is wrong as sentences beside the options that are right."""
        if additional_config is None:
            return cls(), []
        if not isinstance(additional_config, Mapping):
            got = f"{additional_config!r} ({type(additional_config).__name__})"
            return cls(), [f"additional_config is {got}; expected an object such as {EXAMPLE}. Write it as JSON."]
        wrong = [sentence for key in additional_config for sentence in misplaced(key, additional_config[key], cls)]
        section = additional_config.get(KEY, {})
        if not isinstance(section, Mapping):
            expected = f"an object such as {EXAMPLE}"
            wrong.append(
                f"additional_config[{KEY!r}] is {section!r} ({type(section).__name__}); expected {expected}. Options: "
                f"{', '.join(cls.model_fields)}."
            )
            return cls(), wrong
        try:
            return cls.model_validate(dict(section)), wrong
        except ValidationError as error:
            details = error.errors(include_url=False)
            right = {k: v for k, v in section.items() if k not in {d["loc"][0] for d in details}}
            return cls.model_validate(right), [*wrong, *(_sentence(detail, cls) for detail in details)]


EXAMPLE = f'{{"{KEY}": {{"use_case": "auto"}}}}'
_ALIKE = 0.8
"""Likeness from which a name counts as a misspelling of ours; the nearest key of vllm-ascend's, `enable_fused_mc2`, has
less than half of it."""


def misplaced(key: object, value: object, model: type[BaseModel] = Options) -> Iterator[str]:
    """What is wrong with a key beside our block: our name misspelt, or an option that belongs inside."""
    if key == KEY:
        return
    name = str(key)
    plain = "".join(character for character in name.lower() if character.isalnum()).removeprefix("vllm")
    if difflib.SequenceMatcher(None, plain, KEY).ratio() >= _ALIKE:
        yield f"additional_config has {name!r}; expected {KEY!r}. Rename it: {name!r} is not read."
    elif name in model.model_fields:
        moved = json.dumps({KEY: {name: value}}, default=repr)
        yield f"additional_config has the option {name!r} outside of {KEY!r}; expected {moved}. Move it there."


def _sentence(detail: Any, model: type[BaseModel]) -> str:
    name = str(detail["loc"][0])
    if detail["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, model.model_fields, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else "."
        return f"additional_config[{KEY!r}]: {name!r} is not an option{meant} Options: {', '.join(model.model_fields)}."
    value = detail["input"]
    if detail["type"] == "profile":
        near = difflib.get_close_matches(str(value), PROFILE_NAMES, n=1)
        return f"additional_config[{KEY!r}]: {detail['msg']}" + (f" Did you mean {near[0]!r}?" if near else "")
    expected = str(detail["msg"]).replace("Input should be", "expected")
    sentence = f"additional_config[{KEY!r}]: {name} = {value!r}; {expected}"
    default = model.model_fields[name].default
    choices = [c for c in get_args(model.model_fields[name].annotation) if isinstance(c, str)]
    near = difflib.get_close_matches(str(value), choices, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else "."
    return f"{sentence}{meant} Correct it, or leave it out for {json.dumps(default)}."
