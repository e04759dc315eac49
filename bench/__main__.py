"""`python -m bench COMMAND`: measure, and print tables."""

from __future__ import annotations

import argparse
import sys
from types import ModuleType

import torch

from bench.compiler import (
    architectures,
    cache,
    call_overhead,
    compile_time,
    guards,
    heap_size,
    inductor,
    memory,
    opinfo,
    partition,
    programs,
    replay_graphs,
    scaling,
    startup,
)
from bench.fuzzer import (
    bisection,
    bucket_purity,
    detection,
    mutmut,
    nnsmith,
    operator_coverage,
    reach,
    throughput,
)
from bench.report import emit

# Each has a docstring that says what it measures, `configure(parser)` and `measure(options) -> tables`; one
# that can fail has `status(tables)`, too.
COMMANDS: dict[str, ModuleType] = {
    "architectures": architectures,
    "bisection": bisection,
    "cache": cache,
    "calls": call_overhead,
    "compile": compile_time,
    "fuzz": throughput,
    "guards": guards,
    "inductor": inductor,
    "memory": memory,
    "mutants": mutmut,
    "nnsmith": nnsmith,
    "objects": heap_size,
    "operators": operator_coverage,
    "opinfo": opinfo,
    "partition": partition,
    "power": detection,
    "programs": programs,
    "purity": bucket_purity,
    "reach": reach,
    "replay_graphs": replay_graphs,
    "scale": scaling,
    "start": startup,
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        first_line = (module.__doc__ or "").splitlines()[0]
        one = commands.add_parser(name, help=first_line, description=module.__doc__)
        one.add_argument("--json", action="store_true", help="print one JSON object")
        module.configure(one)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    module = COMMANDS[options.command]
    tables = module.measure(options)
    emit(options.command, tables, options.json)
    status: int = module.status(tables) if hasattr(module, "status") else 0
    return status


if __name__ == "__main__":
    sys.exit(main())
