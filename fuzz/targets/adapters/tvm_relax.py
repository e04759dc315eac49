"""Apache TVM on the CPU, through torch.export and the front end Relax, for each call anew.

torch's own backend `tvm` uses TVM's former front end Relay, which TVM no longer has. A program that
torch.export or the front end cannot take is a refusal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuzz.targets.adapters.adapter import Adapter, requires
from fuzz.targets.adapters.flat_calls import GRAPH_CLAUSES, GRAPH_LACKS, compile_flat
from fuzz.targets.target import Function, Target

if TYPE_CHECKING:
    import torch


class NotImportedError(Exception):
    """torch.export or TVM's front end has raised."""


def _export(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> Function:
    import torch
    import tvm
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    try:
        imported = from_exported_program(torch.export.export(module, arguments))
    except Exception as error:
        raise NotImportedError(f"{type(error).__name__}: {error}") from error
    machine = relax.VirtualMachine(tvm.compile(imported, target="llvm"), tvm.cpu())

    def call(*tensors: torch.Tensor) -> list[Any]:
        given = [tvm.runtime.from_dlpack(tensor.detach().contiguous()) for tensor in tensors]
        return [torch.utils.dlpack.from_dlpack(result) for result in machine["main"](*given)]

    return call


def _refusal(error: BaseException) -> str | None:
    return "not imported" if isinstance(error, NotImportedError) else None


_SCRIPT = """
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

def relax_tvm(f):
    class Module(torch.nn.Module):
        def forward(self, *args):
            return f(*args)

    def call(*args):
        exported = tvm.compile(from_exported_program(torch.export.export(Module(), args)), target="llvm")
        given = [tvm.runtime.from_dlpack(arg.detach().contiguous()) for arg in args]
        main = relax.VirtualMachine(exported, tvm.cpu())["main"]
        results = [torch.from_dlpack(one) for one in main(*given)]
        return results[0] if len(results) == 1 else tuple(results)

    return call
""".strip()

TARGETS = {
    "tvm": Adapter(
        Target(
            "tvm",
            "Apache TVM on the CPU, through torch.export and Relax",
            compile_flat(_export),
            _refusal,
            available=requires("tvm", "tvm"),
            clauses=GRAPH_CLAUSES,
            controls=("torch-export",),
            lacks=GRAPH_LACKS,
        ),
        _SCRIPT,
        "relax_tvm(f)",
        ("apache-tvm",),
    )
}
