"""Adapts the causes and cures of rules to the machine that a log shows: GPU, driver and glibc."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from imgbuild.audit.binaries import gpus
from imgbuild.diagnose import pairs, program_reasons
from imgbuild.diagnose.facts import LogFacts

INDEX = "--index-url https://download.pytorch.org/whl/"
NEWER_GLIBC = "an image with a newer glibc (Debian 12 has 2.36, Ubuntu 22.04 2.35)"
VLLM_GLIBC = "; vllm 0.12.0 to 0.19.1 needs 2.31, 0.20 2.35, 0.22.0 and newer 2.28"
REQUIRED_CUDA = re.compile(r"cuda ?>= ?(\d{2}\.\d)")
FOUND = re.compile(r"found version (\d{2})0(\d)0\b")
WHEEL = re.compile(
    r"(?<!\w)(?P<name>[A-Za-z]\w{0,80}+)-(?P<version>[\w.+!]{1,80}+)(?:-\d\w{0,20}+)?"
    r"-(?P<python>(?:cp|py)[\w.]{1,60}+)-(?P<abi>\w{1,60}+)-(?P<platform>[\w.]{1,200})\.whl"
)
MANYLINUX = re.compile(r"manylinux_2_(\d{1,2})_")
LEGACY = {"manylinux1_": 5, "manylinux2010_": 12, "manylinux2014_": 17}
KERNEL_SOURCE = re.compile(
    r"CUDA error \(\S{0,120}?(?:xformers|flash-attention|flash_attn)\S{0,200}"
)
TOOLKITS = re.compile(
    r"(?:detected CUDA version \(|Installed CUDA version )(?P<have>\d{2}\.\d).{0,80}?"
    r"(?:PyTorch \(|compiled with )(?P<want>\d{2}\.\d)"
)
LISTED = re.compile(
    r"requirement (?P<name>(?!vllm\b)[\w.-]{1,80}+)(?P<spec>==(?P<version>\d[\w.]{0,40})|\S{0,80})"
    r" \(from versions: (?P<have>\d[^)]{0,4000})\)"
)
BUILT_FOR = re.compile(
    r"PyTorch (?P<want>\d[\d.]*)\+(?P<cuda>cu\d{2,3}) with CUDA \d{3,4}"
    r" \(you have (?P<have>\d[\d.]*)\+(?P<local>\w+)"
)
PROCESS = re.compile(r"Process (\d+) has (\d[\d.]* [KMG]iB) memory in use")
TAG = re.compile(
    r"(?<![\w.-])(?P<package>[A-Za-z][\w.-]{0,80}+)(?P<spec>\S{0,80}) has no wheels with a"
    r" matching platform tag \(e\.g\., `(?P<tag>(?:manylinux|linux)\w{0,80}_aarch64)`\)"
)
ABSENT = re.compile(
    r"(?P<program>[\w.+-]+)(?:['\"]?: not found$|['\"]: executable file not found|'$|: ?未找到命令)"
)
AFTER = "; the driver must be new enough for that CUDA (imgbuild doctor)"


Adapted = tuple[str, str]  # cause and cure, each "" if the rule's own fits


def machine_reason(code: str, text: str, facts: LogFacts) -> Adapted:
    """Return cause and cure of the rule `code` for this machine."""
    adapt = ADAPTED.get(code)
    return adapt(text, facts) if adapt is not None else ("", "")


def _no_kernel(text: str, facts: LogFacts) -> Adapted:
    """Return the reason for wheels without code for the GPU."""
    capability, torch = facts.gpu_capability, facts.version("torch")
    if not capability:
        return "", ""
    gpu = f"{facts.gpu or 'this GPU'} (sm_{capability.replace('.', '')})"
    cuda = _torch_cuda(facts)
    cause = f"an installed package (torch, vllm or an extension) has no code for {gpu}"
    if (source := KERNEL_SOURCE.search(text)) is not None:
        package = "xformers" if "xformers" in source[0] else "flash-attn"
        kernels = f"FlashAttention 3 of {package}" if "/hopper/" in source[0] else package
        return f"{kernels} has no code for {gpu}", (
            f"uninstall {package} or select another attention (attn_implementation=sdpa), or build"
            f" {package} for this GPU: TORCH_CUDA_ARCH_LIST={capability} pip install"
            " --no-build-isolation --no-cache-dir --force-reinstall --no-deps --no-binary"
            f" {package} {package}"
        )
    if torch is not None and cuda and _lacks(cuda, capability):
        cause = f"torch {torch} is a build for CUDA {cuda}, which has no code for {gpu}"
    return cause, _gpu_cure(capability)


def _absent_program(text: str, _: LogFacts) -> Adapted:
    """Return the cure for a program that is not on PATH."""
    match = ABSENT.search(text)
    return "", program_reasons.absent_program_cure(match["program"]) if match else ""


def _torch_cuda(facts: LogFacts) -> str:
    """Return the CUDA release ("12.8") for which the torch in the log was built, or ""."""
    torch = facts.version("torch")
    if torch is None:
        return ""
    if local := re.fullmatch(r"cu(\d\d)(\d)", torch.local or ""):
        return f"{local[1]}.{local[2]}"
    build = pairs.load_pairs().torch_wheel(torch)
    return build.cuda if build is not None else ""


def _newer_torch(_: str, facts: LogFacts) -> Adapted:
    """Return the reason if torch sees no GPU because it is for a newer major version of CUDA."""
    torch = facts.version("torch")
    if torch is not None and torch.local == "cpu":
        where = "of PyPI with vllm>=0.20.0" if facts.arm else "of PyPI, whose version has no +cpu"
        cure = f"pip install --force-reinstall torch==VERSION {where} (VERSION: the one that pip"
        cure += f" check names for vllm; before 2.11.0 on arm64: {INDEX}cu128)"
        return f"the installed torch {torch} is a CPU build, which has no CUDA", cure
    cuda, driver = _torch_cuda(facts), facts.driver_cuda
    if not gpus.is_older(driver.partition(".")[0], cuda):
        return "", ""
    cause = f"torch {facts.version('torch')} is a build for CUDA {cuda}, and the driver is for CUDA"
    cause += f" {driver}: torch sees no GPU"
    return cause, _for_driver(driver)


def _for_driver(driver: str) -> str:
    """Return the cure for a driver that supports CUDA up to the release `driver`."""
    new = "install driver 580.65.06 or newer (CUDA 13)"
    old = "torch<=2.10.0 of PyPI (CUDA 12) with vllm<=0.19.1"
    if gpus.is_older(driver, "12"):
        new = "install driver 525.60.13 or newer (CUDA 12; CUDA 13 needs 580.65.06)"
        old = f"a torch for CUDA 11.8: torch<=2.7.1 with {INDEX}cu118"
    return f"{new} on the host, or {old} (imgbuild doctor names the target that fits)"


def _lacks(cuda: str, capability: str) -> bool:
    """Whether torch's builds for a CUDA release have no code for a GPU."""
    release, gpu = gpus.version_numbers(cuda), gpus.version_numbers(capability)
    oldest = (7, 5) if release >= (13, 0) else (7, 0) if release >= (12, 8) else (5, 0)
    newest = (12, 1) if release >= (12, 8) else (9, 0)
    return not oldest <= gpu <= newest


