"""The pytest plugin: fixtures for model and quantisation teams without an NPU.

It is loaded by its entry point wherever this package is installed, and does nothing until a fixture is asked for:
importing it brings neither torch nor vLLM, and it has one option. docs/integration_tests.md shows whole tests.

    megamoe_checkpoint(family, format)   a tiny checkpoint that vLLM serves, written once a session
    megamoe_twin(profile)                the operator's CPU twin under a product's rules
    megamoe_simulator(profile)           a simulated torch_npu and operator package, in place of a MagicMock
    megamoe_logprobs(model, prompts)     what an engine finds likely, in a process of its own

    --megamoe-simulator PROFILE          the whole session, conftest files included, runs on a simulated NPU
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor

    from vllm_megamoe.testing.checkpoints import TinyCheckpoint
    from vllm_megamoe.testing.simulated import Simulator

OPTION = "--megamoe-simulator"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the one option."""
    parser.getgroup("megamoe").addoption(
        OPTION,
        metavar="PROFILE",
        default="",
        help="simulate an NPU for the whole session, such as a3@9.1: torch_npu, its operators and cann_ops_transformer",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Install the simulated NPU ahead of every conftest, which may mock or look for one."""
    profile = early_config.known_args_namespace.megamoe_simulator
    if not profile:
        return
    from vllm_megamoe.errors import ConfigError
    from vllm_megamoe.testing.simulated import install_session

    tools = tempfile.TemporaryDirectory(prefix="megamoe-tools-")
    early_config.add_cleanup(tools.cleanup)
    try:
        install_session(profile, Path(tools.name))
    except ConfigError as error:
        raise pytest.UsageError(f"{OPTION} {profile}: {error}") from error


@pytest.fixture(scope="session")
def megamoe_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> "Callable[..., TinyCheckpoint]":
    """`megamoe_checkpoint(family="qwen3_moe", format="bf16", **changes)`: a tiny checkpoint, written once.

    Its `str()` is the folder; `.experts(layer)` and `.logprobs(prompts)` say what its numbers mean. `changes` are keys
    of the family's config. A wrong family or format is an error that lists the right ones.
    """
    made: dict[tuple[Any, ...], TinyCheckpoint] = {}

    def checkpoint(family: str = "qwen3_moe", format: str = "bf16", **changes: Any) -> "TinyCheckpoint":
        from vllm_megamoe.testing.checkpoints import write_checkpoint

        key = family, format, repr(sorted(changes.items()))
        if key not in made:
            folder = tmp_path_factory.mktemp("megamoe") / f"{family}-{format}"
            made[key] = write_checkpoint(family, format, folder, **changes)
        return made[key]

    return checkpoint


@pytest.fixture
def megamoe_twin(monkeypatch: pytest.MonkeyPatch) -> "Iterator[Callable[[str], ModuleType]]":
    """`megamoe_twin(profile="none")`: `vllm_megamoe.ops` on the CPU under a product's rules, until the test ends.

    Engines that the test builds in its own process have the same profile.
    """
    with ExitStack() as stack:

        def twin(profile: str = "none") -> "ModuleType":
            from vllm_megamoe import ops
            from vllm_megamoe.environment import PROFILE_VARIABLE

            stack.enter_context(ops.settings(profile=profile, backend="cpu"))
            monkeypatch.setenv(PROFILE_VARIABLE, profile)
            return ops

        yield twin


@pytest.fixture
def megamoe_simulator() -> "Iterator[Callable[[str], Simulator]]":
    """`megamoe_simulator(profile)`: `torch_npu` and `cann_ops_transformer` of a product, until the test ends.

    For code that names the device `npu` or a group `hccl`, start pytest with --megamoe-simulator PROFILE.
    """
    with ExitStack() as stack:

        def simulator(profile: str) -> "Simulator":
            from vllm_megamoe.testing.simulated import hold

            return stack.enter_context(hold(profile))

        yield simulator


@pytest.fixture(scope="session")
def megamoe_logprobs(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Callable[..., list[Tensor]]]":
    """`megamoe_logprobs(model, prompts, **llm)`: log-probabilities of every token after each place of each prompt.

    An engine of vLLM's in a process of its own, which is kept for the next call. `llm` are arguments of `vllm.LLM`,
    such as `quantization="megamoe"`; `dtype="float32"` unless another is named. Prompts are lists of token ids. Returns
    float32 [tokens - 1, vocabulary] for each prompt, as `assert_same_logprobs` takes them.
    """
    from vllm_megamoe.testing.engines import EngineRanks

    ranks = EngineRanks(1, tmp_path_factory.mktemp("megamoe-engines"))

    def logprobs(model: Any, prompts: Sequence[Sequence[int]], **llm: Any) -> "list[Tensor]":
        from functools import partial

        from vllm_megamoe.testing.engines import all_logprobs, tiny_engine

        step = partial(all_logprobs, prompts=[list(prompt) for prompt in prompts])
        ((found,),) = ranks.serve(tiny_engine(str(model), prompts) | llm, [step])
        return found  # type: ignore[no-any-return]

    yield logprobs
    ranks.stop()
