"""Reads the environment in a log: versions, Python, driver, GPU and architecture."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec
from packaging.version import Version

from imgbuild.audit.binaries import gpu_models
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


@lru_cache(maxsize=1)
def gpu_name_pattern() -> re.Pattern[str]:
    """Return a pattern for the name of a GPU.

    Names without a model number of three digits are also words, so a brand must precede them.
    """
    names = sorted(
        {name for model in gpu_models.load_gpu_models() for name in model.names}, key=len
    )[::-1]
    rows = [(name, re.escape(name).replace(r"\ ", " ?").replace(r"\#", r"\d")) for name in names]
    digits = "|".join(row for name, row in rows if re.search(r"[\d#]{3}|^(?:T4|L40|GB10)", name))
    every = "|".join(row for _, row in rows)
    brand = r"(?:NVIDIA|Tesla|GeForce|Quadro|DGX|Jetson|GPU)"
    card = r"(?<![\w.])(?=[1-5]0[5-9]0 ?(?:Ti\b|显卡|卡|上))(?P<card>\d{4})"
    named = rf"(?<![\w.-])(?:(?:{brand}[ -]){{1,3}}({every})|({digits}))(?!\w|\.\w)"
    return re.compile(f"{named}|{card}")


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
DRIVER_CUDA = re.compile(
    r"(?:CUDA Version: ?(\d{2}\.\d)\b|nvidia-smi\b.{0,20}CUDA (?:Version )?"
    r"(?P<smi>\d{2}\.\d)\b|found version (\d{2})0(\d)0\b)"
)
CAPABILITY = re.compile(
    r"(?:(?<!target )sm_|[Cc]ompute capability:? |(?i:CUDA) capability"
    r" (?:sm_)?)(\d{1,2})\.?(\d)\b"
)
# The C library of the machine, and the releases of distributions that have it.
GLIBC = re.compile(
    r"(?:glibc[ -]?|GNU libc\) |GLIBC [\w.+~-]{3,40}\) |with-glibc)(2\.\d{1,2})\b", re.IGNORECASE
)
ENTERPRISE = r"(?:CentOS|Rocky|Alma|Oracle|RHEL|Red Hat)[A-Za-z ]{0,24}"
RELEASES = {
    "2.17": rf"{ENTERPRISE}7(?![\w-])",
    "2.26": r"Amazon Linux 2(?!\d)",
    "2.27": r"Ubuntu:? ?18\.04",
    "2.28": rf"{ENTERPRISE}8(?![\w-])",
    "2.31": r"Ubuntu:? ?20\.04|Debian (?:GNU/Linux )?11|bullseye",
    "2.34": rf"{ENTERPRISE}9(?![\w-])",
    "2.35": r"Ubuntu:? ?22\.04",
    "2.36": r"Debian (?:GNU/Linux )?12|bookworm",
}
RELEASE = re.compile(
    "|".join(f"(?P<v{glibc.replace('.', '_')}>{names})" for glibc, names in RELEASES.items()),
    re.IGNORECASE,
)
# Every match of RELEASE has one of these in lower case. Searching for them first is faster.
DISTRIBUTIONS = (
    *("ubuntu", "debian", "bullseye", "bookworm", "amazon"),
    *("centos", "rocky", "alma", "oracle", "rhel", "red hat"),
)
PLATFORM = re.compile(r"--(?:python-)?platform[= ]['\"]?([\w.-]{3,60})(?![\w./-])")  # not Docker's
INDEX = re.compile(
    r"\binstall\b.{0,400} (?:--(?:extra-)?index(?:-url)?[= ]|-i )(https?://[^\s'\"]{4,200})"
)
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
    gpu: str = ""  # name
    glibc: str = ""
    platform: str = ""  # for which pip or uv selects wheels
    index: str = ""  # that a command of pip or uv adds
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
            self.driver_cuda = cuda[1] or cuda["smi"] or f"{cuda[3]}.{cuda[4]}"
        if not self.capability and (model := CAPABILITY.search(text)):
            self.capability = f"{model[1]}.{model[2]}"
        if not self.gpu and (name := gpu_name_pattern().search(text)):
            self.gpu = next(filter(None, name.groups()))
        self._read_glibc(text)
        self._read_command(text)
        self.arm = self.arm or bool(ARM.search(text))

    def _read_command(self, text: str) -> None:
        """Read the options of a command of pip or uv."""
        if not self.platform and (platform := PLATFORM.search(text)):
            self.platform = platform[1]
        if not self.index and (index := INDEX.search(text)):
            self.index = index[1]

    def _read_glibc(self, text: str) -> None:
        if stated := GLIBC.search(text):
            self.glibc = stated[1]
            return
        lower = text.lower()
        if self.glibc or not any(name in lower for name in DISTRIBUTIONS):
            return
        if release := RELEASE.search(text):
            self.glibc = (release.lastgroup or "").removeprefix("v").replace("_", ".")

    @property
    def gpu_capability(self) -> str:
        """The compute capability that the log states, or that of the GPU that it names, or ""."""
        model = gpu_models.find_gpu_model(self.gpu) if self.gpu and not self.capability else None
        return model.capability if model is not None else self.capability

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
        self.versions.setdefault(normalize_package(name), version.rstrip("."))

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
