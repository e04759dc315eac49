"""First compile: run a case in a fresh process, in which nothing was compiled before.

Workers of a campaign are forked from a process in which each target has compiled something (`Target.warm`).
And a case with two threads first runs in one thread. So a campaign shows neither bugs of a process's first
compile, nor bugs of two threads that compile first. A case takes seconds here.

    execute_first(program, "aot-compile").outcome
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

from fuzz.corpus import buckets
from fuzz.execute.call import Result
from fuzz.execute.case import execute
from fuzz.program.decode import Program, from_json, to_json
from fuzz.targets.catalog import find_target

SECONDS = 120.0  # for one case, with the import of torch and the start of a compiler
_RESULT = "result: "  # begins the line with the result; a compiler may print other lines


def in_two_threads(program: Program) -> Program:
    """The program with its first call in two threads at once."""
    return replace(program, scenario=replace(program.scenario, threads=True))


def execute_first(program: Program, target: str, *, seconds: float = SECONDS) -> Result:
    """Run one case as the first compile of a process, in two threads at once if the program says so.

    `target` is a name for `fuzz.targets.catalog.find_target`. A process that dies, or takes longer than
    `seconds`, is a finding.
    """
    command = [sys.executable, "-m", "fuzz.execute.first_compile", target]
    text = json.dumps(to_json(program))
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        finding = buckets.death("timeout", f"no answer in {seconds:.0f} s", "")
        return Result("finding", (finding,), str(finding))
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_RESULT):
            return Result.from_json(json.loads(line.removeprefix(_RESULT)))
    finding = buckets.death("crash", f"exit status {done.returncode}", done.stderr)
    return Result("finding", (finding,), str(finding))


def main() -> None:
    """Run the case that is read from stdin on the named target, and print its result."""
    target = find_target(sys.argv[1])
    program = from_json(json.loads(sys.stdin.read()))
    target.prepare()
    result = execute(program, target, first=True)
    print(f"{_RESULT}{json.dumps(result.to_json())}")


if __name__ == "__main__":
    main()
