"""Checks of a host with NPUs: devices, product, both sides of the operator, driver, and what will work there."""

from collections.abc import Iterator

from vllm_megamoe.cli.doctor.ascend_host import Source
from vllm_megamoe.cli.doctor.environment import Check, Environment
from vllm_megamoe.lanes import PAIRINGS, working
from vllm_megamoe.profiles.limits import limits_of
from vllm_megamoe.profiles.profile import REVISIONS, Revision, find_profile

PRODUCTS = {"A2": "a2", "A3": "a3", "A5": "950"}
"""Products as vllm-ascend's build names them (vllm_ascend/_build_info.py)."""

# Names that tell the revisions of both sides apart: in the wrapper (op wrapper mega_moe.py) and in the header
# (aclnn_mega_moe.h of CANN 9.1.0 and of the source of 2026-08-21).
_NEWER_WRAPPER, _NEWER_KERNELS, _OLDER_KERNELS = "topk_weights_type", "activationParams", "activationClamp"
_DEVICES = (
    "Start the container with --device /dev/davinci0 (one for each NPU), --device /dev/davinci_manager, --device "
    "/dev/devmm_svm, --device /dev/hisi_hdc, or look at `npu-smi info` on the host."
)
_ONE_BUILD = (
    "Install the wheel cann_ops_transformer that comes with the operator package of this CANN. Of different builds the "
    'kernels read other arguments than the wrapper passes: EZ1001, "activation must not be nullptr".'
)


def npus(env: Environment) -> Iterator[Check]:
    """Devices that this process sees."""
    if not env.is_ascend:
        return
    count = env.host.npus
    if count:
        yield Check(name="NPUs", state="ok", found=f"{count} (/dev/davinci0 ...)")
    else:
        yield Check(name="NPUs", state="missing", found="no /dev/davinci*", remedy=_DEVICES)
    for name, version in (("driver", env.host.driver), ("firmware", env.host.firmware)):
        text = version or "no record in /usr/local/Ascend; `npu-smi info` tells it"
        yield Check(name=name, state="ok" if version else "note", found=text)


def pairing(env: Environment) -> Iterator[Check]:
    """vLLM and vllm-ascend in releases that a lane is written for."""
    if "vllm-ascend" not in env.versions:
        return
    vllm, ascend = env.versions.get("vllm", "not installed"), env.versions["vllm-ascend"]
    text = f"vLLM {vllm} with vllm-ascend {ascend}"
    if any(each.suits("npu", vllm, ascend) for each in PAIRINGS):
        yield Check(name="pairing", state="ok", found=text)
    else:
        remedy = f"Expected {working()}. --quantization megamoe rejects other releases by name."
        yield Check(name="pairing", state="wrong", found=text, remedy=remedy)


def operator(env: Environment) -> Iterator[Check]:
    """The wrapper's revision, by its arguments; arguments that no profile describes are told."""
    if not env.is_ascend or env.versions.get("cann-ops-transformer") is None:
        return
    wrapper = env.host.wrapper
    if wrapper is None:
        text = "cann_ops_transformer has no ops/mega_moe.py that defines both functions"
        yield Check(name="operator", state="missing", found=text, remedy=_ONE_BUILD)
        return
    text = f"revision {revision_of(wrapper)} by its arguments, installed {wrapper.date}, file {wrapper.digest}"
    newer = _beyond_profiles(wrapper) if "torch" in env.versions else []
    if newer:
        text += f"; newer than every profile: {', '.join(newer)}"
    yield Check(name="operator", state="note" if newer else "ok", found=text)


def _beyond_profiles(wrapper: Source) -> list[str]:
    """Arguments that no source has which a profile follows."""
    from vllm_megamoe.ops.arguments import CALL, CREATE  # needs torch, and doctor tells when that is missing

    return sorted(wrapper.names - {argument.name for argument in (*CREATE, *CALL) if argument.since != "later"})


def revision_of(wrapper: Source) -> Revision:
    """What the wrapper's arguments are those of."""
    return "9.2" if _NEWER_WRAPPER in wrapper.names else "9.1"


def one_build(env: Environment) -> Iterator[Check]:
    """A wrapper and kernels of different builds pass arguments that the other side reads differently."""
    wheel = env.versions.get("cann-ops-transformer")
    if wheel is None:
        return
    records = ", ".join(f"{name} {text}" for name, text in sorted(env.host.records.items()))
    where = f"CANN {env.cann_version or 'of unknown version'}" + (f" ({records})" if records else "")
    wrapper, kernels = env.host.wrapper, env.host.kernels
    text = f"cann_ops_transformer {wheel} beside {where}"
    if wrapper is None or kernels is None:
        text += "; no header aclnn_mega_moe.h was found, so no file tells whether they are of one build"
        yield Check(name="one build", state="note", found=text, remedy=_ONE_BUILD)
        return
    newer = _NEWER_KERNELS in kernels.names or _OLDER_KERNELS not in kernels.names
    below: Revision = "9.2" if newer else "9.1"
    text += f"; wrapper of revision {revision_of(wrapper)}, kernels of {below} ({kernels.place}, {kernels.date})"
    if below == revision_of(wrapper):
        yield Check(name="one build", state="ok", found=text)
    else:
        yield Check(name="one build", state="wrong", found=text, remedy=_ONE_BUILD)


def works(env: Environment) -> Iterator[Check]:
    """What the product runs with this operator, from the table of limits."""
    if not env.is_ascend or env.host.wrapper is None:
        return
    product = PRODUCTS.get(env.host.built_for)
    if product is None:
        text = f"vllm-ascend was built for {env.host.built_for or 'no product that it names'}"
        remedy = f"Install a vllm-ascend for one of {', '.join(PRODUCTS)}: the operator exists on these."
        yield Check(name="product", state="wrong", found=text, remedy=remedy)
        return
    profile = find_profile(f"{product}@{revision_of(env.host.wrapper)}")
    limits = limits_of(profile)
    use_cases = ", ".join(sorted(limits.use_cases.value))
    shared = f"up to {limits.max_shared_experts.value}" if limits.max_shared_experts.value else "none"
    text = f"profile {profile.name}: {use_cases}; EP {limits.ep_sizes.value}; shared experts in the call: {shared}"
    yield Check(name="product", state="ok", found=f"{text}. {REVISIONS}")
