"""Program server: a process under one interpreter that runs programs in a pool for another process.

Requests and answers are lines of JSON with the `id` of the request. Answers come in any order:

    {"id": 1, "kind": "run", "program": {...}, "target": "aot", "fresh": false, "limit": null}
    {"id": 1, "run": {...}}                                  # records.run_to_json
    {"id": 2, "kind": "shows", "text": "import torch...", "finding": {...}}
    {"id": 2, "shows": true}
    {"id": 3, "kind": "item", "item": {...}}                 # handlers: what eager does
    {"id": 3, "value": ...}                                  # or "died": in words, or "failed": a traceback

The first line that it writes is `{"ready": true}`. It ends when its input ends.

    python -m fuzz.campaign.torch_pair.program_server --jobs 2 --limit 30 --device cpu --target aot
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any, TextIO

from fuzz.campaign.devices import gpu_names
from fuzz.campaign.investigate import Runner, serve_pool_during
from fuzz.campaign.records import run_to_json
from fuzz.campaign.workers import handlers
from fuzz.campaign.workers.pool import Pool
from fuzz.campaign.workers.protocol import Answer, Death
from fuzz.corpus.case_file import finding_from_json
from fuzz.program.decode import from_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve standard input until it ends."""
    parser = argparse.ArgumentParser(description="Run programs for another process; see the module.")
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--limit", type=float, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--target", action="append", default=[])
    options = parser.parse_args(arguments)
    # Text that torch or a target prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with Pool(
        handlers.HANDLER, jobs=options.jobs, warm=options.target, gpus=gpu_names(options.device)
    ) as pool:
        runner = Runner(pool, options.limit)
        serve_pool_during(pool, lambda: serve_requests(sys.stdin, answers, runner, options.jobs))
    return 0


def serve_requests(requests: TextIO, answers: TextIO, runner: Runner, at_once: int) -> None:
    """Answer all requests, `at_once` of them at a time. When the input ends, stop those that are running."""
    lock = threading.Lock()

    def write_answer(answer: dict[str, Any]) -> None:
        with lock:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

    def serve_request(request: dict[str, Any]) -> None:
        try:
            answer = _answer_request(request, runner)
        except CancelledError:
            return
        except Exception:
            answer = {"failed": traceback.format_exc()}
        write_answer({"id": request["id"], **answer})

    write_answer({"ready": True})
    with ThreadPoolExecutor(at_once) as threads:
        for line in requests:
            threads.submit(serve_request, json.loads(line))
        runner.cancel()
        threads.shutdown(cancel_futures=True)


def _answer_request(request: dict[str, Any], runner: Runner) -> dict[str, Any]:
    match request["kind"]:
        case "run":
            program, target = from_json(request["program"]), request["target"]
            seen = runner.run(program, target, fresh=request["fresh"], limit=request["limit"])
            return {"run": run_to_json(seen)}
        case "shows":
            return {"shows": runner.shows(request["text"], finding_from_json(request["finding"]))}
        case "item":
            event = runner.ask(request["item"])
            if isinstance(event, Answer):
                return {"value": event.value}
            return {"died": event.cause} if isinstance(event, Death) else {"failed": event.text}
        case kind:
            raise ValueError(f"no request of kind {kind!r}")


if __name__ == "__main__":
    sys.exit(main())
