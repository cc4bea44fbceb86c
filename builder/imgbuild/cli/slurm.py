"""Implements `imgbuild slurm`, which writes job scripts that run an image."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from imgbuild.cli._allocation import AllocationOptions, Nodes, job_allocation
from imgbuild.cli._help import create_command
from imgbuild.cli._options import (
    ENV,
    GPUS,
    OUTPUT_PATH,
    SIF_FILE,
    Apptainer,
    KernelCache,
    SharedMemory,
)
from imgbuild.cli._output import answer_file, print_result
from imgbuild.cli._selection import choose_locks, single_target
from imgbuild.cli._targets import OneTarget
from imgbuild.cli._verb import create_verb, option
from imgbuild.codec import write_bytes
from imgbuild.errors import InputError
from imgbuild.matrix.project_paths import Project
from imgbuild.pipeline.opened import report_templates
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.sif import files
from imgbuild.slurm import commands, jobs
from imgbuild.slurm.jobs import Allocation, Container, JobScript, ScriptKind
from imgbuild.smoke import runner
from imgbuild.system import programs
from imgbuild.system.console import console


class RuntimeOptions(msgspec.Struct, frozen=True):
    """Options for running the image: SIF file or pyxis image, mounts, Apptainer options."""

    sif: Path | None
    pyxis: str | None
    binds: tuple[str, ...]
    words: tuple[str, ...]


def runtime_container(
    project: Project,
    target_digests: TargetDigests,
    runtime: RuntimeOptions,
    *,
    check: bool,
    submit: bool,
) -> Container:
    """Return the container for the locked image. For a check, its scripts are mounted.

    Raises InputError if the job is submitted and the file of the image does not exist.
    """
    if runtime.sif is not None and runtime.pyxis is not None:
        message = "--sif-file and --pyxis cannot be combined"
        raise InputError(message, hint="omit one of these options")
    binds, words, target = runtime.binds, runtime.words, target_digests.target
    if check:
        binds = (*binds, f"{runner.TESTS.resolve()}:/smoke_tests:ro")
    if runtime.pyxis is not None:
        image = pyxis_image(runtime.pyxis)
        form = "squashfs"
    else:
        image = (runtime.sif or project.output(target).with_name(f"{target}.sif")).absolute()
        warn_if_other_image(image, target_digests)
        form = "sif"
    make = shlex.join(["imgbuild", "build", target, "--format", form, "--output", str(image)])
    if isinstance(image, Path) and not image.exists():
        if submit:
            message = f"{image}: no such file"
            raise InputError(message, hint=f"run {make}")
        console.warn(
            f"{image} does not exist; to create it, run: {make}; if the cluster does not share "
            "this disk, copy the file to the same path on the cluster"
        )
    if runtime.sif is None and runtime.pyxis is None and programs.find_on_path("sbatch") is None:
        console.info(
            f"the script uses the path {image} of this machine; to use another path, pass "
            "--sif-file PATH"
        )
    return Container(image=str(image), pyxis=runtime.pyxis is not None, binds=binds, words=words)


def warn_if_other_image(sif: Path, target_digests: TargetDigests) -> None:
    """Warn if the SIF file was not created from the locked image.

    SIF files that other tools created are not checked.
    """
    try:
        config = files.config_digest(sif) if sif.is_file() else None
    except InputError as error:  # Apptainer runs other kinds of files, too
        console.warn(error.message)
        return
    if config and config not in {image.config for image in target_digests.arch.values()}:
        build_command = f"imgbuild build {target_digests.target} --format sif"
        console.warn(f"{sif} was not created from the current lock; run {build_command}")


def pyxis_image(image: str) -> Path | str:
    """Return the image in pyxis syntax: the absolute path of a file, or a name in a registry."""
    path = Path(image)
    return path.absolute() if path.exists() or path.suffix in (".sqsh", ".squashfs") else image


LOG_DELAY = 5  # seconds until a log is visible once its job has ended


class WrittenScript(msgspec.Struct, frozen=True, kw_only=True):
    """A job script, its path, and the ID of the job if it was submitted."""

    target: str
    name: str
    script: str
    place: Path | None = None
    job: str = ""
    status: int | None = None
    log: str = ""


Command = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- COMMAND...", help="The command that the job runs.", show_default=False
    ),
]
Job = Annotated[
    ScriptKind,
    option(
        "--job",
        "The kind of job: single (the command on one node), torchrun (torchrun on each node, with "
        "one process per GPU), ray (the command on a Ray cluster of all nodes), trl-server "
        "(accelerate on all nodes except the last, which serves vLLM), verl (the command on Ray, "
        "with verl configured for the nodes and GPUs), or check (without a command: tests GPUs, "
        "all-reduce between nodes, shared memory, folders and limits for two minutes).",
        often=True,
    ),
]
Pyxis = Annotated[
    str | None,
    option(
        "--pyxis",
        "Run this image with srun and pyxis instead of Apptainer: a squashfs file from `imgbuild "
        "build --format squashfs`, or an image in a registry as HOST#NAME:TAG.",
        metavar="IMAGE",
    ),
]
Binds = Annotated[
    list[str] | None,
    option(
        "--bind",
        "Mount a folder in the container. Can be repeated. The current folder, the folder of"
        " HF_HOME (default: ~/.cache/huggingface), and the folders of HF_HUB_CACHE and similar"
        " variables are always mounted.",
        metavar="SRC[:DST]",
    ),
]
Stage = Annotated[
    list[str] | None,
    option(
        "--stage",
        "Copy this folder to the local disk of each node first, and mount the copy instead, for"
        " example for models on a slow network file system. Can be repeated.",
        metavar="FOLDER",
    ),
]
Scratch = Annotated[
    str,
    option(
        "--scratch",
        "A folder on the local disk of each node. Default: $SLURM_TMPDIR, $TMPDIR or /tmp.",
        metavar="FOLDER",
    ),
]
Env = Annotated[list[str] | None, ENV()]
Model = Annotated[
    str,
    option("--served-model", "With --job trl-server, the model that vLLM serves.", metavar="NAME"),
]
Submit = Annotated[
    bool,
    option(
        "--submit",
        "Submit the script with sbatch and print the job ID. With --job check, wait for the "
        "result, print it, and exit with status 1 if a check failed.",
        often=True,
    ),
]


@create_verb
def slurm(
    selection: OneTarget,
    nodes: Nodes,
    request: AllocationOptions,
    command: Command = None,
    job: Job = ScriptKind.SINGLE,
    gpus: Annotated[
        str | None,
        GPUS("Applies to each node. Default: no GPUs, with a warning."),
    ] = None,
    sif: Annotated[
        Path | None,
        SIF_FILE("An unpacked SIF (a folder) is also accepted. Default: build/TARGET.sif."),
    ] = None,
    pyxis: Pyxis = None,
    served_model: Model = "",
    bind: Binds = None,
    stage: Stage = None,
    scratch: Scratch = "",
    env: Env = None,
    kernel_cache: KernelCache = True,
    apptainer: Apptainer = None,
    shared: SharedMemory = 0,
    output: Annotated[Path | None, OUTPUT_PATH("Default: stdout.")] = None,
    submit: Submit = False,
) -> None:
    """Write a Slurm job script for a target.

    Specify the command after --. It runs in the current folder, which is mounted in the container,
    so the container has your code. The nodes need Apptainer (or pyxis) and the SIF file of the
    target, which `imgbuild build TARGET --format sif` writes, but not imgbuild. Start the script
    with `sbatch`, or add --submit. For details, see docs/slurm.md in imgbuild's repository.

    Examples:

        imgbuild slurm cu124-vllm --gpus 1 --job check --submit

        imgbuild slurm cu124-vllm --gpus 8 -- torchrun --standalone --nproc-per-node 8 train.py

        imgbuild slurm cu130-deepspeed --job torchrun --nodes 2 --gpus 8 -- train.py > job.sh

        imgbuild slurm cu124-vllm --job ray --nodes 2 --gpus 8 --submit -- python train.py

        imgbuild slurm cu130-vllm --job verl --nodes 2 --gpus 8 -- python -m verl.trainer.main_ppo
    """
    name, words = selection.split(command)
    if shared and job is not ScriptKind.CHECK:
        message = "--shared requires --job check"
        raise InputError(message, hint="add --job check, or omit --shared")
    if job is ScriptKind.CHECK and words:
        message = f"--job check accepts no command: {' '.join(words)}"
        raise InputError(message, hint="omit the command, or choose another --job")
    if gpus == "all":
        message = "--gpus all is not supported, because Slurm requires a number"
        raise InputError(message, hint="specify, for example, --gpus 8")
    project = selection.project(name)
    report_templates(project)
    resources = job_allocation(
        request, nodes=nodes.nodes, gpus=int(gpus or 0), cpus=nodes.cpus, memory=nodes.memory
    )
    if gpus is None:
        console.warn(jobs.missing_gpus_warning(resources))
    runtime = RuntimeOptions(sif, pyxis, tuple(bind or ()), tuple(apptainer or ()))
    job_script = _script(
        project, name, job, resources, runtime, env or [],
        command=words, model=served_model, stage=tuple(stage or ()), scratch=scratch,
        shared=shared, submit=submit, kernel_cache=kernel_cache,
    )  # fmt: skip
    script = jobs.job_text(job_script, project.images)
    if output is not None:
        write_bytes(output, script.encode())
    _report(job_script, script, output, submit=submit)


def _script(
    project: Project,
    name: str,
    job: ScriptKind,
    resources: Allocation,
    runtime: RuntimeOptions,
    env: list[str],
    *,
    submit: bool,
    kernel_cache: bool,
    **more: object,
) -> JobScript:
    chosen = choose_locks(project, [name] if name else [], everything=False, arches=[])
    single_target([item.lock.target for item in chosen])
    lock = chosen[0].lock
    environment, passed = jobs.parse_variables(env)
    target_digests = image_digests.read_digests(project.images, lock)
    script = jobs.create_job_script(
        lock,
        target_digests.digest,
        job,
        resources,
        runtime_container(
            project, target_digests, runtime, check=job is ScriptKind.CHECK, submit=submit
        ),
        environment=environment,
        passed=passed,
        kernels=_kernel_cache_names(target_digests) if kernel_cache else {},
        **more,
    )
    for line in jobs.unmounted_paths(script, Path.cwd()):
        console.warn(line)
    return script


def _kernel_cache_names(target_digests: TargetDigests) -> dict[str, str]:
    return {
        arch.wheel: image.manifest.removeprefix("sha256:")
        for arch, image in target_digests.arch.items()
    }


def _report(job_script: JobScript, text: str, output: Path | None, *, submit: bool) -> None:
    result = WrittenScript(
        target=job_script.target, name=job_script.name, script=text, place=output
    )
    if not submit:
        if output is not None:
            print_result(result, [str(output)])
        else:
            answer_file(result, [text])
        return
    here = Path.cwd()
    number = commands.submit_script(text, here)
    result = msgspec.structs.replace(result, job=number)
    if job_script.job is not ScriptKind.CHECK:
        print_result(result, [number])
        return
    with console.step(f"{job_script.name}: waiting for job {number}"):
        state = commands.wait_for_job(number, console)
        log = here / job_script.log.replace("%x", job_script.name).replace("%j", number)
        log_text = _read_log(log)
    # COMPLETED is not enough: a script that ended before its last line has not checked everything.
    passed = state == "COMPLETED" and jobs.PASSED_TEXT in log_text
    result = msgspec.structs.replace(result, status=0 if passed else 1, log=log_text)
    print_result(result, [log_text or f"job {number}: {state.lower()}; {log} was not written"])
    if not passed:
        if state not in ("COMPLETED", "FAILED"):
            console.error(
                f"job {number} ended with state {state.lower()} before the check finished"
            )
        raise typer.Exit(1)


def _read_log(log: Path) -> str:
    """Read the log of a job.

    Wait a few seconds if the file is not yet on the network file system.
    """
    for _ in range(LOG_DELAY):
        if log.exists():
            return log.read_text(encoding="utf-8", errors="replace")
        time.sleep(1)
    return ""


COMMAND = create_command(slurm)
