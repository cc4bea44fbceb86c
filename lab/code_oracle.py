#!/usr/bin/env python3
"""Measures true findings and missed failures of `imgbuild audit --code` by running Python.

`environment` installs the packages of a target for the CPU. `audit` audits files for a target.
`findings` draws a random sample of findings and checks the names in them with Python. `failures`
draws a random sample of failures and searches for them in the findings: code_probe.py, which shares
no code with the audit, resolves the imports, attributes and calls of the files with the installed
modules. Missing packages do not count as failures.

    code_oracle.py environment cu124-trl0.17 /tmp/old
    code_oracle.py audit cu124-trl0.17 examples --output old.json
    code_oracle.py findings old.json --python /tmp/old/bin/python --seed 1
    code_oracle.py failures old.json --python /tmp/old/bin/python --seed 1
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from imgbuild.system import uv_program

LAB = Path(__file__).resolve().parent
IMGBUILD = Path(sys.executable).with_name("imgbuild")
PYTHON = "3.11"
# Packages that need a GPU, or must match the target's torch.
EXCLUDED_PACKAGES = (
    *("nvidia-", "cuda-", "cupy-", "flashinfer", "xformers", "tilelang", "bitsandbytes"),
    *("torchvision", "torchaudio", "torchcodec", "deepspeed"),
)
PARTS = ("file", "line", "code", "severity", "message", "remedy", "evidence")

Values = dict[str, Any]


def create_environment(target: str, folder: Path, torch: str) -> None:
    """Create a virtual environment with `torch` and the target's wheels that work on a CPU."""
    shown = _run_command([str(IMGBUILD), "show", target, "--packages", "--json"])
    wheels: dict[str, str] = json.loads(shown)[0]["wheels"]
    pins = [
        f"{name}=={version}"
        for name, version in wheels.items()
        if name != "torch" and not name.startswith(EXCLUDED_PACKAGES)
    ]
    uv = uv_program.uv_path()
    _run_command([uv, "venv", "--quiet", "--python", PYTHON, str(folder)])
    python = str(folder / "bin" / "python")
    links = os.environ.get("PIP_FIND_LINKS", "")
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--link-mode", "hardlink"]
    install += ["--python", python, *(["--find-links", links] if links else [])]
    _run_command([*install, f"torch=={torch}", *pins])


def audit_paths(arguments: list[str], paths: list[Path], output: Path) -> None:
    """Write the errors and warnings of a separate audit of each path as JSON."""
    entries = []
    for path in paths:
        command = [str(IMGBUILD), "audit", *arguments, "--arch", "x86_64", "--json"]
        done = subprocess.run(
            [*command, "--code", str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 4):
            sys.exit(f"{path}: {done.stderr}")
        findings = [
            {part: finding.get(part) for part in PARTS}
            for report in json.loads(done.stdout)
            for finding in report["findings"]
            if finding.get("code") and finding["severity"] != "note"
        ]
        counts = Counter(each["severity"] for each in findings)
        print(f"{path}: {counts['error']} errors, {counts['warning']} warnings")
        entries.append({"path": str(path.resolve()), "findings": findings})
    output.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


def draw_findings(results: Path, python: str, seed: int, count: int) -> None:
    """Draw findings, and print whether Python confirms each of them: true, false or untried."""
    every = [
        each | {"file": str(_place(entry, each["file"]))}
        for entry in json.loads(results.read_text(encoding="utf-8"))
        for each in entry["findings"]
    ]
    every.sort(key=lambda each: (each["file"], each["line"], each["message"]))
    drawn = random.Random(seed).sample(every, min(count, len(every)))  # noqa: S311
    verdicts = json.loads(_run_probe(python, "findings", drawn))
    for finding, (verdict, why) in zip(drawn, verdicts, strict=True):
        place = f"{finding['file']}:{finding['line']}"
        print(f"{verdict:8}{finding['code']} {finding['severity']} {place}: {finding['message']}")
        print(f"        {why}")
    print(len(every), "findings,", dict(Counter(verdict for verdict, _ in verdicts)))


def draw_failures(results: Path, python: str, seed: int, count: int) -> None:
    """Draw failures in Python, and print which of them the audit reports for the same line."""
    entries = json.loads(results.read_text(encoding="utf-8"))
    lines = {
        (str(_place(entry, each["file"])), each["line"])
        for entry in entries
        for each in entry["findings"]
    }
    failures = json.loads(_run_probe(python, "failures", [entry["path"] for entry in entries]))
    failures.sort()
    drawn = random.Random(seed).sample(failures, min(count, len(failures)))  # noqa: S311
    hits = 0
    for file, line, last, why in drawn:
        hit = any((file, each) in lines for each in range(line, last + 1))
        hits += hit
        print(f"{'found' if hit else 'missed':8}{file}:{line}: {why}")
    print(f"{hits} of {len(drawn)} found; Python has {len(failures)} failures")


def _place(entry: Values, file: str) -> Path:
    path = Path(entry["path"])
    return path if path.is_file() else Path(file).resolve()


def _run_probe(python: str, what: str, questions: Any) -> str:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [python, str(LAB / "code_probe.py"), what],
        input=json.dumps(questions),
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout.splitlines()[-1]


def _run_command(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])}: {done.stderr}")
    return done.stdout


def main() -> None:
    """Parse the arguments and run the selected command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("environment", help="install a target's packages for the CPU")
    verb.add_argument("target")
    verb.add_argument("folder", type=Path)
    verb.add_argument(
        "--torch",
        default="2.13.0+cpu",
        help="CPU build of torch (default: %(default)s)",
    )
    verb = verbs.add_parser("audit", help="audit files for a target")
    verb.add_argument("target", help="target, or quoted options of `imgbuild audit`")
    verb.add_argument("paths", type=Path, nargs="+")
    verb.add_argument("--output", type=Path, required=True)
    for name, count in (("findings", 40), ("failures", 20)):
        verb = verbs.add_parser(name, help=f"draw a random sample of {name}")
        verb.add_argument("results", type=Path, help="output file of the audit command")
        verb.add_argument("--python", required=True, help="Python interpreter of the environment")
        verb.add_argument("--seed", type=int, required=True)
        verb.add_argument("--count", type=int, default=count)
    given = parser.parse_args()
    match given.verb:
        case "environment":
            create_environment(given.target, given.folder, given.torch)
        case "audit":
            audit_paths(given.target.split(), given.paths, given.output)
        case "findings":
            draw_findings(given.results, given.python, given.seed, given.count)
        case "failures":
            draw_failures(given.results, given.python, given.seed, given.count)


if __name__ == "__main__":
    main()