def _gpu_cure(capability: str) -> str:
    gpu = gpus.version_numbers(capability)
    quantized = (
        "quantized kernels (Marlin, FP8, GPTQ 8 bits) and flash-attn do not exist for it: use"
        " unquantized weights, dtype=half and attn_implementation=sdpa"
    )
    if gpu < (7, 0):
        return (
            f"install a torch for CUDA 12.6 or older (torch<=2.7.1 of PyPI, or {INDEX}cu126), the"
            " last one with code for this GPU; vllm needs compute capability 7.0, sglang 7.5"
        )
    if gpu < (7, 5):
        return (
            "install torch<=2.10.0 of PyPI (CUDA 12) with vllm<=0.19.1, because builds for CUDA 13"
            f" (torch 2.11.0 and newer) start at sm_75; or a newer torch with {INDEX}cu126;"
            f" {quantized}"
        )
    if gpu < (8, 0):
        return f"all builds of torch have code for this GPU, but {quantized}"
    if gpu < (10, 0):
        arch = f"{capability}a" if gpu >= (9, 0) else capability
        return (
            "all builds of torch and vllm on PyPI have code for this GPU: compile the extension for"
            f" it (TORCH_CUDA_ARCH_LIST={arch}, pip install --no-build-isolation --no-cache-dir"
            " --force-reinstall --no-deps PACKAGE), or use a release or backend for this GPU"
            " (FlashAttention 3 and FP8 kernels of Hopper do not run on Ampere and Ada)"
        )
    if capability in ("10.3", "11.0", "12.1"):
        return (
            "install a torch for CUDA 13 (torch>=2.11.0 of PyPI, or"
            f" {INDEX}cu130) with vllm>=0.20.0{AFTER}; compile extensions again for it"
            f" (TORCH_CUDA_ARCH_LIST={capability})"
        )
    return (
        f"install a torch for CUDA 12.8 or newer (torch>=2.8.0 of PyPI, or torch>=2.7.0 with"
        f" {INDEX}cu128) with vllm>=0.10.2 and driver>=570; compile extensions (flash-attn,"
        f" xformers<0.0.31) again for it (TORCH_CUDA_ARCH_LIST={capability})"
    )


