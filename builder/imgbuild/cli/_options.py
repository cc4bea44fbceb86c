"""Defines the options that several commands share: names, help, choices and completion.

| option          | meaning, in every command with this option                               |
| --------------- | ------------------------------------------------------------------------ |
| --target, --all | the targets, equivalent to positional names                              |
| --arch          | the architectures                                                        |
| --through       | the engine: docker, podman, apptainer, root (`here`: no image)           |
| --builder       | the builder of the image: embedded (imgbuild itself), docker             |
| --on            | where to run the work: on this machine, or on nodes of Slurm             |
| --jobs N        | the number of parallel processes                                         |
| --gpus          | the number of GPUs, or `all`                                             |
| --check         | compare committed files with newly generated files, and write nothing    |
| --only          | the part of an image to build or push: base, wheels                      |
| --keep/--drop   | keep or remove the files that this command downloads or builds           |
| --again         | repeat work that is current or already done                              |
| --output        | where the result is written                                              |
| --key           | the public key to check signatures with                                  |
| --sign-key      | the private key to sign with                                             |
| --registry      | the repository of published images                                       |
| --mirror-only   | use only the mirror                                                      |
| --lock          | the lock to use, with digests.json in the same folder                    |
"""

from __future__ import annotations

import datetime
import enum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from imgbuild.cli._verb import CONTAINER, OUTPUT, REGISTRY, TARGETS_PANEL, OptionDefinition, option
from imgbuild.errors import ImgbuildError, InputError
from imgbuild.matrix.notes import nearest_choice
from imgbuild.matrix.project_paths import find_project
from imgbuild.system.forked import processor_count
from imgbuild.values import Arch, is_number

ThroughName = Literal["docker", "podman", "apptainer", "root", "here"]  # what runs an image
EngineName = Literal["docker", "podman", "apptainer", "root"]  # what runs any command
BuilderName = Literal[
    "embedded", "docker"
]  # imgbuild itself, or Docker from the rendered Dockerfile
ImagePart = Literal["base", "wheels"]
ExecutionPlace = Literal["local", "slurm"]


class Tier(enum.StrEnum):
    """The tiers of smoke tests."""

    STATIC = "static"
    CPU = "cpu"
    GPU = "gpu"
    MULTI_GPU = "multi-gpu"


def _arch(text: object) -> tuple[Arch, ...]:
    try:
        return tuple(Arch.parse(part.strip()) for part in str(text).split(","))
    except ValueError as error:
        names = [arch.value for arch in Arch]
        near = nearest_choice(str(text), names)
        message = f"{text!r} is not a supported architecture; expected {', '.join(names)}"
        message += f"; did you mean {near}?" if near else ""
        raise typer.BadParameter(message) from error


def _parse_arches_or_all(text: object) -> tuple[Arch | Literal["all"], ...]:
    return ("all",) if text == "all" else _arch(text)


def _parse_each(value: Any) -> list[Any] | None:
    """Join the values of a repeated option. Raises BadParameter if `all` is not the only value."""
    values = [item for part in value or () for item in part]
    if "all" in values and len(values) > 1:
        message = "all cannot be combined with another architecture"
        raise typer.BadParameter(message)
    return values or None


def _jobs(value: object) -> int:
    text = str(value)  # typer passes the default as well
    if not is_number(text):
        message = f"{text!r} is not a valid number of processes; 0 starts one per core"
        raise typer.BadParameter(message)
    return int(text)


def _parse_count(value: object) -> str:
    text = str(value)
    if text != "all" and not is_number(text):
        message = f"{text!r} is not a valid number of GPUs; expected a number or 'all'"
        raise typer.BadParameter(message)
    return text


def _factor(value: object) -> float:
    text = str(value)
    try:
        number = float(text) if text.isascii() else 0.0
    except ValueError:
        number = 0.0
    if not 0.1 <= number < float("inf"):
        message = f"{text!r} is not a valid factor; specify a number of at least 0.1"
        raise typer.BadParameter(message)
    return number


def complete_target(incomplete: str) -> list[str]:
    """Return the locked targets whose names begin with `incomplete`."""
    try:
        return [name for name in find_project(None).locked_targets() if name.startswith(incomplete)]
    except ImgbuildError:
        return []


