"""torch.export and `ExportedProgram.run_decompositions`, which every exporter uses, for each call anew.

The result is a module that runs in eager. A program that torch.export cannot export is a refusal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuzz.targets.adapters.adapter import Adapter
from fuzz.targets.adapters.flat_calls import compile_flat
from fuzz.targets.clause_sets import clauses_of
from fuzz.targets.target import Function, Target

if TYPE_CHECKING:
    import torch


class NotExportedError(Exception):
    """torch.export has raised."""


def _export(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> Function:
    import torch

    try:
        program = torch.export.export(module, arguments)
    except Exception as error:
        raise NotExportedError(f"{type(error).__name__}: {error}") from error
    exported: Function = program.run_decompositions().module()
    return exported


def _refusal(error: BaseException) -> str | None:
    return "not exported" if isinstance(error, NotExportedError) else None


_SCRIPT = """
def export(f):
    class Module(torch.nn.Module):
        def forward(self, *args):
            return f(*args)

    return lambda *args: torch.export.export(Module(), args).run_decompositions().module()(*args)
""".strip()

TARGETS = {
    "torch-export": Adapter(
        Target(
            "torch-export",
            "torch.export with run_decompositions, the exported program run in eager",
            compile_flat(_export),
            _refusal,
            clauses=clauses_of(("results",), without=("repeat", "threads", "lifetime", "refusals")),
            lacks=("cuda", "python", "random", "subclass", "argument: parameter", "gradient: retained"),
        ),
        _SCRIPT,
        "export(f)",
    )
}
