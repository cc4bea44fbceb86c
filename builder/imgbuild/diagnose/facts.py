"""Reads the environment in a log: versions, Python, driver, GPU and architecture."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec
from packaging.version import Version

from imgbuild.audit.names.releases import load_name_table
from imgbuild.diagnose.prefixes import LogLine
from imgbuild.system.syntax import parse_version
from imgbuild.values import normalize_package

VERSION = r"\d{1,4}\.\d{1,3}(?:\.\d{1,4})?(?:\.?(?:post|dev|rc|a|b)\d{1,8})?(?:\+[\w.]{1,30})?"


@lru_cache(maxsize=1)
def stated_version_pattern() -> re.Pattern[str]:
    """Return a pattern for the version of a package in a text.

    Examples are torch==2.9.0, torch 2.9.0+cu128 and torch-2.9.dist-info.
    """
    names = "|".join(
        re.escape(name).replace(r"\-", "[-_]")
        for name in sorted(load_name_table().packages.split(), key=len, reverse=True)
    )
    return re.compile(
        rf"(?<![\w./-])(?P<name>{names})[`'\"]?"
        rf"(?P<sep>==|-| {{1,30}}| ?[:@] ?| version:? ?|版本[为是:\uff1a]? ?)"
        rf"(?:is )?[`'\"(v]{{0,2}}(?P<version>{VERSION})(?![\w-])(?P<rest>\.dist-info|-cp|-py)?",
        re.IGNORECASE | re.ASCII,
    )


VLLM_BANNER = re.compile(
    r"(?:vLLM (?:API server )?version |LLM engine \(v|vllm-openai(?:-\w+)?:v)"
    rf"(?P<version>{VERSION})"
)
TORCH_BANNER = re.compile(
    rf"(?:PyTorch(?: version)?: |torch\.__version__:? |you have torch"
    rf" )(?P<version>{VERSION})"
)
PYTHON = re.compile(
    r"(?:python|Python ?(?:version:? )?|cpython-|cp)(3\.\d{1,2}|"
    r"3\d{1,2}(?=-))(?:\.\d+)?"
)
DRIVER = re.compile(r"Driver Version: ?(\d{3}\.\d{2,3}(?:\.\d{2})?)")
DRIVER_CUDA = re.compile(r"(?:CUDA Version: ?(\d{2}\.\d)\b|found version (\d{2})0(\d)0\b)")
CAPABILITY = re.compile(
    r"(?:sm_|[Cc]ompute capability:? |CUDA capability"
    r" (?:sm_)?)(\d{1,2})\.?(\d)\b"
)
PLATFORM = re.compile(r"--(?:python-)?platform[= ]['\"]?([\w.-]{3,60})(?![\w./-])")  # not Docker's
ARM = re.compile(r"aarch64|arm64|GH200|GB[23]00|DGX Spark", re.IGNORECASE)


# The packages that may have made a call of which the log does not show the traceback.
USERS = re.compile(
    r"(?<![\w.-])(?:sglang|verl|trl|openrlhf|llamafactory|unsloth|axolotl|xinference|litellm|ddtrace|lmcache|lm_eval|fastchat|torchrl|peft)(?![\w-])",
    re.ASCII,
)
MOST_USERS = 4

# What the name of a wheel of flash-attn, causal-conv1d or mamba-ssm was built for.
WHEEL = re.compile(
    r"(?P<name>[a-z]\w{2,40})-(?P<version>\d[\w.]{1,20})\+cu(?P<cuda>\d{2,3})torch"
    r"(?P<torch>\d\.\d{1,2})(?:cxx11abi(?P<abi>TRUE|FALSE))?-cp(?P<python>3\d{1,2})"
)


# nvidia-nccl-cu13==2.28.9
OF_CUDA = re.compile(r"nvidia-[a-z-]{2,30}-cu(1[123])\b")

# What pip omits: 0.9.1 Requires-Python <3.13,>=3.9
IGNORED = re.compile(
    r"(?P<version>\d[\w.]{0,30}) Requires-Python (?P<spec>[<>=!~][\w.,<>=!~* ]{0,40})"
)


class WheelBuild(msgspec.Struct, frozen=True, kw_only=True):
    """The version of a wheel, and the torch version and C++ ABI ("TRUE", "FALSE") in its name."""

    version: str
    torch: str
    abi: str


class LogFacts(msgspec.Struct):
    """Facts in a log. A field is empty if the log does not contain the fact."""

    versions: dict[str, str] = {}
    wheels: dict[str, WheelBuild] = {}
    ignored: dict[str, str] = {}  # version of a package → the Python that it requires
    cudas: set[str] = set()  # CUDA releases of the NVIDIA packages in a list of packages
    python: str = ""
    users: list[str] = []  # packages in the log that use vllm, transformers or trl
    driver: str = ""
    driver_cuda: str = ""
    capability: str = ""
    platform: str = ""  # for which pip or uv selects wheels
    arm: bool = False

    def read_line(self, line: LogLine) -> None:
        """Read the facts in a line."""
        text = line.text
        for match in stated_version_pattern().finditer(text):
            if match["sep"] == "-" and not match["rest"] and ".whl" not in text:
                continue
            if re.search(r"requires|Because|depends on|from versions|need", text[: match.start()]):
                continue
            self._version(match["name"], match["version"])
        self._read_packages(text)
        for pattern, package in ((VLLM_BANNER, "vllm"), (TORCH_BANNER, "torch")):
            if banner := pattern.search(text):
                self._version(package, banner["version"])
        if not self.python and (python := PYTHON.search(text)):
            digits = python[1]
            self.python = digits if "." in digits else f"{digits[0]}.{digits[1:]}"
        if not self.driver and (driver := DRIVER.search(text)):
            self.driver = driver[1]
        if not self.driver_cuda and (cuda := DRIVER_CUDA.search(text)):
            self.driver_cuda = cuda[1] or f"{cuda[2]}.{cuda[3]}"
        if not self.capability and (model := CAPABILITY.search(text)):
            self.capability = f"{model[1]}.{model[2]}"
        if not self.platform and (platform := PLATFORM.search(text)):
            self.platform = platform[1]
        self.arm = self.arm or bool(ARM.search(text))

    def _read_packages(self, text: str) -> None:
        for match in USERS.finditer(text):
            if len(self.users) < MOST_USERS and match[0] not in self.users:
                self.users.append(match[0])
        if "Requires-Python" in text:
            self.ignored |= {each["version"]: each["spec"] for each in IGNORED.finditer(text)}
        if "nvidia-" in text:
            self.cudas |= {match[1] for match in OF_CUDA.finditer(text)}
        if "torch" in text and "+cu" in text and (wheel := WHEEL.search(text)):
            build = WheelBuild(
                version=wheel["version"], torch=wheel["torch"], abi=wheel["abi"] or ""
            )
            self.wheels.setdefault(normalize_package(wheel["name"]), build)

    def _version(self, name: str, version: str) -> None:
        self.versions.setdefault(normalize_package(name), version)

    def user_of(self, package: str) -> str:
        """Return the import name of the only package in the log that may use `package`.

        Return "" unless there is exactly one such package.
        """
        names = [
            name for name in self.users if normalize_package(name) != normalize_package(package)
        ]
        return names[0] if len(names) == 1 else ""

    def version(self, package: str) -> Version | None:
        """Return the version of a package, or None if the log does not contain it."""
        return parse_version(self.versions.get(normalize_package(package)))
