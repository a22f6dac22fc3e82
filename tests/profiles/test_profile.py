"""Names of profiles, and of products that have no operator."""

import pytest

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.limits import TABLE, limits_of
from vllm_megamoe.profiles.profile import find_profile

NAMES = ["none", "a2@9.1", "a3@9.1", "950@9.1", "a2@9.2", "a3@9.2", "950@9.2"]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_a_row(name: str) -> None:
    found = find_profile(name)
    assert (found.name, found.topology) == (name, "mte")
    assert limits_of(found) is TABLE[name, "mte"]


@pytest.mark.parametrize("name", ["950@9.1", "950@9.2"])
def test_950_has_two_topologies(name: str) -> None:
    assert [find_profile(name, topology).topology for topology in ("auto", "mte", "urma")] == ["mte", "mte", "urma"]


@pytest.mark.parametrize("name", ["a2@9.1", "a3@9.2"])
def test_urma_elsewhere(name: str) -> None:
    with pytest.raises(ConfigError, match="only Ascend 950 has it"):
        find_profile(name, "urma")


@pytest.mark.parametrize(
    "name",
    ["310P", "310p@9.1", "Ascend310P3", "Atlas 200I/500 A2", "200i-500-a2", "Atlas 300I Duo", "910A", "Ascend910A"],
)
def test_unsupported_products_are_rejected_by_name(name: str) -> None:
    # torch_api.txt:8-10, operator_readme.txt:9-11
    with pytest.raises(ConfigError, match=rf"profile='{name}': the operator mega_moe does not exist on this product"):
        find_profile(name)


@pytest.mark.parametrize("name", ["", "a2", "a3@9.0", "950", "910B", "A2@9.1"])
def test_other_names_are_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"profile='{name}'; expected one of none, a2@9\.1"):
        find_profile(name)
