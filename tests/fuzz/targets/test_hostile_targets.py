"""Compilers that do what no compiler does are findings, and cost neither another case nor the campaign."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuzz.campaign.investigate import run_of_event
from fuzz.campaign.records import RunOutcome
from fuzz.campaign.workers import handlers
from fuzz.campaign.workers.pool import Pool
from fuzz.campaign.workers.protocol import Job
from fuzz.cli import main
from oracles.object_names import class_name, message_of
from tests.support.fuzz.small_programs import SINE, SQUARE_OF_LEAF

HERE = Path(__file__).parents[1]
# The beginning of what is found.
FOUND = {
    "raises_half": "errors/call: RuntimeError",
    "raises_controls": "errors/call: RuntimeError",
    "raises_mute": "errors/call: tests.fuzz.hostile_targets.Mute",
    "raises_fatal": "errors/call: tests.fuzz.hostile_targets.Fatal",
    "raises_no_text": "errors/call: tests.fuzz.hostile_targets.NoText",
    "raises_nameless": "errors/call: tests.fuzz.hostile_targets.Nameless",
    "raises_renamed": "errors/call: ",
    "raises_own": "errors/call: fuzz.call.Escape Own",
    "raises_kept": "errors/call: tests.fuzz.hostile_targets.Kept",
    "raises_interrupt": "errors/call: fuzz.call.Escape KeyboardInterrupt",
    "raises_exit": "errors/call: fuzz.call.Escape SystemExit",
    "raises_close": "errors/call: fuzz.call.Escape GeneratorExit",
    "raises_memory": "errors/call: MemoryError",
    "raises_endlessly": "errors/call: RuntimeError",
    "raises_group": "errors/call: fuzz.call.Escape BaseExceptionGroup several",
    "raises_in_backward": "errors/backward: tests.fuzz.hostile_targets.Mute",
    "interrupts_backward": "errors/after the call: KeyboardInterrupt",
    "returns_itself": "structure/out",
    "returns_dict_holding_itself": "structure/out",
    "returns_raising": "structure/out",
    "returns_raising_in_tuple": "structure/out",
    "returns_raising_dict": "errors/after the call: Unobservable out, a tests.fuzz.hostile_targets.",
    "returns_raising_text": "errors/after the call: Unobservable out, a tests.fuzz.hostile_targets.",
    "returns_batched": "errors/after the call: Unobservable out, a torch.Tensor",
    "returns_closed": "structure/out",
    "returns_liar": "structure/out",
    "returns_closed_list": "errors/after the call: ",
    "returns_closed_key": "errors/after the call: Unobservable out, a dict",
    "returns_closed_tensor": "errors/after the call: ",
    "returns_exiting_tensor": "errors/after the call: SystemExit",
    "returns_elementless": "errors/after the call: Unobservable out, a tests.fuzz.hostile_targets.",
    "returns_mixed": "errors/after the call: ",
    "returns_deep": "structure/out",
    "returns_endless": "structure/out",
    "returns_half": "structure/out",
    "returns_half_key": "structure/out",
    "returns_long_text": "structure/out",
    "returns_huge_number": "errors/after the call: Unobservable out, a int",
    "returns_generator": "structure/out",
    "returns_array": "structure/out",
    "returns_meta": "values/device of out",
    "returns_fake": "errors/after the call: ",
    "returns_double": "values/dtype of out",
    "returns_freed": "",
    "returns_sparse": "values/layout of out",
    "returns_quantized": "values/dtype of out",
    "returns_huge": "errors/after the call: ",
    "returns_nothing": "structure/out",
    "returns_type": "structure/out",
    "lowers_the_limit": "ambient/the recursion limit",
    "sets_the_limit": "",
    "changes_the_folder": "ambient/the current folder",
    "closes_the_files": "ambient/standard output and error",
    "closes_all_files": "errors/call: crash",
    "closes_the_streams": "ambient/standard output and error",
    "takes_the_streams": "ambient/standard output and error",
    "replaces_sine": "ambient/torch.sin",
    "replaces_grad": "",
    "replaces_addition": "ambient/torch.Tensor.__add__",
    "replaces_len": "ambient/builtins.len",
    "replaces_isinstance": "ambient/builtins.isinstance",
    "replaces_isinstance_in_backward": "",
    "deletes_getattr": "ambient/builtins.getattr",
    "replaces_dumps": "ambient/json.dumps",
    "replaces_collect": "ambient/gc.collect",
    "replaces_catch_warnings": "ambient/warnings.catch_warnings",
    "makes_warnings_errors": "ambient/warnings.filters",
    "handles_interrupts": "ambient/the handler of SIGINT",
    "ignores_alarms": "ambient/the handler of SIGALRM",
    "blocks_signals": "ambient/the signals that are blocked",
    "empties_the_path": "ambient/sys.path",
    "detects_anomalies": "ambient/the anomaly mode of autograd",
    "leaves_a_transform": "errors/after the call: ",
    "leaves_hooks": "ambient/transforms of torch that are on",
    "sets_the_dtype": "ambient/default dtype",
    "sets_the_device": "ambient/default device",
    "leaves_a_function_mode": "ambient/modes",
    "leaves_a_mode": "ambient/modes",
    "leaves_inference_mode": "",
    "starts_threads": "lifetime/threads that a call leaves running",
    "kills_its_parent_process_group": "errors/call: crash",
    "reset_raises": "errors/reset: Mute",
    "refusal_raises": "errors/after the call: RuntimeError",
    "refusal_is_no_text": "errors/after the call: TypeError the target's refusal gives a",
}
RIGHT = {
    "starts_a_thread_once": "agree",
    "forks": "agree",
    "raises_the_limit": "agree",
    "refuses_with_half": "refused",
    "refuses_with_raising_text": "refused",
    "adds_a_filter": "agree",
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[RunOutcome]]:
    """For each target what is seen of it, of eager in the rest of its lease, and of eager later on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("hostile"))
        found: dict[str, list[RunOutcome]] = {}
        with Pool(handlers.HANDLER, jobs=2) as pool:
            work = []
            for name in (*FOUND, *RIGHT):
                names = (f"tests.fuzz.hostile_targets:{name}", "eager", "eager")
                items = tuple(handlers.program_item(SQUARE_OF_LEAF, one) for one in names)
                work.append(Job(items, 60.0, tag=name))
            for event in pool.run(work):
                found.setdefault(event.job.tag, [RunOutcome("", "", (), "", 0.0)] * 3)[event.position] = (
                    run_of_event(event)
                )
        return found