TARGET = OptionDefinition(
    "--target -t", "Select a target by name.", metavar="NAME", panel=TARGETS_PANEL,
    autocompletion=complete_target,
)  # fmt: skip
ALL = OptionDefinition(
    "--all", "Select all targets in the matrix.", panel=TARGETS_PANEL, often=True
)
_ARCH = ("--arch", "The architecture: x86_64 (amd64) or arm64 (aarch64).")
ARCH = OptionDefinition(
    *_ARCH, metavar="ARCH", panel=TARGETS_PANEL, often=True, parser=_arch, callback=_parse_each
)
BUILD_ARCH = OptionDefinition(
    *_ARCH,
    metavar="ARCH",
    panel=TARGETS_PANEL,
    often=True,
    parser=_parse_arches_or_all,
    callback=_parse_each,
)
OUTPUT_PATH = OptionDefinition(
    "--output -o", "Write the result to this path.", metavar="PATH", often=True
)
FORMAT = OptionDefinition("--format", "The output format.", metavar="FORMAT", often=True)
THROUGH = OptionDefinition("--through", "The engine to use.", metavar="NAME", often=True)
BUILDER = OptionDefinition("--builder", "The builder to use.", often=True)
PART = OptionDefinition("--only", "Process only this part of the image: base or wheels.")
KEEP = OptionDefinition("--keep/--drop", "Keep or remove the files that this command downloads or"
                                   " builds.")  # fmt: skip
AGAIN = OptionDefinition("--again", "Repeat work even if its result is up to date.")
FULL = OptionDefinition(
    "--full", "Print the complete result instead of a summary.", panel=OUTPUT, often=True
)
CHECK = OptionDefinition(
    "--check",
    "Check that the committed files are up to date, without writing them. Exit with status 5 "
    "if a file is out of date.",
)
GPUS = OptionDefinition("--gpus", "The number of GPUs.", metavar="COUNT", often=True,
                  parser=_parse_count, setting=True)  # fmt: skip
GPU = OptionDefinition("--gpu", "A GPU model such as A100 or RTX 4090, or a compute capability "
                                "such as 9.0.",
                 metavar="GPU", panel=TARGETS_PANEL, often=True)  # fmt: skip
DRIVER = OptionDefinition(
    "--driver",
    "An NVIDIA driver version such as 580.65.06, or a driver branch such as 535 (its latest "
    "release).",
    metavar="VERSION",
    panel=TARGETS_PANEL,
    often=True,
)
ENV = OptionDefinition(
    "--env -e", "Set an environment variable. If only NAME is given, pass its value from your "
                "shell. Can be repeated.",
    metavar="NAME[=VALUE]", often=True,
)  # fmt: skip
SIF_FILE = OptionDefinition("--sif-file", "The SIF file to use.", metavar="FILE")
KEY = OptionDefinition("--key", "The public key for verifying signatures, in PEM format (P-256 or "
                                "Ed25519).",
                 metavar="FILE", often=True)  # fmt: skip
REGISTRY_PLACE = OptionDefinition(
    "--registry", "The repository with the published images.", metavar="HOST/REPOSITORY",
    panel=REGISTRY, often=True,
)  # fmt: skip
LOCK = OptionDefinition("--lock", "The lock to use.", metavar="LOCK",
                  panel=TARGETS_PANEL, often=True)  # fmt: skip
REQUIREMENTS = OptionDefinition(
    "--requirements -r",
    "Read requirements from this file, such as requirements.txt, pyproject.toml or a lock "
    "file, or from the files in this folder. Can be repeated.",
    metavar="FILE", panel=TARGETS_PANEL, often=True,
)  # fmt: skip
SOLVE = OptionDefinition("--solve", "Solve for new package versions.", often=True)
PACKAGES = OptionDefinition("--packages", "List all packages.", often=True)
PYTHON = OptionDefinition(
    "--python", "The Python version, such as 3.12.", metavar="X.Y", panel=TARGETS_PANEL
)
AS_OF = OptionDefinition(
    "--as-of", "The cut-off date of packages, such as 2025-06-20.", metavar="DATE"
)
CUDA = OptionDefinition(
    "--cuda", "The CUDA release, such as 12.8.", metavar="RELEASE", panel=TARGETS_PANEL, often=True
)
BASE = OptionDefinition(
    "--base", "The name of the base in the matrix.", metavar="NAME", panel=TARGETS_PANEL
)
SYSTEM = OptionDefinition(
    "--system", "The name of a Debian package. Can be repeated.", metavar="PACKAGE", often=True
)
DRY_RUN = OptionDefinition(
    "--dry-run", "Print the planned actions without performing them.", often=True
)
SHARED = OptionDefinition(
    "--shared", "The size of shared memory, in MB.", metavar="MB", min=0, setting=True
)
FROM = OptionDefinition("--from", "The source to read from.", metavar="SOURCE", often=True)

