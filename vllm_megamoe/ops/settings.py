"""What the operator's signature has no place for: profile, numerics, backend, time-out, the twin's plain copies."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from vllm_megamoe.environment import (
    DEFAULT_TIMEOUT_S,
    FIRST_CALL_TIMEOUT_S,
    choose_profile,
    given_timeout_s,
    is_timeout,
    kernels_from_environment,
    profile_from_environment,
)
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.numerics.switches import Numerics
from vllm_megamoe.profiles.profile import Profile, find_profile

Backend = Literal["auto", "cann", "cpu"]
Topology = Literal["auto", "mte", "urma"]
Kernels = Literal["on", "off"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of buffers and calls.

    Attributes:
        profile: product and operator revision whose limits hold; `none` takes all that the documents describe.
        topology: of a 950 communicator, `mte` inside one UB domain, `urma` across super-nodes; `auto` as it is found.
        numerics: the device's rounding points, or the documents' formulas, and a switch for each open question.
        backend: `auto` takes the CANN package where an NPU is present, else the CPU twin.
        timeout_s: seconds that a rank waits for the others in every call, the first one included; None where nobody
            named a time (`wait_s` says what holds then).
        plain_copy: let the twin keep a float32 copy of every weight it has multiplied, so that a call unpacks nothing.
            Off by default: it costs 2 (BF16), 4 (8-bit) or 8 times (4-bit) the weight's own bytes, and unpacking block
            by block is about as fast as reading that much more memory.
        kernels: `on` lets the twin multiply few rows with kernels that LLVM makes for this processor, where they can
            run (`vllm-megamoe doctor` says it); `off` leaves all to torch. Integer use cases give the same bits either
            way, the others sum in another order.
    """

    profile: str = field(default_factory=profile_from_environment)
    topology: Topology = "auto"
    numerics: Numerics = field(default_factory=Numerics)
    backend: Backend = "auto"
    timeout_s: float | None = field(default_factory=given_timeout_s)
    plain_copy: bool = False
    kernels: Kernels = field(default_factory=kernels_from_environment)

    def __post_init__(self) -> None:
        if self.backend not in get_args(Backend):
            raise ConfigError(f"backend={self.backend!r}; expected one of {', '.join(get_args(Backend))}.")
        if self.kernels not in get_args(Kernels):
            raise ConfigError(f"kernels={self.kernels!r}; expected one of {', '.join(get_args(Kernels))}.")
        find_profile(self.profile, self.topology)
        if self.backend != "cpu":
            choose_profile(self.profile)
        if self.timeout_s is not None and not is_timeout(self.timeout_s):
            raise ConfigError(
                f"timeout_s={self.timeout_s!r}; expected a number of seconds above 0, at most a year. "
                "Write settings(timeout_s=300), or leave it out."
            )

    @property
    def found_profile(self) -> Profile:
        """The profile behind the two names."""
        return find_profile(self.profile, self.topology)

    def wait_s(self, first_call: bool) -> float:
        """Seconds that a rank waits for the others: as named, else 300 (1800 in a first call)."""
        if self.timeout_s is not None:
            return self.timeout_s
        return FIRST_CALL_TIMEOUT_S if first_call else DEFAULT_TIMEOUT_S


_active: ContextVar[Settings | None] = ContextVar("vllm_megamoe_settings", default=None)


def active_settings() -> Settings | None:
    """The settings of the innermost open `settings(...)` block, None outside of any."""
    return _active.get()


@contextmanager
def settings(**overrides: Any) -> Iterator[Settings]:
    """Set what the signature has no place for, inside a `with` block.

    A SymmBuffer remembers the settings of its creation; a call inside a block follows the block.

    Args:
        overrides: fields of Settings; `numerics` also takes "kernel" or "spec".
    """
    known = Settings.__dataclass_fields__
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ConfigError(f"settings() has no {', '.join(unknown)}; it takes {', '.join(known)}.")
    if isinstance(overrides.get("numerics"), str):
        overrides["numerics"] = Numerics(rule=overrides["numerics"])
    token = _active.set(replace(_active.get() or Settings(), **overrides))
    try:
        yield _active.get() or Settings()
    finally:
        _active.reset(token)
