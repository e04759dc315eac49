"""Remote runner: run programs under another interpreter, or under two of them at once.

    with RemoteRunner(interpreter, environment, configuration, log) as runner:
        runner.run(program, "torch-aot-eager").signature

`RemoteRunner` is the client of `program_server`. `PairedRunner` shows a difference only if the other torch
still does what it did on the original case. So a reduction with it ends in a program that distinguishes the
two.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from fuzz.campaign.configuration import Configuration
from fuzz.campaign.records import RunOutcome, run_from_json
from fuzz.campaign.torch_pair.transitions import outcome_word
from fuzz.corpus.case_file import finding_to_json
from fuzz.errors import PoolError, WorkersLost
from fuzz.interpreters import Interpreter
from fuzz.program.decode import Program, to_json
from oracles import Finding

SERVER = "fuzz.campaign.torch_pair.program_server"
_END_SECONDS = 20.0


class RemoteRunner:
    """Runs programs in workers under one interpreter. Any thread may use it."""

    def __init__(
        self,
        interpreter: Interpreter,
        environment: Mapping[str, str],
        configuration: Configuration,
        log: Path,
    ) -> None:
        """Start the process. `log` gets its stderr.

        Raises:
            PoolError: no worker starts under the interpreter.
        """
        self.limit = configuration.limit
        self.interpreter = interpreter
        self._log = log
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._next = 0
        self._closed = False
        command = [str(interpreter.python), "-P", "-m", SERVER, "--jobs", str(configuration.jobs)]
        command += ["--limit", str(configuration.limit), "--device", configuration.device]
        command += [word for target in configuration.targets for word in ("--target", target)]
        with log.open("wb") as errors:
            # In a session of its own it gets no Ctrl-C. This process gets it, and ends that one.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env=dict(environment),
                start_new_session=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests: IO[str] = self._process.stdin
        self._answers: IO[str] = self._process.stdout
        if not self._answers.readline():
            self.close()
            raise PoolError(f"no worker starts under {interpreter.python}: {self._last_words()}")
        self._reader = threading.Thread(target=self._read_answers, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process. Threads that wait for an answer get WorkersLost."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._requests.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def begin(self, program: Program, target: str, *, limit: float | None = None) -> None:
        """Nothing is run ahead of its being asked for."""

    def run(
        self, program: Program, target: str, *, fresh: bool = False, limit: float | None = None
    ) -> RunOutcome:
        """Run a program on a target and wait for it.

        Raises:
            WorkersLost: the process has ended.
        """
        request = {"kind": "run", "program": to_json(program), "target": target}
        return run_from_json(self._ask_server({**request, "fresh": fresh, "limit": limit})["run"])

    def shows(self, text: str, finding: Finding) -> bool:
        """Whether a repro script shows its difference there."""
        request = {"kind": "shows", "text": text, "finding": finding_to_json(finding)}
        return bool(self._ask_server(request)["shows"])

    def handle(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Handle an item of `handlers`. The result has a `value`, or `died` or `failed` with the reason."""
        return self._ask_server({"kind": "item", "item": item}, failing=False)

    def _ask_server(self, request: dict[str, Any], *, failing: bool = True) -> dict[str, Any]:
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._closed:
                raise self._lost()
            number, self._next = self._next, self._next + 1
            self._waiting[number] = future
            try:
                self._requests.write(json.dumps({"id": number, **request}) + "\n")
                self._requests.flush()
            except OSError as error:
                raise self._lost() from error
        answer = future.result()
        if failing and "failed" in answer:
            raise PoolError(f"the fuzzer failed under {self.interpreter.python}:\n{answer['failed']}")
        return answer

    def _read_answers(self) -> None:
        for line in self._answers:
            answer = json.loads(line)
            with self._lock:
                future = self._waiting.pop(answer.pop("id"))
            future.set_result(answer)
        with self._lock:
            self._closed = True
            left, self._waiting = self._waiting, {}
        for future in left.values():
            future.set_exception(self._lost())

    def _lost(self) -> WorkersLost:
        return WorkersLost(f"the workers under {self.interpreter.python} have ended: {self._last_words()}")

    def _last_words(self) -> str:
        """The last line of the process's stderr, and the file with the rest."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{lines[-1]} ({self._log})" if lines else f"it said nothing ({self._log})"


class PairedRunner:
    """Runs programs under `own`. A difference counts only if `other` still gives `expected`.

    With it `fuzz.campaign.investigate.investigate` reduces a difference between the two versions. It slips
    neither to a difference that both have, nor to one that the other has in another way.
    """

    def __init__(self, own: RemoteRunner, other: RemoteRunner, expected: RunOutcome) -> None:
        self.limit = own.limit
        self._own = own
        self._other = other
        self._expected = expected

    def begin(self, program: Program, target: str, *, limit: float | None = None) -> None:
        """Nothing is run ahead of its being asked for."""

    def run(
        self, program: Program, target: str, *, fresh: bool = False, limit: float | None = None
    ) -> RunOutcome:
        """The outcome of a program under `own`; poisoned if `other` does not give `expected` any more."""
        seen = self._own.run(program, target, fresh=fresh, limit=limit)
        if not seen.signature:
            return seen
        there = self._other.run(program, target, fresh=fresh, limit=limit)
        if (there.outcome, there.signature) == (self._expected.outcome, self._expected.signature):
            return seen
        reason = f"torch {self._other.interpreter.torch} does not do as in the case: {outcome_word(there)}"
        return replace(seen, outcome="poisoned", signature="", findings=(), reason=reason, kind="")

    def shows(self, text: str, finding: Finding) -> bool:
        """Whether a repro script shows its difference under `own`, and not under `other`."""
        if not self._own.shows(text, finding):
            return False
        return bool(self._expected.signature) or not self._other.shows(text, finding)
