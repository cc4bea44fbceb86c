"""Defines settings of containers in job scripts and rendered files.

`imgbuild run` and the job scripts use the same folders and variables. `imgbuild render` writes the
settings for Docker Compose, dev containers, Kubernetes and SkyPilot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from imgbuild.errors import InputError
from imgbuild.lock.lock_file import Lock
from imgbuild.values import Arch, Digest

WORKDIR = "/workspace"  # for the current folder, if the image has no working folder
MODELS = "/mnt/huggingface"  # the Hugging Face cache
MODELS_VARIABLE = "HF_HOME"
TOKEN = "HF_TOKEN"  # noqa: S105 - the name of a variable
TRACKING_PREFIX = "WANDB_"  # the prefix of variables of Weights & Biases
SECRETS = (TOKEN, f"{TRACKING_PREFIX}API_KEY")
# Packages of ray[default] without which Ray has no job server.
RAY_JOBS = ("aiohttp-cors", "colorful", "opencensus", "py-spy", "smart-open")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
MOST_NODES, MOST_GPUS, MOST_SHARED = 4096, 64, 16 << 20  # the latter in MB
MOST_PORTS, MOST_VARIABLES, MOST_WORDS = 64, 256, 4096
LONGEST_TEXT = 32_768  # characters of a value or a word
LABEL = 40  # characters of a name in Kubernetes, to which controllers append others


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The container settings that the user requests. None and 0 select the default.

    `gpus` is the number of GPUs per node, or "all". `gpu` is a GPU model. `shared` is the size of
    shared memory in MB. `env` contains NAME=VALUE, or NAME for a variable whose value is set when
    the container starts. `rdma` is a device folder or a Kubernetes resource.
    """

    command: tuple[str, ...] = ()
    gpus: str | None = None
    gpu: str | None = None
    nodes: int = 1
    shared: int = 0
    env: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    rdma: str | None = None

    @property
    def is_any_given(self) -> bool:
        """Whether any setting is requested."""
        return self != StartOptions()


class ContainerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a container, independent of the runtime.

    `name` is a DNS label. `account` is the name of the image's user. `image` is the image
    reference, by digest if the image is in a registry. `arch` is set if the image is for one
    architecture. `gpus` is the number of GPUs per node, True for all, or None for the default of
    the format. `secrets` are names of variables whose values are set elsewhere, and `passed` are
    names of variables that the user lists. `cache` is the image's folder for compiled code, which
    is valid only for the image `digest`. `ray` is the version of Ray, or "" if the image cannot
    serve Ray jobs.
    """

    target: str
    name: str
    image: str
    digest: Digest
    arch: Arch | None
    command: tuple[str, ...]
    workdir: str
    cache: str
    user: tuple[int, int]
    account: str
    python: str
    gpus: bool | int | None
    gpu: str
    nodes: int
    shared: int
    env: dict[str, str]
    secrets: tuple[str, ...]
    passed: tuple[str, ...]
    ports: tuple[int, ...]
    rdma: str
    ray: str


def container_settings(
    lock: Lock, arches: Sequence[Arch], image: str, digest: Digest, options: StartOptions
) -> ContainerSettings:
    """Return the container settings for the image of `lock`.

    Raises InputError with all problems in `options`.
    """
    wrong = list(_option_problems(options))
    if wrong:
        raise InputError("\n".join(wrong), hint="for the options, run: imgbuild render --help")
    pairs = [text.partition("=") for text in options.env]
    given = {name: value for name, sign, value in pairs if sign}
    passed = tuple(dict.fromkeys(name for name, sign, _ in pairs if not sign))
    versions = [lock.arch[arch].versions for arch in arches]
    return ContainerSettings(
        target=lock.target,
        name=dns_label(lock.target),
        image=image,
        digest=digest,
        arch=arches[0] if len(arches) == 1 else None,
        command=options.command,
        workdir=lock.settings.workdir if lock.settings.workdir not in ("", "/") else WORKDIR,
        cache=lock.settings.cache,
        user=(lock.settings.user.uid, lock.settings.user.gid),
        account=lock.settings.user.name,
        python=f"{lock.settings.prefix}/bin/python",
        gpus=None if options.gpus is None else options.gpus == "all" or int(options.gpus),
        gpu=options.gpu or "",
        nodes=options.nodes,
        shared=options.shared,
        env={MODELS_VARIABLE: MODELS} | given,
        secrets=tuple(name for name in dict.fromkeys((*SECRETS, *passed)) if name not in given),
        passed=passed,
        ports=tuple(dict.fromkeys(options.ports)),
        rdma=options.rdma or "",
        ray=versions[0]["ray"] if has_ray_jobs(versions) else "",
    )


def has_ray_jobs(versions: Iterable[Mapping[str, str]]) -> bool:
    """Return whether the packages of every architecture allow Ray to serve jobs in the image."""
    return all({"ray", *RAY_JOBS} <= each.keys() for each in versions)


def dns_label(target: str) -> str:
    """Convert the name of a target to a DNS label (RFC 1123) of at most `LABEL` characters."""
    plain = re.sub(r"[^a-z0-9]+", "-", target.lower())
    return plain[:LABEL].strip("-") or "image"


def _option_problems(options: StartOptions) -> Iterable[str]:
    if options.gpus not in (None, "all") and int(options.gpus or 0) > MOST_GPUS:
        yield f"--gpus {options.gpus}: expected at most {MOST_GPUS} per node"
    if options.gpu is not None and not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,63}", options.gpu):
        yield f"--gpu {options.gpu!r}: expected a name such as H100 or A100-80GB"
    if not 1 <= options.nodes <= MOST_NODES:
        yield f"--nodes {options.nodes}: expected 1 to {MOST_NODES}"
    if not 0 <= options.shared <= MOST_SHARED:
        yield f"--shared {options.shared}: expected 0 to {MOST_SHARED} MB"
    if options.rdma is not None and not re.fullmatch(
        r"/dev/[\w/-]{1,100}|[a-z0-9.-]{1,63}/[\w.-]{1,63}", options.rdma, re.ASCII
    ):
        yield f"--rdma {options.rdma!r}: expected a resource such as rdma/ib, or /dev/infiniband"
    yield from _text_problems(options)


def _text_problems(options: StartOptions) -> Iterable[str]:
    for number in options.ports:
        if not 1 <= number <= 65_535:
            yield f"--port {number}: expected 1 to 65535"
    for what, number, most in (
        ("--port", len(options.ports), MOST_PORTS),
        ("--env", len(options.env), MOST_VARIABLES),
        ("words of the command", len(options.command), MOST_WORDS),
    ):
        if number > most:
            yield f"{what}: {number} exceeds the limit of {most}"
    for text in options.env:
        name, _, value = text.partition("=")
        if not VARIABLE.fullmatch(name):
            yield f"--env {text[:80]!r}: expected NAME=VALUE or NAME"
        yield from _unfit_text_problems(f"--env {name[:80]}", value)
    for word in options.command:
        yield from _unfit_text_problems("a word of the command", word)


def _unfit_text_problems(what: str, text: str) -> Iterable[str]:
    """Yield a message if one of the rendered formats cannot represent `text`."""
    if len(text) > LONGEST_TEXT:
        yield f"{what}: {len(text)} characters exceed the limit of {LONGEST_TEXT}"
    elif re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text):
        yield f"{what} contains a control character: {text[:80]!r}"
