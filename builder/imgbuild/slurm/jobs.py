"""Writes job scripts for Slurm from templates.

Values that an #SBATCH line, a list of mounts or a shell would misread are rejected. A script
contains the table of path variables (see `container.path_variables`), because their values are
unknown until the job runs.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
from packaging.version import Version

from imgbuild.container import path_variables
from imgbuild.errors import InputError
from imgbuild.lock.lock_file import Lock
from imgbuild.values import Digest

OWN_VARIABLES = ("HF_HOME", "TMPDIR")  # the script itself reads and sets them
# Patterns of the variables that reach the image under Apptainer.
FAMILIES = (
    "HF_*", "HUGGING_FACE_*", "WANDB_*", "MLFLOW_*", "NCCL_*", "GLOO_*", "UCX_*", "FI_*", "TORCH_*",
    "PYTORCH_*", "VLLM_*", "RAY_*", "TRITON_*", "OMP_*", "MKL_*", "OPENBLAS_*",
)  # fmt: skip

LOG = "%x-%j.log"
PASSED_TEXT = "no problem found on"  # in the last line of a check that passed, before its nodes
SERVER_WAIT = 3600  # seconds for vLLM to load its model: network disks are slow
RAY_WAIT = 600
CHECK_TIME = "00:05:00"  # of which two minutes are used: Slurm ends a job up to a minute early
WARNING, CHECK_WARNING = 60, 10  # seconds before the end at which Slurm signals the script
OLDEST_SERVER = Version("0.16.0")  # the first trl whose trainers use a server of trl
TIME = r"[0-9]+(:[0-9]{2}){0,2}|[0-9]+-[0-9]{1,2}(:[0-9]{2}){0,2}"
MEMORY = r"[0-9]+[KMGT]?"
NAME = r"[\w.+@-]+(,[\w.+@-]+)*"
VARIABLE = r"[A-Za-z_]\w*"
SET_PREFIX = "IMGBUILD_ENV_"  # of variables for the image under pyxis, which passes on all
# Shells refuse to set the first ones; Slurm sets the others.
READONLY_VARIABLES = (
    r"BASHOPTS|BASH_VERSINFO|EUID|PPID|SHELLOPTS|UID|SLURM_\w*|SLURMD_NODENAME|IMGBUILD_ENV\w*"
)
# Options of sbatch that a script sets and relies on, by their short names too.
OUR_OPTIONS = (
    r"--job-name|-J\w*|--array|-a\w*|--nodes|-N\w*|--ntasks|-n\w*|--ntasks-per-node"
    r"|--wait|-W|--parsable|--wrap"
)
LOGS = r"--output|-o\w*|--error|-e\w*|--chdir|-D\w*"
PYTHON = r"(.*/)?python[\d.]*"
SITE_GPUS = re.compile(r"--gres=\S*gpu\S*|--gpus(-per-\w+)?=\S+|-G\S*")  # of sbatch


class ScriptKind(enum.StrEnum):
    """The kind of job that a script runs."""

    SINGLE = "single"
    TORCHRUN = "torchrun"
    RAY = "ray"
    TRL_SERVER = "trl-server"
    VERL = "verl"
    CHECK = "check"


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a job. "" and 0 stand for the site's default.

    `more` contains additional options of sbatch.
    """

    nodes: int = 1
    gpus: int = 0  # of each node
    cpus: int = 0  # of each task
    memory: str = ""  # of each node
    time: str = ""
    account: str = ""
    partition: str = ""
    more: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """The options of sbatch, except for nodes and tasks."""
        named = {
            "--cpus-per-task": str(self.cpus or ""),
            "--gpus-per-node": str(self.gpus or ""),
            "--mem": self.memory,
            "--time": self.time,
            "--account": self.account,
            "--partition": self.partition,
        }
        return (*(f"{name}={value}" for name, value in named.items() if value), *self.more)


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """Options for running the image with Apptainer and a SIF file, or with pyxis.

    `binds` contains SOURCE[:PLACE[:ro]]. `words` contains additional options of Apptainer.
    """

    image: str
    pyxis: bool = False
    binds: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


class EnvVariable(msgspec.Struct, frozen=True):
    """A variable that the script sets."""

    name: str
    value: str


