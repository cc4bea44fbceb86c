"""`imgbuild slurm`: job scripts for an image."""

from __future__ import annotations

import enum
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from imgbuild.cli import _allocation, _options, _slurm_runtime
from imgbuild.errors import InputError
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.project import Project
    from imgbuild.slurm.jobs import Allocation, JobScript

SOUND = "nothing stands in the way on "  # in the last line of a check, where all is well
LATE = 5  # seconds that a log has to be seen once its job has ended


class Kind(enum.StrEnum):
    """What a job does."""

    SINGLE = "single"
    RAY = "ray"
    TRL_SERVER = "trl-server"
    VERL = "verl"


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A job script, where it lies, and the job's number once it is submitted."""

    target: str
    name: str
    script: str
    place: Path | None = None
    job: str = ""
    status: int | None = None
    log: str = ""


Job = Annotated[
    Kind,
    typer.Option(
        "--job",
        help="single: the command on one node. ray: on a Ray cluster of the nodes. trl-server:"
        " accelerate on all nodes but the last, which serves vLLM. verl: on Ray, with verl told of"
        " nodes and GPUs.",
        rich_help_panel=_options.WORK,
    ),
]
Sif = Annotated[
    Path | None,
    typer.Option(
        "--sif",
        metavar="PATH",
        help="The SIF (or an unpacked one); by default build/TARGET.sif beside the matrix.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Pyxis = Annotated[
    str | None,
    typer.Option(
        "--pyxis",
        metavar="IMAGE",
        help="srun with pyxis in place of Apptainer: a squashfs (imgbuild sif --format squashfs),"
        " or HOST#NAME:TAG as enroot writes images of a registry.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Binds = Annotated[
    list[str] | None,
    typer.Option(
        "--bind",
        metavar="SOURCE[:PLACE]",
        help="A folder that the image sees; the current one and the model cache it sees anyhow."
        " Repeatable.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Stage = Annotated[
    list[str] | None,
    typer.Option(
        "--stage",
        metavar="FOLDER",
        help="Copy it to each node's own disk first, and show the copy in its place: models on a"
        " slow network disk. Repeatable.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Scratch = Annotated[
    str,
    typer.Option(
        "--scratch",
        metavar="FOLDER",
        help="A folder of each node's own disk; by default SLURM_TMPDIR, TMPDIR, or /tmp.",
        rich_help_panel=_options.WORK,
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME[=VALUE]",
        help="A variable for every process of the job, Ray's workers too. Without a value it is"
        " that of the shell which submits. Repeatable.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Option(
        "--apptainer",
        metavar="OPTION",
        help="Another option of apptainer exec, such as --apptainer=--nvccli; repeatable.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]

Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND", help="What the job runs.", show_default=False),
]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="NAME",
        help="With trl-server: the model that vLLM serves.",
        rich_help_panel=_options.WORK,
    ),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Instead of the work, try for two minutes what it will need: GPUs, all-reduce"
        " between the nodes, shared memory, folders, limits.",
        rich_help_panel=_options.WORK,
    ),
]
Shared = Annotated[
    int,
    typer.Option(
        "--shared",
        metavar="MB",
        min=0,
        help="With --check: shared memory that must be free; 0: 1 GB is advised.",
        rich_help_panel=_options.WORK,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where the script goes; by default to stdout.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Submit = Annotated[
    bool,
    typer.Option(
        "--submit",
        help="Give it to sbatch too, and print the job's number. With --check, wait for its"
        " end and print what it found; exit status 1 if something stands in the way.",
        rich_help_panel=_options.WORK,
    ),
]


def slurm(
    name: _options.One,
    command: Command = None,
    job: Job = Kind.SINGLE,
    nodes: _allocation.Nodes = 1,
    gpus: _allocation.Gpus = 0,
    cpus: _allocation.Cpus = 0,
    memory: _allocation.Memory = "",
    time: _allocation.Time = "",
    account: _allocation.Account = "",
    partition: _allocation.Partition = "",
    sbatch: _allocation.More = None,
    sif: Sif = None,
    pyxis: Pyxis = None,
    model: Model = "",
    bind: Binds = None,
    stage: Stage = None,
    scratch: Scratch = "",
    env: Env = None,
    apptainer: Words = None,
    check: Check = False,
    shared: Shared = 0,
    output: Output = None,
    submit: Submit = False,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Write a job script for the image of one target, to read, change and keep.

    What follows -- is the command. The script needs nothing of imgbuild: a SIF and Apptainer on
    the nodes, or pyxis. docs/slurm.md says which line is there for which trouble.

    Examples:

        imgbuild slurm cu124-vllm --gpus 1 --check --submit

        imgbuild slurm cu124-vllm --gpus 1 -- python train.py > job.sh

        imgbuild slurm cu124-vllm --job ray --nodes 2 --gpus 8 --submit -- python train.py

        imgbuild slurm cu130-vllm --job verl --nodes 2 --gpus 8 -- python -m verl.trainer.main_ppo
    """
    from imgbuild import project as projects
    from imgbuild.codec import write_bytes
    from imgbuild.slurm.jobs import Allocation, text

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    if shared and not check:
        message = "--shared goes with --check"
        raise InputError(message, hint="add --check, or leave it out")
    if check and _words(command):
        message = f"--check runs tests of its own, not {' '.join(_words(command))}"
        raise InputError(message, hint="leave the command out, or --check")
    found = projects.find(matrix)
    asked = Allocation(
        nodes=nodes, gpus=gpus, cpus=cpus, memory=memory, time=time, account=account,
        partition=partition, more=tuple(sbatch or ()),
    )  # fmt: skip
    runtime = _slurm_runtime.Runtime(sif, pyxis, tuple(bind or ()), tuple(apptainer or ()))
    made = _script(
        found, name, None if check else job, asked, runtime, env or [],
        command=_words(command), model=model, stage=tuple(stage or ()), scratch=scratch,
        shared=shared, submit=submit,
    )  # fmt: skip
    script = text(made, found.images)
    if output is not None:
        write_bytes(output, script.encode())
    _tell(made, script, output, submit=submit, json=json)


def _words(command: list[str] | None) -> tuple[str, ...]:
    words = tuple(command or ())
    return words[1:] if words[:1] == ("--",) else words


def _script(
    found: Project,
    name: str,
    job: Kind | None,
    asked: Allocation,
    runtime: _slurm_runtime.Runtime,
    env: list[str],
    *,
    submit: bool,
    **more: object,
) -> JobScript:
    """The script of `job`, None being the check, in the image of the one target `name`."""
    from imgbuild.cli import _selection
    from imgbuild.plan import seal
    from imgbuild.slurm import jobs

    [chosen] = _selection.choose(found, [single_name(found, name)], everything=False, arches=[])
    environment, passed = jobs.variables(env)
    sealed = seal.read_seal(found.images, chosen.lock)
    return jobs.script(
        chosen.lock,
        sealed.digest,
        jobs.Job(job.value) if job else jobs.Job.CHECK,
        asked,
        _slurm_runtime.container(found, sealed, runtime, check=job is None, submit=submit),
        environment=environment,
        passed=passed,
        **more,
    )


def single_name(found: Project, name: str) -> str:
    """The one sealed target that `name` means."""
    from imgbuild.cli import _selection

    chosen = _selection.choose(found, [name], everything=False, arches=[])
    if len(chosen) > 1:
        message = f"several targets match: {', '.join(one.lock.target for one in chosen)}"
        raise InputError(message, hint="name one of them")
    return chosen[0].lock.target


def _tell(made: JobScript, text: str, output: Path | None, *, submit: bool, json: bool) -> None:
    """The script on stdout, or what became of it."""
    from imgbuild.slurm import commands as door
    from imgbuild.slurm.jobs import Job as Jobs

    answer = Made(target=made.target, name=made.name, script=text, place=output)
    if not submit:
        _options.answer(answer, [str(output) if output else text], json=json)
        return
    here = Path.cwd()
    if made.job is not Jobs.CHECK:
        number = door.submit(text, here)
        _options.answer(msgspec.structs.replace(answer, job=number), [number], json=json)
        return
    with console.step(f"{made.name}: waiting for Slurm to run it"):
        end = door.wait(text, here, reporter=console)
        log = here / made.log.replace("%x", made.name).replace("%j", end.number)
        said = _read(log)
    # Status 0 is not enough: what was cancelled, or ended before its last line, has tried nothing.
    sound = end.status == 0 and SOUND in said
    answer = msgspec.structs.replace(
        answer, job=end.number, status=0 if sound else end.status or 1, log=said
    )
    word = end.state.lower()
    _options.answer(answer, [said or f"job {end.number}: {word}; {log} was not written"], json=json)
    if not sound:
        if end.state not in ("COMPLETED", "FAILED"):
            console.error(f"job {end.number} ended as {word}: the check was not made to its end")
        raise typer.Exit(1)


def _read(log: Path) -> str:
    """A job's log; over a network disk it is seen some seconds after the job's end."""
    for _ in range(LATE):
        if log.exists():
            return log.read_text(encoding="utf-8", errors="replace")
        time.sleep(1)
    return ""
