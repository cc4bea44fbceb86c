#!/usr/bin/env python3
"""Tests a random sample of an audit's notes inside the image.

The seed of the sample is fixed, and the image must be built. Without GPU and network, Python in the
image checks whether the reported object is missing: it imports the module, looks up the name, reads
the signature or opens the library. A note whose test fails for another reason counts as untried.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from imgbuild.container import run_in_image
from imgbuild.container.request import ContainerRequest
from imgbuild.pipeline import audit_lock
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import Session, SessionOptions, find_built_layout, open_session
from imgbuild.report import Evidence, Finding, Severity
from imgbuild.system.console import console
from imgbuild.values import Arch

SEED = 3
NUMBER = 30
PROBE = Path(__file__).parent / "notes_probe.py"
TRUE, FALSE, UNTRIED = "true", "false", "untried"


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """The result of the test of one note, and the reason."""

    outcome: str
    why: str


def draw_sample(findings: Sequence[Finding], number: int, seed: int) -> list[Finding]:
    """Return a random sample of the notes with evidence.

    It depends only on `findings` and `seed`.
    """
    notes = [
        note for note in findings if note.severity is Severity.NOTE and note.evidence is not None
    ]
    notes.sort(key=lambda note: (note.check, note.where, note.message))
    # A reproducible draw, not a secret.
    return random.Random(seed).sample(notes, min(number, len(notes)))  # noqa: S311


def try_notes(
    session: Session, target: str, arch: Arch, notes: Sequence[Finding], through: str
) -> list[Verdict]:
    """Test each note with Python inside the image."""
    evidence = [note.evidence for note in notes if isinstance(note.evidence, Evidence)]
    questions = [{"relation": str(claim.relation), "subject": claim.subject} for claim in evidence]
    files = [claim.file for claim in evidence]
    questions = [
        {**question, "file": file} for question, file in zip(questions, files, strict=True)
    ]
    layout = find_built_layout(session, target, None)
    code = PROBE.read_text(encoding="utf-8")
    request = ContainerRequest(
        command=("python", "-c", code, json.dumps(questions)),
        workdir=run_in_image.command_config(layout, arch).workdir,
        network=False,
    )
    done = run_in_image.run_in_image(
        layout,
        arch,
        target,
        request,
        container_engine=run_in_image.choose_engine(through),
        store=open_inputs(session).store,
        capture=True,
    )
    answers = [line for line in done.stdout.splitlines() if line.startswith("VERDICTS ")]
    if not answers:
        sys.exit(f"the probe ended with status {done.status}:\n{done.stderr[-2000:]}")
    return msgspec.json.decode(answers[-1].removeprefix("VERDICTS "), type=list[Verdict])


def format_table(target: str, arch: Arch, verdicts: Sequence[Verdict]) -> list[str]:
    """Return lines with counts for the table in docs/benchmarks.md."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    answered = counts[TRUE] + counts[FALSE]
    share = f"{counts[TRUE] / answered:.0%}" if answered else "-"
    row = (f"{target} {arch}", answered, counts[TRUE], counts[FALSE], counts[UNTRIED], share)
    return [
        "| target | notes tried | true | false | untried | share |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        f"| {' | '.join(map(str, row))} |",
    ]


def main() -> None:
    """Draw a sample, test its notes, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("target")
    parser.add_argument("--arch", type=Arch.parse, default=Arch.X86_64)
    parser.add_argument("--number", type=int, default=NUMBER)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--through", choices=("docker", "podman", "root"), default="root")
    given = parser.parse_args()
    session = open_session(None, SessionOptions())
    report = audit_lock.audit_target(
        session.project, given.target, given.arch, open_inputs(session)
    )
    notes = draw_sample(report.findings, given.number, given.seed)
    verdicts = try_notes(session, given.target, given.arch, notes, given.through)
    lines = format_table(given.target, given.arch, verdicts)
    for note, verdict in zip(notes, verdicts, strict=True):
        why = f": {verdict.why}" if verdict.why else ""
        lines.append(f"- {verdict.outcome}: {note.message} ({note.where}){why}")
    console.data("\n".join(lines))


if __name__ == "__main__":
    main()
