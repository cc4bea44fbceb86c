"""Explains a flash-attn that was built for another torch."""

# A separate module: the names of flash-attn's wheels.
from __future__ import annotations

from packaging.version import Version

from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import Reason

# The newest torch for which the project has wheels of flash-attn.
NEWEST_TORCH = {"2.6": (2, 4), "2.7": (2, 6), "2.8": (2, 8)}


def other_torch_reason(cause: str, facts: LogFacts) -> Reason:
    """Return the reason for a flash-attn that was built for another torch.

    The file names of flash-attn's wheels contain the torch version.
    """
    torch, wheel = facts.version("torch"), facts.wheels.get("flash-attn")
    if wheel is not None:
        built = f"torch {wheel.torch}" + (f" (cxx11abi{wheel.abi})" if wheel.abi else "")
        cause = f"the installed flash-attn {wheel.version} was built for {built}"
        cause += (
            f"; installed is torch {torch}" if torch else ", and a different torch is installed"
        )
    name = "whose name has torch2.X and cxx11abiTRUE (torch 2.7 and newer, and PyTorch's own"
    name += " images) or FALSE (PyPI's torch up to 2.6)"
    if torch is not None:
        name = _wheel_name(torch, facts.versions.get("flash-attn", ""), facts.python)
    return Reason(
        code="IMG724",
        cause=cause,
        cure="reinstall it for this torch: pip install --no-build-isolation --no-cache-dir"
        " --force-reinstall --no-deps flash-attn"
        + (f", or install the wheel {name}" if name else ""),
        confidence="high",
    )


def _wheel_name(torch: Version, version: str, python: str) -> str:
    """Return the wheel of flash-attn for a torch, or "" if the project has none.

    The wheel is of the installed `version` if it has one for this torch.
    """
    release = torch.release[:2]
    if release > NEWEST_TORCH["2.8"]:
        return ""
    have = version.partition("+")[0]
    if release > NEWEST_TORCH.get(".".join(have.split(".")[:2]), (0, 0)):
        have = "2.7.4.post1" if release <= NEWEST_TORCH["2.7"] else "2.8.3"
    abi = "TRUE" if release >= (2, 7) else "FALSE"
    tag = f"cp{python.replace('.', '')}" if python else "cp3XX"
    cuda = "cu123" if have.startswith("2.6.") else "cu12"
    return (
        f"flash_attn-{have}+{cuda}torch{'.'.join(map(str, release))}cxx11abi{abi}-{tag}"
        " (cxx11abiTRUE for a torch of PyTorch's own images)"
    )