Arches = Annotated[
    list[Arch] | None, ARCH("Can be repeated or comma-separated. Default: all architectures.")
]
BuildArches = Annotated[
    list[Arch | Literal["all"]] | None,
    BUILD_ARCH("Can be repeated or comma-separated; 'all' selects all. Default: this machine's"
               " architecture, or the target's if it has only one."),
]  # fmt: skip
OneArch = Annotated[
    list[Arch] | None,
    ARCH("Default: this machine's architecture, or the image's if it has only one."),
]
LayoutFolder = Annotated[
    Path | None, option("--layout", "The OCI layout of the image. Default: build/TARGET.",
                        metavar="PATH")
]  # fmt: skip
Jobs = Annotated[
    int,
    option("--jobs -j", "The number of parallel processes, or 0 for one per core.", metavar="N",
           parser=_jobs, setting=True),
]  # fmt: skip
KernelCache = Annotated[
    bool,
    option("--kernel-cache/--no-kernel-cache", "Store kernels that are compiled at run time (by"
                                               " Triton, torch.compile, FlashInfer or vLLM) in"
                                               " imgbuild's cache, and reuse them in later runs.",
           panel=CONTAINER),
]  # fmt: skip
Osv = Annotated[
    str | None,
    option("--osv", "The URL of a server with the OSV API. Default: $IMGBUILD_OSV, else"
                    " https://api.osv.dev.", metavar="URL"),
]  # fmt: skip
Offline = Annotated[
    bool,
    option(
        "--offline",
        "Disable network access. The command fails if a required file is not in the cache.",
        often=True,
    ),
]
PlainHttp = Annotated[
    list[str] | None,
    option("--plain-http", "Connect to this registry over HTTP, without TLS. Can be repeated.",
           metavar="HOST[:PORT]", panel=REGISTRY),
]  # fmt: skip
Mirror = Annotated[
    str | None,
    option(
        "--mirror",
        "Download inputs from this mirror, and from the indexes only if they are not in the "
        "mirror. 'off' disables the mirror. Default: $IMGBUILD_MIRROR, else the mirror set with "
        "`imgbuild registry mirror use`.",
        metavar="HOST/REPOSITORY",
        panel=REGISTRY,
    ),
]
MirrorOnly = Annotated[
    bool,
    option(
        "--mirror-only",
        "Download inputs only from the mirror. Fail if a file is not in the mirror.",
        panel=REGISTRY,
    ),
]
Apptainer = Annotated[
    list[str] | None,
    option("--apptainer", "An additional option for `apptainer exec`, such as"
                          " --apptainer=--nvccli. Can be repeated.",
           metavar="OPTION"),
]  # fmt: skip
SharedMemory = Annotated[
    int,
    SHARED("The check fails if less is free. 0 disables the check. At least 1000 is recommended."),
]
JUnit = Annotated[
    Path | None,
    option(
        "--junit",
        "Also write the results to this file, as JUnit XML.",
        metavar="FILE",
        panel=OUTPUT,
    ),
]
Record = Annotated[
    bool,
    option(
        "--record",
        "Add the test runs, passed or failed, to images/TARGET/smoke.json.",
        panel=OUTPUT,
        often=True,
    ),
]
TimeoutFactor = Annotated[
    float,
    option("--timeout-factor", "Multiply all time limits by this factor, for example on an"
                               " emulated or busy machine.", metavar="N",
           parser=_factor, setting=True),
]  # fmt: skip
SignKey = Annotated[
    Path | None,
    option(
        "--sign-key",
        "The private key for signing: a PEM file (P-256 or Ed25519) or cosign.key. The password "
        "is read from $COSIGN_PASSWORD or the terminal.",
        metavar="FILE",
        panel=REGISTRY,
        often=True,
    ),
]
Keyless = Annotated[
    bool,
    option("--keyless", "Sign with the identity of the CI job. Requires cosign.",
           panel=REGISTRY),
]  # fmt: skip
Reference = Annotated[
    str, typer.Argument(metavar="REF", help="An image in a registry, by tag or by digest.")
]


def parse_day(text: str | None) -> datetime.date | None:
    """Parse the value of `--as-of`. Raises InputError if it is not a day."""
    if text is None:
        return None
    try:
        return datetime.date.fromisoformat(text)
    except ValueError as error:
        message = f"invalid date for --as-of: {text} (expected YYYY-MM-DD)"
        raise InputError(message, hint="specify a date such as 2025-06-20") from error


def process_count(jobs: int) -> int:
    """Return the number of processes for `--jobs`."""
    return jobs or processor_count()
