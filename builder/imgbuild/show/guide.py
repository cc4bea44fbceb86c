"""Formats the image's README with sizes and test results, for `imgbuild show TARGET --guide`.

The README in the image contains neither the digest and the sizes, which depend on the README, nor
test records and known issues, which are found after the digest. The guide has the README that the
next lock writes, with corrections since the last one.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence

import msgspec

from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.model import Target
from imgbuild.show.page import PageImage, TargetPage, image_gpus
from imgbuild.smoke.records import RecordedRun, equal_image, run_summary
from imgbuild.system import quoting
from imgbuild.system.amounts import size_text

WIDTH = 100
COMPOSE = " --format compose "
# Packages whose server has the OpenAI API, with the port in the image's README and a command whose
# server accepts connections from outside of the container.
SERVERS = {
    "vllm": (8000, "vllm serve MODEL"),
    "sglang": (30000, "python -m sglang.launch_server --model-path MODEL --host 0.0.0.0"),
}
SLURM = "imgbuild slurm "
PAGE = " (docs/reference/test-runs.md)"  # of the repository; an installed tool has --tests
KUBERNETES = ("imgbuild push ", "imgbuild render ")
CORRECTED = "/opt/imgbuild/README in the image is older than this page, which corrects it."
PULL = "docker pull "  # the start of the command that pulls an image from a registry
ADDITION = re.compile(r"## Add a package\n.*?(?=\n## |\Z)", re.DOTALL)


class TargetGuide(msgspec.Struct, frozen=True, kw_only=True):
    """The current README for an image with its known issues, and the page of the target.

    `corrects_image` is set if the README in the image differs, because it was locked earlier.
    """

    readme: str
    page: TargetPage
    corrects_image: bool = False


def image_readme(text: str, lock: Lock, target: Target) -> str:
    """Return the README `text` of the image of `lock`, with the known issues of the row `target`.

    In an image without `user_packages`, only root can use pip.
    """
    if lock.settings.user_packages is not True:
        addition = (
            "## Add a package\n\n"
            "The environment belongs to root, and pip in this image has no folder for other users."
            f"\nimgbuild init --extends {lock.target}, then imgbuild add PACKAGE, make an image"
            " with it.\n"
        )
        text = ADDITION.sub(lambda _: addition, text)
    issues = [line for issue in target.known_issues for line in _item(" ".join(issue.split()))]
    return "\n".join([text.rstrip("\n"), *(["", "## Known issues", "", *issues] if issues else [])])


def guide_lines(guide: TargetGuide) -> Iterator[str]:
    """Yield the guide as Markdown with 100 columns. Only commands and digests can be longer."""
    page = guide.page
    yield from guide.readme.split("\n")
    yield from ("", "## Image", "")
    if page.digest:
        yield from (f"    {page.digest}", "")
    if guide.corrects_image:
        yield from (CORRECTED, "")
    for image in page.images:
        yield from _item(f"{image.arch}: {'; '.join(_facts(image))}")
    for arch, reason in page.row.exclude.items():
        yield from _item(f"{arch}: not available, {reason}")
    if pulls := [command for command in page.commands if command.startswith(PULL)]:
        yield from ("", *(f"    {command}" for command in pulls))
    yield from _commands(page)
    yield from ("", "## Tests", "")
    if page.row.tested:
        tested = page.row.tested.replace(PAGE, "")
        yield from (*textwrap.wrap(tested, WIDTH, break_on_hyphens=False), "")
    for image in page.images:
        if not image.runs:
            yield from _item(f"{image.arch}: no test record for this digest")
        for run in image.runs:
            other = f"; {equal_image(run.digest)}" if run.digest != image.digest else ""
            yield from _item(f"{image.arch}, {_run_text(run)}{other}")
    if any(image.runs for image in page.images):
        cases = f"imgbuild show {shlex.quote(page.row.target)} --tests"
        yield from ("", "Skipped cases and their reasons:", "", f"    {cases}")


def _commands(page: TargetPage) -> Iterator[str]:
    """Yield the commands to run the image with an engine, on a Slurm cluster and in Kubernetes."""
    if compose := [command for command in page.commands if COMPOSE in command]:
        name = shlex.quote(page.row.target)
        yield from ("", "With Docker (add --dry-run to print the command for the engine):", "")
        yield f"    imgbuild load {name}"
        yield f"    imgbuild run {name} --gpus all -- python train.py"
        yield from (
            f"    imgbuild run {name} --gpus all --publish {port} -- {command} --port {port}"
            for engine, (port, command) in SERVERS.items()
            if engine in page.row.pins
        )
        yield from (f"    {command}" for command in compose)
    if clusters := [command for command in page.commands if command.startswith(SLURM)]:
        sif = f"imgbuild build {shlex.quote(page.row.target)} --format sif"
        yield from ("", "On a Slurm cluster, with Apptainer:", "", f"    {sif}")
        yield from (f"    {command}" for command in clusters)
        yield "    sbatch job.sh"
    if pods := [
        command
        for command in page.commands
        if command.startswith(KUBERNETES) and COMPOSE not in command
    ]:
        yield from ("", "In Kubernetes, with the claims in job.yaml:", "")
        yield from (f"    {command}" for command in pods)
        yield "    kubectl apply -f job.yaml"


def _facts(image: PageImage) -> Sequence[str]:
    """Return the download size, the size on disk, and the requirements on the host."""
    needs = [f"NVIDIA driver {image.driver}"] if image.driver else []
    needs += [f"glibc {image.glibc}"] if image.glibc else []
    needs += [f"one of the GPUs {gpus}"] if (gpus := image_gpus(image)) else []
    return (
        f"{size_text(image.size)} to download, {size_text(image.unpacked)} unpacked",
        *([f"needs at least {', '.join(needs)}"] if needs else []),
    )


def _run_text(run: RecordedRun) -> str:
    """Return the tier, machine, date and numbers of cases of a run, and the first failure."""
    failure = (
        f"; {quoting.code_span(f'{run.first.case}: {run.first.message}')}" if run.first else ""
    )
    cases = f"{run.passed} passed, {run.failed} failed, {run.skipped} skipped"
    return f"{run_summary(run)}: {cases}{failure}"


def _item(text: str) -> list[str]:
    return textwrap.wrap(
        f"- {text}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
