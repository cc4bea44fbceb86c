"""Types of values in several parts of `matrix.yaml`: names, versions, reasons."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Name = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9]+([._-][a-z0-9]+)*$",
        description="lower-case name, valid as an image tag",
    ),
]
Package = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="package name as PEP 503 normalizes it"
    ),
]
Version = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[0-9][0-9A-Za-z.!+]*$",
        description="one exact version, in quotes if YAML would read a number",
    ),
]
CudaVersion = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[0-9]+\.[0-9]+$", description='CUDA release, major.minor, in quotes: "12.4"'
    ),
]
Repository = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9.:-]*(/[a-z0-9]+([._-]+[a-z0-9]+)*)+$",
        description="a repository of a registry: host/owner/name",
    ),
]
Reason = Annotated[
    str,
    msgspec.Meta(min_length=8, description="why, for the person who reads the refusal or the diff"),
]
Source = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(https://[^ ]+"
        r"|[a-z0-9-]+==[0-9][0-9A-Za-z.!+]* [\w.-]+(/[\w.-]+)*:[0-9]+"
        r"|[\w.-]+(/[\w.-]+)*)$",
        description="https://… of documentation, PACKAGE==VERSION PATH:LINE of a wheel, or the path"
        " of a file in a repository",
    ),
]

Form = Annotated[Literal[1], msgspec.Meta(description="the form of this file")]
Check = Literal["metadata", "elf", "cuda", "imports", "calls", "support", "rules"]