def _old_for_vllm(text: str, facts: LogFacts) -> Adapted:
    if "capability below 7.0" not in text:
        return "", ""
    cause = "vllm supports GPUs of compute capability 7.0 and higher (V100, T4 and newer), and"
    return f"{cause} {facts.gpu or 'this GPU'} is older", (
        "use a newer GPU; no option of vllm changes it: on this GPU use generate() of transformers"
        f" or llama.cpp in float32 or float16, with torch<=2.7.1 of PyPI or {INDEX}cu126"
    )


def _arm64(text: str, _: LogFacts) -> Adapted:
    """Return the reason for a version without a wheel for arm64, from those that pip lists."""
    listed = LISTED.search(text)
    if listed is None:
        return "", ""
    name, version = listed["name"], listed["version"] or "0"
    versions = listed["have"].replace(" ", "").split(",")
    newer = [each for each in versions if gpus.is_older(version, each)]
    build = f"build {name}{listed['spec']} from source, or omit it (a marker: {name};"
    build += " platform_machine == 'x86_64')"
    cure = f"on arm64 require {name}>={newer[0]}, or {build}" if newer else build
    return f"{name}{listed['spec']} has no wheel for Linux on arm64", cure


def _driver(text: str, facts: LogFacts) -> Adapted:
    """Return the cure for a driver that is older than the message requires."""
    drivers = gpus.load_drivers()
    if required := REQUIRED_CUDA.search(text):
        driver = drivers.release_driver(required[1]) or drivers.oldest_driver(required[1])
        newer = f"driver {driver} or newer" if driver else "a newer driver"
        return "", (
            f"install {newer} on the host (for CUDA {required[1]}), or use an"
            " image for the CUDA Version that nvidia-smi shows there, or older (imgbuild doctor"
            " names the target that fits); NVIDIA_DISABLE_REQUIRE=1 skips this check, which"
            " suffices if the driver supports that major version"
            " (CUDA 12 >=525.60.13, CUDA 13 >=580.65.06)"
        )
    stated = FOUND.search(text)
    driver_cuda = f"{stated[1]}.{stated[2]}" if stated else facts.driver_cuda
    return "", _for_driver(driver_cuda) if driver_cuda else ""


def _older_cuda(_: str, facts: LogFacts) -> Adapted:
    cuda = facts.driver_cuda
    if not cuda:
        return "", ""
    return "", (
        f"the driver supports PTX of CUDA {cuda} and older: install a newer driver, or use torch,"
        f" vllm, flash-attn and flashinfer for CUDA {cuda} or older and compile extensions with its"
        " nvcc (CUDA_HOME; imgbuild doctor), and delete ~/.triton/cache and ~/.cache/flashinfer"
    )


def _toolkit(text: str, _: LogFacts) -> Adapted:
    toolkits = TOOLKITS.search(text)
    if toolkits is None:
        return "", ""
    have, want = toolkits["have"], toolkits["want"]
    return "", (
        f"use the CUDA toolkit {want} (an image nvidia/cuda:{want}.…-devel, CUDA_HOME set to it;"
        f" nvcc --version shows the one in use), or a torch for CUDA {have}"
        f" ({INDEX}cu{have.replace('.', '')}); deepspeed: DS_SKIP_CUDA_CHECK=1 if only the minor"
        " version differs"
    )


def _shared_gpu(text: str, _: LogFacts) -> Adapted:
    """Return the cause if torch names several processes on the GPU: a trainer and an engine."""
    processes = PROCESS.findall(text)
    if len(processes) <= 1:
        return "", ""
    shown = ", ".join(f"process {number} has {size}" for number, size in processes)
    return (
        f"the GPU's memory is full, because several processes share it ({shown}): the trainer and"
        " the rollout engine, or an earlier run"
    ), ""


def _no_wheel(text: str, _: LogFacts) -> Adapted:
    """Return the reason for a platform tag of arm64."""
    tag = TAG.search(text)
    if tag is None:
        return "", ""
    package = tag["package"]
    cure = f"use a version of {package} with wheels for aarch64 (uv finds one without the exact"
    cure += f" version), build {package} from source on that machine, or omit it (a marker:"
    return (
        f"{package}{tag['spec']} has no wheel for Linux on arm64 ({tag['tag']})",
        f"{cure} {package}; platform_machine == 'x86_64')",
    )


def _cublas(text: str, facts: LogFacts) -> Adapted:
    if "16BF" not in text or not gpus.is_older(facts.gpu_capability, "8.0"):
        return "", ""
    cause = "the GPU has no bfloat16, which needs compute capability 8.0 (Ampere) or higher"
    return cause, "use fp16: dtype=half (vllm), fp16=True and bf16=False"