class JobScript(msgspec.Struct, frozen=True, kw_only=True):
    """The values that the templates of job scripts use."""

    target: str
    digest: Digest
    cache: str
    name: str
    job: ScriptKind
    allocation: Allocation
    container: Container
    command: tuple[str, ...] = ()
    model: str = ""
    stage: tuple[str, ...] = ()
    environment: tuple[EnvVariable, ...] = ()
    passed: tuple[str, ...] = ()
    scratch: str = ""
    log: str = LOG
    shared: int = 0
    clients: bool = False  # whether its Ray would serve clients, on a port shared by all jobs
    folders: tuple[str, ...] = path_variables.IMAGE_FOLDERS  # of the image
    kernels: dict[str, str] = {}  # machine (`uname -m`) → sha256 of the image, if kernels are kept

    @property
    def title(self) -> str:
        """A description of the script in a few words."""
        nodes = self.allocation.nodes
        several = f"{nodes} nodes" if nodes > 1 else "one node"
        return {
            ScriptKind.SINGLE: "a command on one node",
            ScriptKind.TORCHRUN: f"torchrun on {several}",
            ScriptKind.RAY: f"a command on a Ray cluster of {several}",
            ScriptKind.TRL_SERVER: f"TRL with its vLLM server on one node, trainers on {nodes - 1}",
            ScriptKind.VERL: f"verl on a Ray cluster of {several}",
            ScriptKind.CHECK: f"a check of {several} in two minutes",
        }[self.job]

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the variables that `--env` sets or passes."""
        return (*(item.name for item in self.environment), *self.passed)

    @property
    def prefix(self) -> str:
        """The prefix of `--env` variables on the host: Apptainer's, or one for the script."""
        return SET_PREFIX if self.container.pyxis else "APPTAINERENV_"

    @property
    def fixed(self) -> tuple[str, ...]:
        """The NAME=VALUE settings for Apptainer's containers, without variables of `--env`."""
        values = {"PYTHONNOUSERSITE": "1", "TMPDIR": "/tmp"}  # noqa: S108  # the image's
        values |= {"LIBRARY_PATH": "/.singularity.d/libs"} if self.allocation.gpus else {}
        return tuple(f"{name}={value}" for name, value in values.items() if name not in self.given)

    @property
    def paths(self) -> JobPaths:
        """The rules for variables with paths."""
        return job_paths([item.name for item in self.environment], self.passed)

    @property
    def bound(self) -> tuple[str, ...]:
        """The paths in the image at which `--stage` and `--bind` mount folders."""
        places = [(bind.split(":") * 2)[1] for bind in self.container.binds]
        return (*self.stage, *places)

    @property
    def no_problem(self) -> str:
        """The text in the last line of a passed check."""
        return PASSED_TEXT

    @property
    def wait(self) -> int:
        """The time limit, in seconds, for the start of the server or Ray."""
        return SERVER_WAIT if self.job is ScriptKind.TRL_SERVER else RAY_WAIT

    @property
    def warning(self) -> int:
        """The time, in seconds, from Slurm's signal to the script until the end of the job."""
        return CHECK_WARNING if self.job is ScriptKind.CHECK else WARNING

    @property
    def launched(self) -> tuple[str, ...]:
        """The arguments for accelerate or torchrun, which start a Python script or --module.

        torchrun starts other programs with --no-python.
        """
        match self.command:
            case (program, "-m", *module) if re.fullmatch(PYTHON, program):
                return ("--module", *module)
            case (program, *script) if re.fullmatch(PYTHON, program):
                return tuple(script)
            case (program, *_) if self.job is ScriptKind.TORCHRUN and _is_program(program):
                return ("--no-python", *self.command)
        return self.command

    @property
    def processes(self) -> int:
        """The number of training processes."""
        return max(self.allocation.gpus, 1) * (self.allocation.nodes - 1)


def create_job_script(
    lock: Lock,
    digest: Digest,
    job: ScriptKind,
    allocation: Allocation,
    container: Container,
    **more: object,
) -> JobScript:
    """Create the script for `job` in the image of `lock`.

    If `allocation` has no time limit, a check has a default time limit. Raises InputError with all
    problems.
    """
    if job is ScriptKind.CHECK and not allocation.time:
        allocation = msgspec.structs.replace(allocation, time=CHECK_TIME)
    job_script = JobScript(
        target=lock.target,
        digest=digest,
        cache=lock.settings.cache,
        name=f"{lock.target}-{job}",
        job=job,
        allocation=allocation,
        container=container,
        clients=all("grpcio" in resolution.versions for resolution in lock.arch.values()),
        folders=path_variables.image_folders(f"{k}={v}" for k, v in lock.settings.env.items()),
        **more,  # type: ignore[arg-type]  # fields of JobScript, checked by its callers' types
    )
    wrong = [*_fitting_problems(job_script, lock), *_place_problems(job_script)]
    if wrong:
        raise InputError("\n".join(wrong), hint="for the options, run: imgbuild slurm --help")
    return job_script


