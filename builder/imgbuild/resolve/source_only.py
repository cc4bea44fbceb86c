"""Gives advice on packages that are published only as source with CUDA code, such as flash-attn.

Projects publish wheels of these packages outside of the index. The file name of a wheel depends on
Python, CUDA, torch and the machine, so no wheel is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
from packaging.version import Version

from imgbuild.errors import ImgbuildError
from imgbuild.index.candidates import is_sdist
from imgbuild.resolve import engine_torch, sdist_code
from imgbuild.resolve.demands import PackageDemand
from imgbuild.resolve.feasible import IndexPages, UnmetDemand, find_obstacles
from imgbuild.resolve.imports import ImportSite
from imgbuild.system import threads
from imgbuild.values import normalize_package
from imgbuild.wheel.tags import WheelTags

LEVELS = 4  # of requirements of requirements
PACKAGES = 60  # that are looked up at each level
THREADS = 8

# The first torch whose wheels have the new C++ ABI, according to PyTorch's release notes for 2.7
# and 2.6 (https://github.com/pytorch/pytorch/releases/tag/v2.7.0); 2.6.0 for CUDA 12.6 has it.
NEW_ABI = (2, 7)


class SourceProject(msgspec.Struct, frozen=True, kw_only=True):
    """The location and names of a project's wheels, and alternatives to the package.

    `pattern` contains fields of `WheelNeeds`, and is "" if unknown. `module` is the import name.
    `without` contains settings with which a program does not need the package. `cuda` contains
    pairs of a version and a minor CUDA release ("122"), which the file names of earlier versions
    contain.
    """

    releases: str
    module: str
    pattern: str = ""
    without: tuple[str, ...] = ()
    cuda: tuple[tuple[str, str], ...] = ()


_SDPA = (
    'attn_implementation="sdpa" in from_pretrained (transformers)',
    "no change for vLLM, which contains its own flash attention kernels",
)
_SSD = "{name}-{version}+cu{cuda}torch{torch}cxx11abi{abi}-{python}-{python}-linux_{machine}.whl"

PROJECTS: Mapping[str, SourceProject] = {
    "flash-attn": SourceProject(
        releases="https://github.com/Dao-AILab/flash-attention/releases",
        module="flash_attn",
        pattern=_SSD,
        without=_SDPA,
        cuda=(("2.6", "122"), ("2.7", "123")),
    ),
    "flash-attn-3": SourceProject(
        releases="https://github.com/Dao-AILab/flash-attention/tree/main/hopper",
        module="flash_attn_interface",
        without=_SDPA[:1],
    ),
    "causal-conv1d": SourceProject(
        releases="https://github.com/Dao-AILab/causal-conv1d/releases",
        module="causal_conv1d",
        pattern=_SSD,
        cuda=(("1.5", "122"),),
    ),
    "mamba-ssm": SourceProject(
        releases="https://github.com/state-spaces/mamba/releases",
        module="mamba_ssm",
        pattern=_SSD,
        cuda=(("2.2.3", "122"),),
    ),
    "xformers": SourceProject(
        releases="https://github.com/facebookresearch/xformers",
        module="xformers",
        without=_SDPA[:1],
    ),
    "apex": SourceProject(
        releases="https://github.com/NVIDIA/apex",
        module="apex",
        without=("adamw_torch_fused as the optimizer, and torch.nn.LayerNorm and RMSNorm",),
    ),
    "transformer-engine": SourceProject(
        releases="https://github.com/NVIDIA/TransformerEngine/releases",
        module="transformer_engine",
        without=("bf16 instead of fp8 recipes",),
    ),
    "transformer-engine-torch": SourceProject(
        releases="https://github.com/NVIDIA/TransformerEngine/releases",
        module="transformer_engine",
        without=("bf16 instead of fp8 recipes",),
    ),
    "flash-linear-attention": SourceProject(
        releases="https://github.com/fla-org/flash-linear-attention/releases", module="fla"
    ),
    "grouped-gemm": SourceProject(
        releases="https://github.com/fanshiqing/grouped_gemm/releases", module="grouped_gemm"
    ),
    "deep-gemm": SourceProject(
        releases="https://github.com/deepseek-ai/DeepGEMM", module="deep_gemm"
    ),
    "deep-ep": SourceProject(releases="https://github.com/deepseek-ai/DeepEP", module="deep_ep"),
}
NIGHTLY = re.compile(r"\.dev\d+|\+g[0-9a-f]{6,}")


class WheelNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """The environment of a compiled wheel: Python ("3.11"), CUDA ("12.4"), torch, machine."""

    python: str
    cuda: str
    torch: str
    machine: str

    @property
    def abi_name(self) -> str:
        """The C++11 ABI of torch, as written in file names: "TRUE" or "FALSE"."""
        release = Version(self.torch).release[:2]
        new = release >= NEW_ABI or (release == (2, 6) and self.cuda == "12.6")
        return str(new or self.machine == "aarch64").upper()

    def file_name(self, package: str, version: str) -> str | None:
        """Return the file name of a wheel of `package`, or None if the pattern is unknown."""
        project = PROJECTS.get(package)
        if project is None or not project.pattern or not version:
            return None
        major, minor = Version(self.torch).release[:2]
        cuda = self.cuda.partition(".")[0]
        older = (name for before, name in project.cuda if Version(version) < Version(before))
        if (name := next(older, "")) and cuda in ("11", "12"):
            cuda = name if cuda == "12" else "118"
        return project.pattern.format(
            name=package.replace("-", "_"),
            version=version,
            cuda=cuda,
            torch=f"{major}.{minor}",
            abi=self.abi_name,
            python="cp" + self.python.replace(".", ""),
            machine=self.machine,
        )


class BuildAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a package has no wheel, and the remedies in order.

    `targets` contain the package. `imports` are the places where files of the project import the
    package, and `needed_by` the packages in the set that require it.
    """

    package: str
    version: str
    reason: str
    file: str = ""
    releases: str = ""
    targets: tuple[str, ...] = ()
    imports: tuple[ImportSite, ...] = ()
    needed_by: tuple[str, ...] = ()

    @property
    def remedy_lines(self) -> list[str]:
        """The remedies in order, and the packages that require this one, as lines."""
        lines = []
        if self.file:
            lines.append(
                f"the URL of a wheel: `{self.package} @ https://…/{self.file}` (pattern of the"
                f" file names in {self.releases})"
            )
        elif self.releases:
            lines.append(
                f"the URL of a wheel: `{self.package} @ https://….whl`, if {self.releases} has one"
                " for this Python, torch and CUDA"
            )
        if self.targets:
            lines.append(f"a target with this package: {', '.join(self.targets)}")
        users = [*(str(site) for site in self.imports), *self.needed_by]
        if users:
            lines.append(f"needed by {', '.join(users)}")
        else:
            lines.append("no Python file of the project imports it")
        return [*lines, *without(self.package)]


