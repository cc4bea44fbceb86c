"""Reads versions of Python, torch and CUDA from image tags."""

from __future__ import annotations

import re

from imgbuild.project.model import FilePlace
from imgbuild.project.reading import ProjectReading

# Repositories whose tag is the version of one package.
PACKAGES = {
    "pytorch/pytorch": "torch",
    "vllm/vllm-openai": "vllm",
    "lmsysorg/sglang": "sglang",
    "rayproject/ray": "ray",
    "rayproject/ray-ml": "ray",
    "anyscale/ray": "ray",
    "anyscale/ray-ml": "ray",
}
# Parts of a tag that name a version, as in verlai/verl:base-th2.6.0-cu124-vllm0.8.5-fa2.7.4.
PARTS = {
    "torch": "torch",
    "th": "torch",
    "pt": "torch",
    "vllm": "vllm",
    "sglang": "sglang",
    "flashattn": "flash-attn",
    "fa": "flash-attn",
    "flashinfer": "flashinfer-python",
    "transformers": "transformers",
    "mcore": "megatron-core",
}
TARGET_PARTS = ("trl", "unsloth", "verl")  # in names of targets
# Tags in the form of names of targets, whose versions include patch and post releases:
# cu124-vllm0.8.5 has vLLM 0.8.5.post1, and cu128-verl0.6 verl 0.6.1.
TARGET_TAG = re.compile(r"cu\d{3}-")
VERSION = r"v?(\d+\.\d+(?:\.\d+)*(?:(?:\.?post|rc|a|b|\.?dev)\d+)?)"
# Base images without Python packages, of which nothing is read.
PLAIN_IMAGES = frozenset(
    {"ubuntu", "debian", "scratch", "nvidia/cuda", "alpine", "rockylinux", "fedora"}
)


def read_image_tag(reading: ProjectReading, image: str, place: FilePlace) -> None:
    """Add the versions in the tag of `image`, or record an unknown tag as unread."""
    if "$" in image:
        reading.add_unread(
            place, f"FROM {image}", "contains a variable whose value is not in the file"
        )
        return
    repository, tag = split_image(image)
    if repository.startswith("nvcr.io/nvidia/pytorch"):
        reason = (
            "the tag is NVIDIA's release month; the release notes list torch and CUDA, but no "
            "index has this build of torch"
        )
        reading.add_unread(place, f"FROM {image}", reason)
        return
    understood = _package(reading, repository, tag, place)
    for part in re.split(r"[-_]", tag):
        understood = (
            _part(reading, part, place, of_target=bool(TARGET_TAG.match(tag))) or understood
        )
    if not understood and repository not in PLAIN_IMAGES:
        reading.add_unread(place, f"FROM {image}", "the contents of this image are unknown")


def split_image(image: str) -> tuple[str, str]:
    """Return the repository (without the host of Docker Hub) and the tag of an image reference."""
    name = image.partition("@")[0]
    head, _, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    repository = f"{head}/{last}" if head else last
    for prefix in ("docker.io/", "registry.hub.docker.com/", "index.docker.io/"):
        repository = repository.removeprefix(prefix)
    return repository.removeprefix("library/"), tag


def _package(reading: ProjectReading, repository: str, tag: str, place: FilePlace) -> bool:
    match = re.match(VERSION, tag)
    if match is None:
        if repository in PACKAGES and tag in ("", "latest", "nightly", "dev"):
            reading.add_requirement(PACKAGES[repository], place)
        return False
    if repository in ("python", "python3") or repository.endswith("/python"):
        reading.add_python(f"=={'.'.join(match[1].split('.')[:2])}.*", place)
        return True
    if repository == "nvidia/cuda" or repository.endswith("/nvidia/cuda"):
        reading.cuda_release(".".join(match[1].split(".")[:2]), place)
        return True
    if repository in PACKAGES:
        reading.add_requirement(f"{PACKAGES[repository]}=={match[1]}", place)
        return True
    return False


def _part(reading: ProjectReading, part: str, place: FilePlace, *, of_target: bool) -> bool:
    """Return whether `part` of a tag is a known version, such as `cu124` or `torch2.6.0`."""
    short = re.fullmatch(r"cu(?:da)?(\d{2})(\d)(?:\d)?", part)
    cuda = re.fullmatch(r"cu(?:da)?(\d{2}\.\d)(?:\.\d+)?", part)
    python = re.fullmatch(r"(?:py|python|cp)3\.?(\d{1,2})(?:\.\d+)?", part)
    if short or cuda:
        release = f"{short[1]}.{short[2]}" if short else str(cuda and cuda[1])
        reading.cuda_release(release, place)
        return True
    if python:
        reading.add_python(f"==3.{python[1]}.*", place)
        return True
    named = re.fullmatch(r"([a-z]+)" + VERSION, part)
    if named and of_target and named[1] in (*PARTS, *TARGET_PARTS):
        version = named[2].removeprefix("v")
        more = ".*" if re.fullmatch(r"[\d.]+", version) else ""
        reading.add_requirement(f"{PARTS.get(named[1], named[1])}=={version}{more}", place)
        return True
    if named and named[1] in PARTS:
        reading.add_requirement(f"{PARTS[named[1]]}=={named[2]}", place)
        return True
    return False
