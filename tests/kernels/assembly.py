"""Compiles kernels for GPUs that are not there, and says what the compiler made of them."""

import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Instructions by the names that disassemblers give them: what must be there, and what shows that
# registers went to memory.
_INSTRUCTIONS = {
    "HMMA": r"\bHMMA",
    "HGMMA": r"\bHGMMA",
    "UTCHMMA": r"\bUTC\w*MMA",
    "UTMALDG": r"\bUTMALDG",
    "LDGSTS": r"\bLDGSTS",
    "USETMAXREG": r"\bUSETMAXREG",
    "MFMA": r"\bv_mfma",
}
_TARGETS = {
    "sm80": ("cuda", 80, 32),
    "sm90": ("cuda", 90, 32),
    "sm100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel for one GPU.

    Attributes:
        name: what it is, without the GPU.
        module, function: where the kernel is.
        arch: "sm80", "sm90", "sm100" or "gfx942".
        constants: of the kernel, among them integers that are 1.
        types: of arguments that are not int32, as Triton writes types.
        warps, stages: of a program.
        wants: names of instructions that must be there.
    """

    name: str
    module: str
    function: str
    arch: str
    constants: dict[str, Any]
    types: dict[str, str]
    warps: int
    stages: int = 2
    wants: tuple[str, ...] = field(default=())

    @property
    def key(self) -> str:
        """The case's name in the table."""
        return f"{self.arch} {self.name}"


def compile_case(case: Case) -> dict[str, Any]:
    """Registers, spilt bytes, shared bytes and instructions of one case."""
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from sparse_attn.kernels.target import OPTIONS

    kernel = getattr(importlib.import_module(case.module), case.function)
    signature = {
        name: "constexpr" if name in case.constants else case.types.get(name, "i32")
        for name in kernel.arg_names
    }
    # Pointers come from torch's allocator, and strides are multiples of the head dimension.
    aligned = [
        (place,)
        for place, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or (name[:2] == "s_" and signature[name] == "i32")
    ]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs=case.constants,
        attrs={place: [["tt.divisibility", 16]] for place in aligned},
    )
    made = triton.compile(
        source,
        target=GPUTarget(*_TARGETS[case.arch]),
        options={"num_warps": case.warps, "num_stages": case.stages, **OPTIONS},
    )
    read = _of_amd if "amdgcn" in made.asm else _of_nvidia
    return {"shared": made.metadata.shared, **read(made.asm)}


def _of_nvidia(asm: dict[str, Any]) -> dict[str, Any]:
    import triton

    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        usage = _run(tools / "cuobjdump", "-res-usage", file.name)
        code = _run(tools / "nvdisasm", "-c", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage
    registers, stack = map(int, found.groups())
    return {"registers": registers, "spilt": stack, "instructions": _instructions(code)}


def _of_amd(asm: dict[str, Any]) -> dict[str, Any]:
    def number(what: str) -> int:
        found = re.search(rf"\.{what}:\s*(\d+)", asm["amdgcn"])
        assert found is not None, what
        return int(found[1])

    return {
        "registers": number("vgpr_count"),
        "spilt": number("vgpr_spill_count") + number("sgpr_spill_count"),
        "instructions": _instructions(asm["amdgcn"]),
    }


def _instructions(code: str) -> list[str]:
    return [name for name, pattern in _INSTRUCTIONS.items() if re.search(pattern, code)]


def _run(tool: Path, *arguments: str) -> str:
    run = subprocess.run([tool, *arguments], capture_output=True, text=True, check=True)
    return run.stdout + run.stderr