def is_source_project(package: str) -> bool:
    """Return whether `package` is known to be published only as source with CUDA code."""
    return package in PROJECTS


def absence_text(package: str) -> str:
    """Return why images lack `package`, and the remedy.

    Return "" if `package` is not in `PROJECTS`.
    """
    project = PROJECTS.get(package)
    if project is None:
        return ""
    without = "".join(f"; {setting}" for setting in project.without)
    return (
        "it is published only as source with CUDA code on the index, but images contain only"
        f" wheels; to add a wheel that {project.releases} may have, run in a project:"
        f" imgbuild add '{package} @ https://….whl'"
        f"{'; without it: ' if without else ''}{without.removeprefix('; ')}"
    )


def is_nightly(version: str) -> bool:
    """Return whether a version is a nightly build, which indexes of releases do not contain."""
    return NIGHTLY.search(version) is not None


def build_advice(
    package: str,
    version: str,
    needs: WheelNeeds,
    *,
    targets: Sequence[str] = (),
    imports: Sequence[ImportSite] = (),
    needed_by: Sequence[str] = (),
    unfit: str = "",
) -> BuildAdvice:
    """Return the advice for `package` at `version`, the version that would be chosen.

    `unfit` is the reason why a wheel that the project requires by URL cannot be used.
    """
    project = PROJECTS.get(package)
    return BuildAdvice(
        package=package,
        version=version,
        reason=(
            f"{f'{unfit}, and ' if unfit else ''}"
            f"the index has no wheel for Python {needs.python}, torch {needs.torch} and CUDA"
            f" {needs.cuda}, only source with CUDA code"
        ),
        file=needs.file_name(package, version) or "",
        releases=project.releases if project is not None else "",
        targets=tuple(targets),
        imports=tuple(imports),
        needed_by=tuple(needed_by),
    )