def job_text(job_script: JobScript, images: Path | None) -> str:
    """Return the text of the script."""
    from imgbuild.render import templates  # slow to load

    name = "ray-job" if job_script.job is ScriptKind.RAY else job_script.job.value
    return templates.render_template(f"slurm/{name}.j2", job_script, images=images)


def missing_gpus_warning(allocation: Allocation) -> str:
    """Return a warning if no GPU is available in the image because `--gpus` is missing."""
    named = [word for word in allocation.more if SITE_GPUS.fullmatch(word)]
    if named:
        return (
            f"--sbatch={named[0]} does not make GPUs available in the image; specify the number "
            "per node with --gpus N"
        )
    return (
        "the job requests no GPU; specify the number per node with --gpus N (--gpus 0 to request "
        "none)"
    )


def unmounted_paths(job: JobScript, here: Path) -> list[str]:
    """Return warnings about `--env` values that are paths outside of the mounted folders.

    `here` is the folder in which the script is submitted.
    """
    values = {item.name: item.value for item in job.environment if item.name != "HF_HOME"}
    home = () if job.container.pyxis else (os.path.expanduser("~"),)  # noqa: PTH111
    return path_variables.unmounted_paths(values, (str(here), *home, *job.bound), "--bind {0}")


def parse_variables(words: Sequence[str]) -> tuple[tuple[EnvVariable, ...], tuple[str, ...]]:
    """Split `--env` values into variables to set (NAME=VALUE) and names to pass (NAME)."""
    pairs = [word.partition("=") for word in words]
    wrong = [name for name, _, _ in pairs if not re.fullmatch(VARIABLE, name, re.ASCII)]
    if wrong:
        message = f"--env {wrong[0]!r} is not a valid variable name"
        raise InputError(
            message, hint="use --env NAME=VALUE, or --env NAME to pass your shell's value"
        )
    wrong = [name for name, _, _ in pairs if re.fullmatch(READONLY_VARIABLES, name)]
    if wrong:
        message = (
            f"--env {wrong[0]}: the variable can only be set by the shell, Slurm or the job script"
        )
        raise InputError(message, hint="omit the variable, or use another name")
    return (
        tuple(EnvVariable(name, value) for name, sign, value in pairs if sign),
        tuple(name for name, sign, _ in pairs if not sign),
    )


def _fitting_problems(job_script: JobScript, lock: Lock) -> list[str]:
    job, allocation = job_script.job, job_script.allocation
    versions = [resolution.versions for resolution in lock.arch.values()]
    needed = {
        ScriptKind.TORCHRUN: ("torch",),
        ScriptKind.RAY: ("ray",),
        ScriptKind.VERL: ("ray", "verl"),
        ScriptKind.TRL_SERVER: ("trl", "vllm"),
    }

    def _has_any_package(*packages: str) -> bool:
        return all(package in each for each in versions for package in packages)

    others = [
        f"--job {kind}"
        for kind in (ScriptKind.TORCHRUN, ScriptKind.RAY)
        if kind is not job and _has_any_package(*needed[kind])
    ]
    several = f"; for several nodes: {' or '.join(others)}" if others else ""
    wrong = [
        f"--job {job}: {lock.target} has no {package}{several}"
        for package in needed.get(job, ())
        if not _has_any_package(package)
    ]
    if job is ScriptKind.TRL_SERVER and not wrong:
        old = [each["trl"] for each in versions if Version(each["trl"]) < OLDEST_SERVER]
        wrong += (
            [f"--job {job}: trl {old[0]} has no server; 0.16 or newer is required"] if old else []
        )
    if job is not ScriptKind.CHECK and not job_script.command:
        wrong.append(
            f"--job {job} requires a command; add it after --, for example: -- python train.py"
        )
    if job is ScriptKind.SINGLE and allocation.nodes != 1:
        wrong.append(f"--job single runs on one node, not {allocation.nodes}{several}")
    if job is ScriptKind.TRL_SERVER and allocation.nodes < 2:
        wrong.append(
            f"--job {job} requires --nodes 2 or more: one for the server, and others for training"
        )
    starter = {ScriptKind.TRL_SERVER: "accelerate", ScriptKind.TORCHRUN: "torchrun"}.get(job)
    if starter is not None and _starts_python_otherwise(job_script, starter):
        wrong.append(f"--job {job}: {starter} starts Python; specify only the script: -- train.py")
    if job is not ScriptKind.CHECK and (job is ScriptKind.TRL_SERVER) != bool(job_script.model):
        wrong.append(
            "--served-model requires --job trl-server, and --job trl-server requires --served-model"
        )
    if job in (ScriptKind.TRL_SERVER, ScriptKind.VERL) and not allocation.gpus:
        wrong.append(f"--job {job} requires GPUs; specify the number per node with --gpus N")
    if job in (ScriptKind.RAY, ScriptKind.VERL) and "RAY_ADDRESS" in job_script.given:
        wrong.append(
            f"--env RAY_ADDRESS: the variable is set by --job {job} to the address of the Ray "
            "cluster"
        )
    if job_script.container.pyxis and job_script.container.words:
        wrong.append("--apptainer and --pyxis cannot be combined")
    return wrong


