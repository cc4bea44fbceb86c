"""Checks the requirements of packages with `pip check`, except for entries in allowed.json."""

from __future__ import annotations

import subprocess
import sys

from smoke_support import allowed, finish


def main() -> None:
    """Report every line of `pip check` that allowed.json does not accept."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, sep="")
    if done.returncode not in (0, 1) or not done.stdout.strip():
        finish([(done.stderr.strip().splitlines() or ["pip check printed nothing"])[-1]], "")
    broken = set() if done.returncode == 0 else set(done.stdout.strip().splitlines())
    waived = {entry["error"]: entry["reason"] for entry in allowed("requirements")}
    problems = sorted(broken - waived.keys())
    idle = sorted(waived.keys() - broken)
    problems += [f"allowed.json waives {text!r}, but pip does not report it" for text in idle]
    for text in broken & waived.keys():
        print(f"allowed: {text}: {waived[text]}")
    finish(problems, f"pip check passed; {len(broken & waived.keys())} waived")


if __name__ == "__main__":
    main()
