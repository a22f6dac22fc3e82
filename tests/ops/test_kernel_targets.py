"""Kernels for other processors: made for a plain x86-64 they give the same bits, and LLVM makes all of them for Arm."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ops.test_kernels import FORMATS, inputs, made, multiply

from vllm_megamoe.acl import AclDtype, AclFormat
from vllm_megamoe.ops.twin.kernels import build, k_first, k_last, product
from vllm_megamoe.ops.twin.kernels.task import function

REGISTERS = 8
"""As `build.registers` has it without AVX-512."""


@pytest.fixture
def plain_x86(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A processor with AVX2, FMA and F16C and nothing newer: nothing that was made for this one is used."""
    llvm = build._llvm()
    if not llvm.get_process_triple().startswith("x86_64"):
        pytest.skip("this processor is no x86-64")
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu="x86-64-v3", features="", opt=3, reloc="pic"
    )
    cached = (product._streamed, product._tiled, product._dotted, product._bytewise)
    monkeypatch.setenv("VLLM_MEGAMOE_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "_machine", lambda: machine)
    monkeypatch.setattr(product, "registers", lambda: REGISTERS)
    for name in ("has_permute", "has_dot_product", "has_pair_product"):
        monkeypatch.setattr(product, name, lambda: False)
    for one in cached:
        one.cache_clear()
    yield
    for one in cached:
        one.cache_clear()


@pytest.fixture
def on_this_processor() -> dict[Any, Any]:
    """Products of every format by the kernels of this processor."""
    return {form: _product(*form) for form in FORMATS}


def _product(element: AclDtype, fmt: AclFormat) -> Any:
    return multiply(inputs(element, 48, 544), made(element, fmt, 544, 128).weights, [(2, 0, 1), (0, 1, 8), (1, 8, 48)])


def test_a_plain_x86_gives_the_same_bits(on_this_processor: dict[Any, Any], plain_x86: None) -> None:
    assert [form for form in FORMATS if not _product(*form).equal(on_this_processor[form])] == []


def modules() -> dict[str, str]:
    """The code of every kernel that needs no instruction of one processor."""
    found = {"streamed": function(k_first.streamed(REGISTERS, pairs=False))}
    for unpacked in (False, True):
        for element in (AclDtype.BF16, AclDtype.INT8, AclDtype.INT4):
            found[f"tiled {element.name} {unpacked}"] = function(k_first.tiled(element, REGISTERS, 64, unpacked))
        for element in (AclDtype.FLOAT8_E4M3FN, AclDtype.FLOAT8_E5M2, AclDtype.FLOAT4_E2M1):
            found[f"dotted {element.name} {unpacked}"] = function(k_last.dotted(element, REGISTERS, "", unpacked))
    return found


def test_all_kernels_can_be_made_for_arm() -> None:
    """To machine code of an Armv8-A with NEON; whether that gives the same bits only such a machine can tell."""
    llvm = build._llvm()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(cpu="generic", opt=3)
    for name, text in modules().items():
        module = llvm.parse_assembly(text)
        module.verify()
        code = machine.emit_assembly(module)
        assert "fmla" in code, name