@pytest.mark.parametrize("name", FOUND)
def test_it_is_a_finding_and_costs_no_other_case(name: str, seen: dict[str, list[RunOutcome]]) -> None:
    its, *others = seen[name]
    assert (its.outcome, its.signature[: len(FOUND[name])]) == ("finding", FOUND[name]), its
    assert [one.outcome for one in others] == ["agree", "agree"], others
    for finding in its.findings:
        finding.message.encode()


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_its_right_is_none(name: str, seen: dict[str, list[RunOutcome]]) -> None:
    assert [one.outcome for one in seen[name]] == [RIGHT[name], "agree", "agree"], seen[name]


def test_a_campaign_of_such_is_reported_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = (
        "raises_half",
        "raises_controls",
        "returns_elementless",
        "leaves_a_function_mode",
        "refuses_with_half",
    )
    targets = [word for name in names for word in ("--target", f"tests.fuzz.hostile_targets:{name}")]
    command = ["run", *targets, "--target", "eager", "--jobs", "2", "--out", "found", "--json"]
    assert main([*command, "--cases", "2"]) == 1
    data = _json(capsys)
    assert data["troubles"] == []
    for name in names[:-1]:
        assert data["targets"][f"tests.fuzz.hostile_targets:{name}"]["findings"] == 2, name
    assert data["targets"]["tests.fuzz.hostile_targets:refuses_with_half"]["refused"] == 2
    assert data["targets"]["eager"]["agree"] + data["targets"]["eager"]["poisoned"] == 2
    assert main(["resume", "found", "--cases", "3", "--json"]) == 1
    assert _json(capsys)["targets"]["tests.fuzz.hostile_targets:raises_half"]["findings"] == 3
    for command in (["report", "found"], ["export", "found"], ["corpus", "list", "--corpus", "found/corpus"]):
        assert main(command) == 0
    out, err = capsys.readouterr()
    assert all(letter.isprintable() or letter in "\n\t" for letter in out + err)
    assert Path("found/report.html").read_text().count("<script") == 1, "its own alone"
    for file in Path("found/repro").iterdir():
        compile(file.read_bytes(), str(file), "exec")


def _json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_words_are_had_of_anything() -> None:
    from tests.fuzz import hostile_targets as hostile

    assert class_name(hostile.Nameless) == "tests.fuzz.hostile_targets.Nameless"
    assert class_name(hostile.Renamed) == r"\ud800"
    assert message_of(hostile.Mute()) == "(its text cannot be had: RuntimeError)"
    assert message_of(hostile.Fatal()) == "(its text cannot be had: KeyboardInterrupt)"
    assert message_of(RuntimeError("a\ud800é")) == r"a\ud800é"
    assert SINE