def without(package: str) -> list[str]:
    """Return settings with which a program does not need `package`, as lines."""
    project = PROJECTS.get(package)
    return [f"without it: {setting}" for setting in project.without] if project else []


def imported_module(package: str) -> str:
    """Return the name with which `package` is imported."""
    project = PROJECTS.get(package)
    return project.module if project is not None else package.replace("-", "_")


def required_sdists(
    additions: Sequence[PackageDemand], have: Collection[str], pages: IndexPages, tags: WheelTags
) -> list[UnmetDemand]:
    """Return the requirements of the newest `additions` that are pure Python but have no wheel.

    They are returned as obstacles. Otherwise, a solver would select a version of the addition that
    precedes the requirement, or find no solution. Indirect requirements are included. The packages
    `have`, the additions themselves and sdists that compile code are excluded. No code of an sdist
    is run.
    """
    return [
        each
        for level in requirement_levels(additions, have, pages, tags)
        for each in find_obstacles(level, pages, tags)
        if each.cause == "source" and sdist_code.obstacle_code(each, pages) == "python"
    ]


def requirement_levels(
    additions: Sequence[PackageDemand], have: Collection[str], pages: IndexPages, tags: WheelTags
) -> Iterator[list[PackageDemand]]:
    """Yield the requirements of the newest versions of `additions`, level by level.

    The packages `have` and the additions are excluded.
    """
    level = [each for each in additions if each.installed and not each.source][:PACKAGES]
    seen = {*have, *(each.package for each in additions)}
    for _ in range(LEVELS):
        pages.read(each.package for each in level)
        texts = threads.run_for_each(
            level, lambda each, _: _metadata(each, pages, tags), threads=THREADS
        )
        needed = {
            name: PackageDemand(
                package=name, spec=str(item.specifier), extras=tuple(sorted(item.extras))
            )
            for demand, text in zip(level, texts, strict=True)
            for item in engine_torch.required_with_extras(demand, text, tags.markers)
            if (name := normalize_package(item.name)) not in seen and item.url is None
        }
        if not needed:
            return
        seen |= needed.keys()
        level = list(needed.values())[:PACKAGES]
        yield level


def _metadata(demand: PackageDemand, pages: IndexPages, tags: WheelTags) -> bytes:
    """Return METADATA of the newest wheel that meets `demand`, or else of the newest sdist."""
    wheel = pages.newest_wheel(demand, tags)
    try:
        if wheel is not None:
            return pages.metadata(wheel)
        sdists = [file for file in pages.allowed(demand) if is_sdist(file)]
        final = [file for file in sdists if file.version and not file.version.is_prerelease]
        newest = max(final or sdists, key=lambda file: file.version or 0, default=None)
        return (
            sdist_code.read_sdist_content(newest, pages.context).requires
            if newest is not None
            else b""
        )
    except ImgbuildError as error:  # the solver reports it if it matters
        pages.context.reporter.detail(f"{demand.package}: {error.message}")
        return b""
