"""Tests that a failed command of a script is the cause of what is missing later."""

from __future__ import annotations

import io

from imgbuild.diagnose.diagnosis import diagnose_log
from tests.support.rows import each_row

TRACE = (
    'Traceback (most recent call last):\n  File "/home/pump/job/train.py", line 9, in <module>\n'
)
REFUSED = (
    f"{TRACE}    get(URL)\n"
    "requests.exceptions.ConnectionError: HTTPConnectionPool(host='localhost', port=8000): Max"
    " retries exceeded with url: /health (Caused by NewConnectionError('Failed to establish a new"
    " connection: [Errno 111] Connection refused'))\n"
)
NO_MODULE = f"{TRACE}    import torch\nModuleNotFoundError: No module named 'torch'\n"
NO_FILE = (
    f"{TRACE}    open(path)\n"
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/pump/train.json'\n"
)
NO_LOSS = (
    f"{TRACE}    trainer.train()\n"
    "ValueError: The model did not return a loss from the inputs, only the following keys: logits\n"
)


@each_row(
    ("line", "later", "cause"),
    [
        ("serve.sh: line 3: vllm: command not found", REFUSED, "the program vllm is not on PATH"),
        ("vllm: error: unrecognized arguments: --pump", REFUSED, "no option --pump"),
        ("serve.sh: line 4:  4121 Killed    vllm serve acme/pump", REFUSED, "was killed"),
        ("job.sh: line 2: conda: command not found", NO_MODULE, "the program conda is not"),
        ("job.sh: line 2: /v/bin/activate: No such file or directory", NO_MODULE, "activate"),
        ("cp: cannot stat '/nfs/train.json': No such file or directory", NO_FILE, "cannot stat"),
        ("mkdir: cannot create directory '/data': Permission denied", NO_FILE, "mkdir"),
        ("wget: unable to resolve host address 'files.example'", NO_FILE, "wget failed"),
        # What the command did does not concern the later failure.
        ("job.sh: line 2: conda: command not found", NO_LOSS, "the batches have no labels"),
        ("cp: cannot stat '/nfs/pump.png': No such file or directory", NO_FILE, "train.json does"),
        (
            "fatal: not a git repository (or any of the parent directories): .git",
            REFUSED,
            "nothing answers at localhost:8000",
        ),
        ("mkdir: cannot create directory '/out': File exists", NO_LOSS, "the batches have no"),
    ],
)
def test_failed_command_is_the_cause_of_what_it_should_have_made(
    line: str, later: str, cause: str
) -> None:
    result = diagnose_log(io.BytesIO(f"{line}\nwaiting for it\n{later}".encode()), "log")
    assert cause in result.findings[0].cause