def _numpy(text: str, facts: LogFacts) -> Adapted:
    """Return the reason for a package that was compiled for another numpy, by the direction."""
    pyarrow, numpy = facts.versions.get("pyarrow", ""), facts.versions.get("numpy", "")
    if gpus.is_older("25.99", pyarrow) and gpus.is_older(numpy, "2"):
        cause = f"pyarrow {pyarrow} needs numpy 2, and numpy {numpy} is installed"
        return cause, "install pyarrow<26, or numpy>=2 if vllm and the other packages allow it"
    if "Expected 88 from C header, got 96" in text:
        cure = "pip install -U 'numpy>=2' if the other packages allow it (pip check), or an older"
        cure += " release of the package, compiled for numpy 1"
        return "a package was compiled for numpy 2, and numpy 1 is installed", cure
    return "", ""


def _xformers(text: str, _: LogFacts) -> Adapted:
    """Return the reason for an xformers that was built for the same torch with another CUDA."""
    builds = BUILT_FOR.search(text)
    if builds is None or builds["want"] != builds["have"]:
        return "", ""
    version, local = builds["have"], builds["local"]
    if local == "cpu":
        index = f"{INDEX}{builds['cuda']}"
        return (
            f"the installed torch {version}+cpu is a CPU build, and xformers was built for CUDA",
            f"pip install --force-reinstall torch=={version} {index} (a CUDA build)",
        )
    cause = f"xformers was built for torch {version}+{builds['cuda']}, and its build"
    cause += f" {version}+{local} is installed: CUDA differs"
    cure = "install xformers from the index of this torch: pip install --force-reinstall"
    cure += f" --no-deps xformers {INDEX}{local}, or torch=={version} with {INDEX}{builds['cuda']}"
    return cause, cure


def _wheel(text: str, facts: LogFacts) -> Adapted:
    """Return the reason for a wheel that cannot be installed, from the tags in its name."""
    wheel = WHEEL.search(text)
    if wheel is None:
        return "", ""
    name, platform = wheel["name"].replace("_", "-"), wheel["platform"]
    what = f"the wheel of {name} {wheel['version']}"
    needed = glibc_of_platform(platform)
    if needed and facts.glibc and gpus.is_older(facts.glibc, needed):
        cure = f"use {NEWER_GLIBC}, or a version of {name} with wheels for glibc {facts.glibc}"
        cause = f"{what} needs glibc {needed} ({platform}), and this system has {facts.glibc}"
        return cause, cure + VLLM_GLIBC * (name == "vllm")
    if platform.startswith(("win", "macosx")):
        return f"{what} is for {platform}", f"install the wheel of {name} for Linux, from the index"
    machine = platform.removeprefix("linux_").partition(".")[0]
    if facts.arm and machine.endswith("x86_64"):
        cure = f"install a wheel of {name} for aarch64, or build it on this machine"
        return f"{what} is for x86_64, and this machine is arm64", cure
    python = wheel["python"].removeprefix("cp")
    tagged = wheel["abi"].startswith("cp")
    if tagged:
        python = f"{python[0]}.{python[1:]}"
        cause = f"{what} is for Python {python} on {platform} only, and this environment has"
        cure = "install the wheel whose name has this Python (python --version; cp312 is 3.12), or"
        cure += f" use Python {python} (uv venv --python {python}); pip debug --verbose lists the"
        return f"{cause} another Python, an older glibc or another architecture", f"{cure} tags"
    if not needed:
        return "", ""
    cause = f"{what} needs glibc {needed} ({platform}), or another architecture than this machine's"
    cure = f"check ldd --version and uname -m: use {NEWER_GLIBC}, or a version of {name} with"
    cure += f" older wheels{VLLM_GLIBC * (name == 'vllm')}"
    return f"{cause}; it is for all newer versions of Python", cure


def glibc_of_platform(platform: str) -> str:
    """Return the glibc ("2.28") that the tag of a wheel's platform requires, or ""."""
    minors = [int(minor) for minor in MANYLINUX.findall(platform)]
    minors += [minor for tag, minor in LEGACY.items() if tag in platform]
    return f"2.{min(minors)}" if minors else ""


ADAPTED: Mapping[str, Callable[[str, LogFacts], Adapted]] = {
    "IMG804": _absent_program,
    "IMG501": _driver,
    "IMG502": _driver,
    "IMG503": _older_cuda,
    "IMG504": _no_kernel,
    "IMG507": _newer_torch,
    "IMG516": _cublas,
    "IMG520": _shared_gpu,
    "IMG602": _arm64,
    "IMG605": _no_wheel,
    "IMG606": _wheel,
    "IMG625": _toolkit,
    "IMG717": _numpy,
    "IMG761": _newer_torch,
    "IMG792": _newer_torch,
    "IMG1431": _xformers,
    "IMG1444": _old_for_vllm,
}
