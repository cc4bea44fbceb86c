"""Decides whether a failed command in a script explains a later exception.

The script continues after the command, and what it should have started, written or activated is
missing.
"""

# A separate module: compares two texts.
from __future__ import annotations

import re

UNREACHABLE = re.compile(
    r"(?i)connection refused|can(?:'t|not) be reached|failed to (?:connect|establish a new)|"
    r"max retries exceeded|server (?:is )?not (?:running|reachable|ready)|"
    r"could not find any running ray"
)
# Programs that start servers; others, such as nvidia-smi, may fail without effect.
SERVERS = re.compile(
    r"\b(?:vllm|sglang|trl|ray|swift|lmdeploy|ollama|uvicorn|docker|podman|apptainer|singularity|"
    r"torchrun|accelerate|python\d?|srun|tritonserver|launch_server|api_server|serve)\b"
)
PATH = re.compile(
    r"(?:No such file or directory|does not exist|not found)\b.{0,20}?['\"](?P<path>/[^'\"]+)"
)
MODULE = re.compile(r"(?:ModuleNotFoundError|ImportError): No module named")
ACTIVATES = re.compile(
    r"\b(?:conda|mamba|micromamba|module|virtualenv|pyenv|activate)(?:: |['\"]|$)|Lmod|"
    r"EnvironmentLocation"
)
DOWNLOADS = re.compile(
    r"^(?:\S{1,200}: )?(?:curl|wget|git|hf|huggingface-cli|aws|gsutil|rclone|rsync|scp)\b"
)
FOLDER = re.compile(r"(?<![\w.])/[\w.+@/-]*\w")
LEAST_NAME = 4  # characters of a file's name


def leads_to(text: str, later: str) -> bool:
    """Whether the failed command in the line `text` explains the exception `later`."""
    if UNREACHABLE.search(later):
        return SERVERS.search(text) is not None and not UNREACHABLE.search(text)
    if MODULE.search(later):
        return ACTIVATES.search(text) is not None
    match = PATH.search(later)
    if match is None:
        return False
    path = match["path"].rstrip("/")
    name = path.rpartition("/")[2]
    named = len(name) >= LEAST_NAME and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)
    if named or DOWNLOADS.match(text):
        return True
    folders = (each.rstrip("/") for each in FOLDER.findall(text))
    return any(path.startswith(f"{folder}/") for folder in folders)
