"""Tests the output, JSON and exit statuses of `imgbuild diagnose` and `imgbuild explain`."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from imgbuild.diagnose import codes
from tests.support.inprocess_project import Command

LOG = "ImportError: cannot import name 'PPOTrainer' from 'trl' (/opt/trl/__init__.py)\n"
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def test_text_output_of_diagnose_has_cause_log_lines_and_cure(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "run.log").write_text(LOG)
    answer = command("diagnose", str(tmp_path / "run.log"))
    assert answer.status == 0
    assert answer.stdout.splitlines() == [
        "IMG902 trl 0.29.0 removed trl.PPOTrainer (high confidence)",
        f"  1: {LOG.strip()}",
        (
            "  cure: from trl.experimental.ppo import PPOTrainer (trl>=0.26.0,<1.13.0), or install"
            " trl<0.29.0"
        ),
    ]


def test_diagnose_names_the_command_that_lists_the_images_of_a_cure(
    command: Command, tmp_path: Path
) -> None:
    log = "ImportError: cannot import name 'GuidedDecodingParams' from 'vllm.sampling_params'\n"
    (tmp_path / "run.log").write_text(log)
    answer = command("diagnose", str(tmp_path / "run.log"))
    assert "run: imgbuild list --with 'vllm>=0.10,<=0.11.2'" in answer.stderr
    assert command("list", "--with", "vllm>=0.10,<=0.11.2").status == 0


def test_consequences_are_in_the_last_line_and_in_json(command: Command, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(f"{LOG}{CHILD}\n")
    answer = command("diagnose", str(tmp_path / "run.log"))
    last = "also in the log, as a consequence: IMG550 A launcher reports a failed process"
    assert answer.stdout.splitlines()[3:] == [last]
    answer = command("diagnose", "--json", str(tmp_path / "run.log"))
    (finding,) = json.loads(answer.stdout)["consequences"]
    assert (finding["code"], finding["lines"]) == ("IMG550", [{"number": 2, "text": CHILD}])
    answer = command("diagnose", "--short", str(tmp_path / "run.log"))
    assert len(answer.stdout.splitlines()) == 1


def test_json_output_of_diagnose_has_the_findings(command: Command, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(LOG)
    (finding,) = json.loads(command("diagnose", "--json", str(tmp_path / "run.log")).stdout)[
        "findings"
    ]
    assert set(finding) == {"code", "cause", "lines", "cure", "confidence"}
    assert finding["lines"] == [{"number": 1, "text": LOG.strip()}]


@pytest.mark.parametrize("words", [("diagnose",), ("diagnose", "-"), ("diagnose", "-", "-")])
def test_diagnose_reads_stdin(
    command: Command, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "run.log").write_text(LOG)
    with (tmp_path / "run.log").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert command(*words).stdout.startswith("IMG902 ")


def test_json_of_a_log_with_unpaired_surrogates_is_valid(command: Command, tmp_path: Path) -> None:
    record = {"level": "ERROR", "message": f"{LOG.strip()} \ud800"}
    (tmp_path / "run.log").write_text(json.dumps(record))
    answer = json.loads(command("diagnose", "--json", str(tmp_path / "run.log")).stdout)
    assert "\ud800" in answer["findings"][0]["lines"][0]["text"]


def test_diagnose_without_findings_suggests_which_data_to_collect(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "run.log").write_text("step 1 loss 0.2\n")
    answer = command("diagnose", str(tmp_path / "run.log"))
    assert answer.status == 0
    assert answer.stdout.startswith("no failure found\n")
    assert "imgbuild doctor --collect" in answer.stdout
    answer = command("diagnose", "--json", str(tmp_path / "run.log"))
    assert json.loads(answer.stdout) == {"findings": []}


def test_unreadable_log_is_an_error(command: Command, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\x7fELF\x01\x02\x03" * 400)
    for path in (tmp_path / "absent", tmp_path / "binary"):
        answer = command("diagnose", str(path))
        assert answer.status == 2
        assert str(path) in answer.stderr


def test_explain_command_prints_cause_cure_and_example(command: Command) -> None:
    answer = command("explain", "img504")
    assert answer.stdout.startswith("IMG504: The wheels have no code for this GPU\n")
    assert "Cure: " in answer.stdout
    assert "no kernel image is available" in answer.stdout
    assert json.loads(command("explain", "IMG901", "--json").stdout)["title"]


def test_explain_command_prints_a_cure_for_every_finding_in_code(command: Command) -> None:
    for code, explanation in codes.all_explanations().items():
        if int(code[3:]) < 500:
            assert "\n\nCure: " in explanation.text, code
    answer = command("explain", "102")
    assert answer.stdout.startswith("IMG102: An unexpected keyword argument\n")
    assert "\nCure: use the name that the message suggests" in answer.stdout


def test_explain_command_suggests_the_nearest_code(command: Command) -> None:
    answer = command("explain", "IMG5040")
    assert answer.status == 2
    assert "no finding has the code" in answer.stderr


def test_diagnose_reads_a_log_from_a_pipe(command: Command, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(LOG,))
    writer.start()
    answer = command("diagnose", str(pipe))
    writer.join()
    assert answer.stdout.startswith("IMG902 ")