def _is_program(word: str) -> bool:
    return not word.startswith("-") and not word.endswith(".py")


def _starts_python_otherwise(job_script: JobScript, starter: str) -> bool:
    """Return whether the command starts `starter`, or Python with an option such as -u."""
    command, words = job_script.command, job_script.launched
    if job_script.job is ScriptKind.TORCHRUN and command[:1] == (starter,):
        return True
    if not command or not re.fullmatch(PYTHON, command[0]):
        return False
    return not words or (words[0] != "--module" and words[0].startswith("-"))


def _place_problems(job_script: JobScript) -> list[str]:
    wrong = allocation_problems(job_script.allocation, log=job_script.job is ScriptKind.CHECK)
    # enroot also splits a list of mounts at white space.
    sign = r"[^,:\s\0]" if job_script.container.pyxis else r"[^,:\n\0]"
    without = "commas, colons and spaces" if job_script.container.pyxis else "commas and colons"
    paths = {
        "--stage": job_script.stage,
        "--scratch": (job_script.scratch,) if job_script.scratch else (),
    }
    wrong += [
        f"{option} {path!r}: expected an absolute path without {without}"
        for option, given in paths.items()
        for path in given
        if not re.fullmatch(rf"/{sign}*", path)
    ]
    return wrong + [
        f"--bind {bind!r}: expected SOURCE or SOURCE:PLACE[:ro], with absolute paths without"
        f" {without}"
        for bind in job_script.container.binds
        if not re.fullmatch(rf"/{sign}*(:/{sign}*(:r[ow])?)?", bind)
    ]


def allocation_problems(allocation: Allocation, *, log: bool) -> list[str]:
    """Return errors in values for sbatch. With `log`, the path of the job's log is fixed."""
    forms = {
        "--time": (allocation.time, TIME, "minutes, H:MM:SS or D-HH"),
        "--mem": (allocation.memory, MEMORY, "a number with K, M, G or T"),
        "--account": (allocation.account, NAME, "a name"),
        "--partition": (allocation.partition, NAME, "a name"),
    }
    wrong = [
        f"{option} {value!r}: expected {expected}"
        for option, (value, form, expected) in forms.items()
        if value and not re.fullmatch(form, value, re.ASCII)
    ]
    return (
        wrong
        + [
            f"--sbatch {word!r}: expected an option with a value, such as --sbatch=--qos=high"
            for word in allocation.more
            if not re.fullmatch(r"--?[a-zA-Z][\w-]*(=\S+)?", word, re.ASCII)
        ]
        + [
            f"--sbatch {word!r}: the job script sets this option"
            for word in allocation.more
            if re.fullmatch(f"({OUR_OPTIONS}{f'|{LOGS}' if log else ''})(=.*)?", word)
        ]
    )


class HostOnly(msgspec.Struct, frozen=True):
    """Variables that are not passed to the image, all for the same reason."""

    reason: str
    names: tuple[str, ...]


class JobPaths(msgspec.Struct, frozen=True, kw_only=True):
    """The table of path variables for a job script.

    `mounted` contains items KIND:NAME, where KIND is folder, file or new. `families` contains
    patterns of other passed variables. `named` lists path variables passed by `--env`.
    """

    mounted: tuple[str, ...]
    left_out: tuple[HostOnly, ...]
    families: tuple[str, ...]
    named: tuple[str, ...]

    @property
    def passed(self) -> tuple[str, ...]:
        """The patterns of all variables that can be passed to the image."""
        return (*self.families, *self.named)


def job_paths(values: Collection[str], passed: Collection[str]) -> JobPaths:
    """Return the path variables of a job.

    Its script sets `values`, and passes the variables named in `passed`.
    """
    mounted = []
    left_out = []
    for row in path_variables.path_variable_table():
        if row.use == "mounted":
            kind = row.holds.split()[0]
            mounted += [
                f"{kind}:{name}" for name in row.names if name not in (*values, *OWN_VARIABLES)
            ]
            continue
        without = (*values, *passed, *OWN_VARIABLES)
        names = tuple(name for name in row.names if name not in without)
        left_out += [HostOnly(row.reason, names)] if names else []
    named = tuple(sorted(path_variables.variable_names().intersection(passed)))
    return JobPaths(
        mounted=tuple(mounted), left_out=tuple(left_out), families=FAMILIES, named=named
    )
