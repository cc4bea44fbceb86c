"""Explains missing symbols, libraries and CUDA errors."""

# A separate module: facts about binaries.
from __future__ import annotations

import re
from functools import lru_cache

import msgspec
from packaging.version import Version

from imgbuild.audit.binaries import gpus, libraries
from imgbuild.audit.names import releases
from imgbuild.audit.names.releases import Existence
from imgbuild.diagnose import flash_attention, machines, pairs, requirements
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import Reason
from imgbuild.diagnose.literals import LinePattern
from imgbuild.system import files, yaml_data

# A sentence about it, without the symbol.
MENTIONED = re.compile(r"(?i)import \W?flash_attn")
SYMBOL = LinePattern(
    r"(?:(?<![\w./+@-])(?P<file>[\w./+@-]{1,400}\.so[\w.]{0,40}): )?"
    # As c++filt prints it, or mangled.
    r"undefined symbol(?::\s+|\s+(?=_Z))(?P<symbol>(?:at|c10d?|torch)::[\w:~]+|\w+)"
)
LIBRARY = LinePattern(
    r"(?P<library>lib(?!nccl-(?:net|tuner|profiler))[\w.+-]{1,100}\.so[\w.]{0,40}):"
    r" cannot open shared object file"
)
# An extension module, which torch compiles at run time.
EXTENSION = LinePattern(
    r"(?P<folder>/\S{1,300})/(?P<name>(?!lib)[\w-]{1,100})\.so: cannot open shared object file"
)
BUILT = re.compile(r"/build/|/torch_extensions/|\.cache/")
# Printed by torch.ops.load_library, without the reason from the loader.
UNLOADED = re.compile(r"Could not load this library: (?P<file>/\S{1,300}\.so)\s*$")
SYMBOL_VERSION = re.compile(
    r"version [`'](?P<name>(?P<kind>GLIBCXX|GLIBC|CXXABI|NVJITLINK|libnvJitLink|OPENSSL)[\w.]*)'"
    r" not found(?: \(required by (?P<file>[^)]+)\))?"
)
# Of the C++ standard library, without those with a type of another library.
OF_STANDARD = re.compile(r"_Z(?:T[ISV])?(?:NK?)?S[tabdios][A-Z\d](?!.*[IN]\d)")
OF_DRIVER = re.compile(r"cu[A-Z][A-Za-z]+")
USUAL_CUDA = ("12.0", "12.4", "12.6", "12.8", "13.0")  # named with their drivers
CACHED = re.compile(r"/\.cache/(?P<name>flashinfer|vllm|tvm|deep_gemm)/")
GLOBAL = re.compile(r"_Z(?P<length>\d{1,3})(?P<rest>\w+)")
NAMESPACE = re.compile(r"_ZT?[A-Z]{0,3}N?(?:K?)(?P<length>\d{1,2})(?P<rest>[a-zA-Z_]\w+)")
OLD_STRING = re.compile(r"(?:S[sS]|RKSs|KSs)(?:[a-zA-Z0-9_]|$)")
# Packages whose wheels are compiled for one torch and CUDA, also at installation.
FROM_SOURCE = ("apex", "causal-conv1d", "flash-attn", "grouped-gemm", "mamba-ssm")
OF_CUDA = re.compile(r"lib(?:cudart|cublas\w*|nvrtc|nvJitLink)\.so\.(1[123])")
CUDA = re.compile(r"CUDA (?:driver )?error:? (?P<text>[^\n]{3,160})", re.IGNORECASE)
# The number of an error of CUDA's runtime or driver.
CUDA_CODE = re.compile(
    r"(?i)(?:cuda|cuInit|driver API)[^\n]{0,160}?(?<!de)(?<!en)(?:error|code|returned|status)"
    r"(?: code)?[ :=(]{1,3}(?P<code>\d{1,3})\b(?!\.\d)"
)


def site_package(file: str) -> str:
    """Return the package of a file below site-packages, or "" for other files."""
    for mark in ("site-packages/", "dist-packages/"):
        if mark in file:
            top = file.rpartition(mark)[2].partition("/")[0]
            return re.split(r"[ <]", releases.distribution_of_module(re.split(r"[.-]", top)[0]))[0]
    if cached := CACHED.search(file):
        return cached["name"]
    base = file.rpartition("/")[2]
    prefixes = {
        "flash_attn_2_cuda": "flash-attn",
        "flash_attn_3_cuda": "flash-attn",
        "torchvision": "torchvision",
    }
    return next((package for mark, package in prefixes.items() if base.startswith(mark)), "")


NO_OPERATORS = "IMG715"


def binary_reason(text: str, facts: LogFacts, caller: str = "") -> Reason | None:
    """Return the cause of an error about a library, a symbol or CUDA, or None.

    `caller` is the import name of the package that loads the library.
    """
    if match := UNLOADED.search(text):
        return _torch_symbol(
            site_package(match["file"]) or "an extension", "", match["file"], facts
        )
    return (
        _symbol(text, facts)
        or _library(text, facts, caller)
        or _version(text, facts)
        or _cuda(text, facts)
    )


def _symbol(text: str, facts: LogFacts) -> Reason | None:
    match = SYMBOL.search(text)
    if match is None:
        if "undefined symbol" not in text or MENTIONED.search(text) is None:
            return None
        cause = "flash-attn was compiled for a different torch"
        return flash_attention.other_torch_reason(cause, facts)
    symbol, file = match["symbol"], match["file"] or ""
    package = site_package(file) or file.rpartition("/")[2] or "an extension module"
    if (nvidia := _nvidia_symbol(package, symbol, text)) is not None:
        return nvidia
    if symbol.startswith(("Py", "_Py")):
        return Reason(
            code="IMG901",
            cause=f"{package} was compiled for a different version of Python (symbol {symbol})",
            cure=f"install the wheel of {package} for this Python: pip install --force-reinstall"
            f" --no-cache-dir {package}",
        )
    driver = OF_DRIVER.match(symbol) and _driver_function(package, symbol, facts)
    of_torch = "::" in symbol or libraries.load_libraries().owner(symbol) == "torch"
    if OF_STANDARD.match(symbol) and not of_torch:
        return _old_standard_library(
            f"lacks {symbol}, because it is older than the compiler that built {package}"
        )
    if compiled := driver or _compiled_package_reason(package, symbol, file):
        return compiled
    if of_torch:
        return _torch_symbol(package, symbol, file, facts)
    namespace = NAMESPACE.match(symbol)
    of = namespace["rest"][: int(namespace["length"])] if namespace else ""
    built = f" {package} and {of} must be of the same release" if of else ""
    return Reason(
        code="IMG901",
        cause=f"{package} needs the symbol {symbol}{f' of {of}' if of else ''}, which no loaded"
        " library has: the installed versions are not compatible",
        cure=f"reinstall {package} and the packages that it links to, at compatible versions"
        + (f":{built}" if built else ""),
    )


def _nvidia_symbol(package: str, symbol: str, text: str) -> Reason | None:
    """Return the reason for a missing symbol of CUDA's libraries or NCCL."""
    if "nvJitLink" in symbol or "nvJitLink" in text:
        return Reason(
            code="IMG901",
            cause="the loaded libnvJitLink is older than CUDA's libraries require"
            f" (symbol {symbol})",
            cure="unset LD_LIBRARY_PATH, which puts a different CUDA first, or install the"
            " nvidia-nvjitlink-cu12 of torch's CUDA release",
            confidence="high",
        )
    if "libcudnn" in text:
        return Reason(
            code="IMG901",
            cause="libraries of two releases of cuDNN are mixed: a system cuDNN, or one that"
            f" another package installed, is loaded beside that of torch (symbol {symbol})",
            cure="remove folders with cuDNN from LD_LIBRARY_PATH (and libcudnn from LD_PRELOAD),"
            " and reinstall the nvidia-cudnn package that torch requires: pip install"
            " --force-reinstall nvidia-cudnn-cu12==VERSION (pip check names it)",
            confidence="high",
        )
    if symbol.startswith("nccl"):
        return Reason(
            code="IMG901",
            cause=f"the loaded NCCL is older than the one torch was built for: it lacks {symbol}",
            cure="install the nvidia-nccl-cu12 that torch requires, and remove a system NCCL from"
            " LD_LIBRARY_PATH and LD_PRELOAD",
            confidence="high",
        )
    if re.match(r"cu(?:blas|dnn|sparse|solver|rand|fft)", symbol) or symbol.startswith("cuda"):
        return Reason(
            code="IMG901",
            cause=f"{package} loads a CUDA library of a different release, which lacks {symbol}",
            cure="unset LD_LIBRARY_PATH, and install the nvidia packages that torch requires",
        )
    return None


def _driver_function(package: str, symbol: str, facts: LogFacts) -> Reason:
    """Return the reason for a missing function of the CUDA driver library.

    The CUDA toolkit does not contain this library.
    """
    shown = f" (CUDA {facts.driver_cuda})" if facts.driver_cuda else ""
    branches = [
        f"{cuda} {gpus.load_drivers().release_driver(cuda).partition('.')[0]}"
        for cuda in USUAL_CUDA
    ]
    needed = ", ".join(branches).replace(" ", " needs ", 1)
    return Reason(
        code="IMG901",
        cause=f"{package} uses {symbol}, a function of the NVIDIA driver (libcuda.so.1): the driver"
        f" of this machine{shown} is older than the CUDA that {package} was built for, or its"
        " libcuda.so.1 is not loaded",
        cure=f"update the driver (CUDA {needed}), or"
        f" install a build of {package} for the CUDA Version that nvidia-smi shows; if the driver"
        " is new enough: LD_PRELOAD=libcuda.so.1, and no cuda/compat or cuda/stubs folder in"
        " LD_LIBRARY_PATH (ldconfig -p | grep libcuda.so shows which is loaded)",
    )


def _compiled_package_reason(package: str, symbol: str, file: str) -> Reason | None:
    """Return the reason for a missing function of a package or of a library that it compiled.

    The library is compiled at run time.
    """
    if (function := GLOBAL.match(symbol)) is not None:
        name = function["rest"][: int(function["length"])]
        return Reason(
            code="IMG901",
            cause=f"{package} was not built completely: none of its libraries contains its own"
            f" function {name}",
            cure=f"install a wheel of {package} for this platform (CUDA or ROCm) and GPU, or build"
            " it again from an empty build folder; another release may have the function",
        )
    if not CACHED.search(file):
        return None
    namespace = NAMESPACE.match(symbol)
    of = namespace["rest"][: int(namespace["length"])] if namespace else ""
    return Reason(
        code="IMG901",
        cause=f"a library that {package} compiled at run time lacks {of or symbol}"
        f" ({symbol}), because it was compiled for different versions, or because this release"
        " compiles it without a part",
        cure=f"delete {file.rpartition('/')[0]} and run it again; if it fails again, use"
        f" another release of {package}, or another backend",
    )


def _torch_symbol(package: str, symbol: str, file: str, facts: LogFacts) -> Reason:
    """Return the reason for a torch symbol that the installed torch lacks."""
    table = pairs.load_pairs()
    torch, version = facts.version("torch"), facts.version(package)
    old = bool(OLD_STRING.search(symbol)) and "__cxx11" not in symbol
    new = "__cxx11" in symbol
    cause = f"{package} was compiled for a different torch than the installed one"
    if package in facts.versions:
        cause = cause.replace(package, f"{package} {facts.versions[package]}", 1)
    if torch is not None:
        cause = cause.replace("the installed one", f"the installed {torch}")
    if old:
        cause += (
            ": it needs the old C++ ABI (std::string as Ss), which torch's wheels have up to"
            " 2.6.0 only"
        )
    elif new:
        cause += (
            ": it needs the C++11 ABI (__cxx11), which torch's wheels on PyPI have from 2.7.0 on"
        )
    cure = f"{_rebuild_cure(package)}, or install the torch that this {package} was built for"
    cure = cure.replace("this an ", "this ")
    exported = releases.symbol_existence(symbol)
    if exported is not None and not old:
        added, cure = _exported(package, exported, torch)
        cause += f": {symbol} is in torch{exported.spec} only{added}"
    if package == "vllm" and version is not None and (build := table.torch_of_vllm(version)):
        cause = (
            f"vllm {version} was compiled for torch {build.version}"
            + (f"; installed is {torch}" if torch is not None else "")
            + ("; the C++ ABI changed in torch 2.7.0" if old else "")
        )
        cure = f"install torch=={build.version} torchvision=={build.torchvision}"
    elif package == "vllm" and exported is not None and exported.spec.startswith(">=2.1"):
        cure += "; vllm 0.20 to 0.26 needs torch 2.11.0, 0.27 to 0.32 needs 2.13.0"
    elif package == "vllm" and torch is not None and (spec := table.vllm_for(torch)):
        cure = f"install vllm{spec}, which was compiled for torch {torch}"
    elif package == "vllm" and old:
        cure = (
            "install torch==2.6.0 torchvision==0.21.0 with vllm>=0.8,<0.9, or vllm>=0.9 with"
            " the torch that it requires"
        )
    elif companion := _companion(package, torch, file):
        cure = companion
    if package == "flash-attn":
        return flash_attention.other_torch_reason(cause, facts)
    return Reason(code="IMG901", cause=cause, cure=cure, confidence="high")


def _exported(package: str, exported: Existence, torch: Version | None) -> tuple[str, str]:
    """Return an addition to the cause, and the cure, for a symbol of some releases of torch."""
    if torch is None or not exported.allows_version(torch.public):
        return "", f"{_rebuild_cure(package)}, or install 'torch{exported.spec}'"
    return f", which torch {torch.public} is: another torch is loaded", (
        "python -c 'import torch; print(torch.__version__, torch.__file__)' in the program's"
        f" environment shows the torch that is loaded: install 'torch{exported.spec}' there and"
        f" remove a second one (~/.local, PYTHONPATH), or {_rebuild_cure(package)}"
    )


def _rebuild_cure(package: str) -> str:
    """Return the way to get a build of an extension for the installed torch."""
    if package == "an extension module":
        return (
            "find it (the last import above the error, such as flash-attn or sgl-kernel) and"
            " reinstall it for the installed torch: pip install --no-build-isolation"
            " --no-cache-dir --force-reinstall --no-deps PACKAGE, or uninstall an optional one"
        )
    if package == "an extension" or package.endswith(".so"):
        return f"build {package} again for the installed torch, from an empty build folder"
    return (
        f"install a release of {package} for the installed torch, or build it for that: pip install"
        f" --no-build-isolation --no-cache-dir --force-reinstall --no-deps {package}"
    )


def _companion(package: str, torch: Version | None, file: str) -> str:
    """Return the cure for a package that is released with each torch, or compiled at run time.

    Return "" for other packages.
    """
    if BUILT.search(file):
        return f"delete {file.rpartition('/')[0]}, so that it is compiled again for this torch"
    if package == "torchaudio":
        release = f"torchaudio=={torch.base_version}" if torch else "the torchaudio"
        return f"install {release}, which has the version of torch, from the same index"
    if package in ("sgl-kernel", "sglang-kernel"):
        return (
            f"install {package} and torch at the versions that the sglang release pins (0.5.5:"
            " sgl-kernel 0.3.16.post5 with torch 2.8.0): pip install sglang==VERSION in a fresh"
            " environment"
        )
    if package == "torch-xla":
        release = f"'torch-xla=={torch.major}.{torch.minor}.*'" if torch else "the torch-xla"
        return f"pip install {release}, which has the version of torch"
    build = pairs.load_pairs().torch_wheel(torch) if package == "torchvision" and torch else None
    if build is not None:
        return f"install torchvision=={build.torchvision}, compiled for torch {torch}"
    span = requirements.accepting_versions(package, "torch", torch.base_version) if torch else ""
    return f"pip install '{package}{span}', which is for torch {torch}" if span else ""


def _library(text: str, facts: LogFacts, caller: str) -> Reason | None:
    match = LIBRARY.search(text)
    if match is None:
        return _extension(text)
    library = match["library"]
    if libraries.load_libraries().is_driver(library):
        return Reason(
            code="IMG906",
            cause=f"{library} belongs to the NVIDIA driver, which is not in the container",
            cure="start the container with GPUs: docker run --gpus all (nvidia-container-toolkit),"
            " apptainer exec --nv; if it was, keep the folder of the driver's libraries (Apptainer:"
            " /.singularity.d/libs) in LD_LIBRARY_PATH, which a script may have reset",
            confidence="high",
        )
    if library == "libnvrtc.so":
        return Reason(
            code="IMG906",
            cause="cuDNN or another CUDA library loads libnvrtc.so, which only CUDA toolkits have",
            cure="use a devel image, or link it once: ln -s libnvrtc.so.1X libnvrtc.so in the"
            " folder of nvidia-cuda-nvrtc (or of /usr/local/cuda/lib64), with that folder in"
            " LD_LIBRARY_PATH; torch 2.4 and newer does not need it",
            confidence="high",
        )
    if library.startswith(("libtorch_cuda_cu", "libtorch_cuda_cpp")):
        return Reason(
            code="IMG906",
            cause=f"a package was built for torch 1.10 to 1.13: later releases have no {library}",
            cure="install a release of it for this torch, or build it with --no-build-isolation",
            confidence="high",
        )
    if library.startswith(("libtorch_cuda", "libc10_cuda")):
        shown = f" {facts.versions['torch']}" if "torch" in facts.versions else ""
        return Reason(
            code="IMG906",
            cause=f"the installed torch{shown} is a CPU build, which has no {library}",
            cure="install a CUDA build of torch (on arm64 from PyPI: torch>=2.11.0 with"
            " vllm>=0.20.0; else from the index of the CUDA release)",
            confidence="high",
        )
    if system := releases.load_name_table().system_libraries.get(library):
        return Reason(
            code="IMG906",
            cause=f"the image lacks the system library {library}",
            cure=f"install {system}: apt-get install -y {system}",
            confidence="high",
        )
    cuda = OF_CUDA.search(library)
    if cuda is not None:
        return _cuda_library(library, cuda[1], facts, caller)
    return _absent_library_reason(library)


def _absent_library_reason(library: str) -> Reason:
    """Return the reason for a missing library of a package, of Python or of an unknown owner."""
    provider = libraries.load_libraries().provider(library) or (
        releases.load_name_table().wheel_libraries.get(library, "")
    )
    cause, cure = f"{library} is not installed", "add its folder to LD_LIBRARY_PATH"
    cure = f"install {provider or 'the package that provides it'}, or {cure}"
    if library.startswith("libcudnn") and library.endswith(".so.8"):
        cause = f"a package was built for cuDNN 8 ({library}); torch has cuDNN 9 from 2.4.0 on"
        cure = "install a release of that package for cuDNN 9 (onnxruntime-gpu>=1.19,"
        cure += " ctranslate2>=4.5, the wheels for this torch), or torch<2.4 with its own cuDNN 8"
    elif library.startswith("libcudnn"):
        cause = f"{library} of cuDNN is not on the library path"
        cure = "install the nvidia-cudnn package that torch requires, and unset LD_LIBRARY_PATH"
    elif library.startswith(("libtorch", "libc10")):
        cause = f"{library} of torch is found only after import torch: an extension of torch was"
        cause += " imported before torch, or torch is not installed or is another release"
        cure = "import torch first; if that fails or does not help, install the torch that the"
        cure += " package was built for"
    elif library.startswith("libpython"):
        cause = f"{library} is not installed, but the program was built for its Python version"
        cure = "install libpython3.X of that version, or reinstall the package for this Python;"
        cure += " if it is below /root, another user cannot read it"
    return Reason(
        code="IMG906", cause=cause, cure=cure, confidence="high" if provider else "medium"
    )


def _extension(text: str) -> Reason | None:
    """Return the reason for an extension module missing in the folder where torch compiles it."""
    match = EXTENSION.search(text)
    if match is None or not BUILT.search(match["folder"] + "/"):
        return None
    return Reason(
        code="IMG906",
        cause=f"the extension {match['name']}, which is compiled at run time, was not built: its"
        " compilation failed before, or another process is at it",
        cure=f"look for the first error of ninja, nvcc or g++ (CUDA_HOME with the nvcc of"
        f" torch.version.cuda, ninja and g++ are needed); delete {match['folder']}, and start one"
        " process alone first",
    )


def other_torch_reason(facts: LogFacts, effect: str) -> Reason | None:
    """Return the reason for an effect of a vllm that was compiled for another torch.

    Return None unless the log shows the versions. An effect is a failed allocation: code for
    another C++ ABI reads a length at a wrong place, so that it requests too much memory.
    """
    vllm, torch = facts.version("vllm"), facts.version("torch")
    build = pairs.load_pairs().torch_of_vllm(vllm) if vllm is not None else None
    if build is None or torch is None or Version(build.version).release == torch.release:
        return None
    reason = _torch_symbol("vllm", "", "", facts)
    return msgspec.structs.replace(reason, cause=f"{reason.cause}; {effect}")


def _cuda_library(library: str, major: str, facts: LogFacts, caller: str) -> Reason:
    """Return the reason for a missing library of the CUDA release `major`."""
    user = releases.package_name(caller) or ("vllm" if "vllm" in facts.versions else "")
    who = " ".join((user, facts.versions.get(user, ""))).strip() or "an installed package"
    torch = facts.version("torch")
    build = pairs.load_pairs().torch_wheel(torch) if torch is not None else None
    local = re.match(r"cu(\d\d)", torch.local or "") if torch is not None else None
    have = local[1] if local else build.cuda.partition(".")[0] if build else ""
    others = facts.cudas - {major}
    if user == "torch" or (have == major and not others):
        provider = libraries.load_libraries().provider(library)
        return Reason(
            code="IMG906",
            cause=f"{library} of CUDA {major} is not found, although torch is for CUDA {major}:"
            f" {provider or 'the NVIDIA package with it'} is not installed, or its folder is not"
            " searched because the library is loaded before torch",
            cure=f"pip install --force-reinstall {provider or 'torch'}; if it is there, import"
            " torch first, or put its folder first: export LD_LIBRARY_PATH=$(python -c 'import"
            " site; print(site.getsitepackages()[0])')/nvidia/FOLDER/lib (ls …/nvidia/*/lib finds"
            f" {library})",
            confidence="high",
        )
    cause = f"{who} is built for CUDA {major}, whose {library} is not installed"
    if others:
        cause += f": the environment has packages for CUDA {', '.join(sorted(others))}"
    elif torch is not None and have:
        cause += f": torch {torch} is for CUDA {have}"
    else:
        cause += ": torch is for a different CUDA, or for the CPU"
    if user == "vllm" and major == "13":
        cause += " (vllm's wheels on PyPI are for CUDA 13 from 0.20.0 on)"
    own = (
        f"install a build of {user or 'that package'} for the CUDA of torch (python -c 'import"
        " torch; print(torch.version.cuda)')"
    )
    if user not in ("", "vllm"):
        own = f"install the {user} for the CUDA of torch (often under a name with -cu12 or -cu13)"
        if user in FROM_SOURCE:
            own = "build it again for the CUDA of torch: pip install --no-build-isolation"
            own += (
                f" --no-cache-dir --force-reinstall --no-deps {user} (or its wheel for that CUDA)"
            )
        own += f", or remove it if it is optional: pip uninstall {user}"
    cures = [own]
    version = facts.version(user) if user == "vllm" else None
    compiled = pairs.load_pairs().torch_of_vllm(version) if version is not None else None
    if compiled is not None and compiled.cuda.startswith(f"{major}."):
        driver = " with driver>=580" if major == "13" else ""
        release = f"torch=={compiled.version} torchvision=={compiled.torchvision}"
        cures = [f"install {release}{driver}, for which {who} was compiled"]
        if torch is not None and (spec := pairs.load_pairs().vllm_for(torch)):
            cures.append(f"vllm{spec}, which was compiled for torch {torch}")
    elif major == "13":
        cures.append("torch 2.11.0 or newer (CUDA 13) with vllm>=0.20.0 and driver>=580")
    else:
        cures.append("a torch for CUDA 12 (torch<=2.10.0 with vllm<=0.19.1)")
    if major == "13":
        cures.append("vllm<=0.19.1 with its torch for CUDA 12")
    return Reason(code="IMG906", cause=cause, cure=", or ".join(cures), confidence="high")


def _version(text: str, facts: LogFacts) -> Reason | None:
    match = SYMBOL_VERSION.search(text)
    if match is None:
        return None
    kind, name, file = match["kind"], match["name"], match["file"] or ""
    package = site_package(file)
    by = f" that {package or file} needs" if file else ""
    if kind == "GLIBC":
        older = gpus.is_older(facts.glibc, name.removeprefix("GLIBC_"))
        have = f" ({facts.glibc})" if older else ""
        return Reason(
            code="IMG916",
            cause=f"the system's glibc{have} is older than the {name.replace('_', ' ')}{by}",
            cure=f"use {machines.NEWER_GLIBC}, or a version whose wheels are for an older one"
            + machines.VLLM_GLIBC * ("vllm" in text)
            + "; do not put another glibc into LD_LIBRARY_PATH",
            confidence="high",
        )
    return _old_standard_library(f"is older than the {name}{by}")


def _old_standard_library(what: str) -> Reason:
    return Reason(
        code="IMG916",
        cause=f"the loaded libstdc++ {what}",
        cure="remove an older libstdc++ (of conda, or in LD_LIBRARY_PATH) that is loaded before the"
        " system's, or install a newer one (conda install -c conda-forge libstdcxx-ng, or a newer"
        " base image)",
        confidence="high",
    )


class CudaError(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of a CUDA error number, and the cure.

    `says` is CUDA's message, for errors that torch prints without the number.
    """

    name: str
    means: str
    cure: str
    says: str = ""


@lru_cache(maxsize=1)
def cuda_errors() -> dict[int, CudaError]:
    """Map the number of each CUDA error that indicates a cause in the machine or build to it."""
    return yaml_data.load_yaml_data(
        files.data("diagnose/facts/cuda_errors.yaml"), dict[int, CudaError]
    )


def start_reason(text: str) -> Reason | None:
    """Return the cause if torch warns that CUDA cannot be initialized.

    The program then runs without a GPU.
    """
    return _cuda_code(text) if "CUDA initialization" in text else None


def _cuda_code(text: str) -> Reason | None:
    match = CUDA_CODE.search(text)
    number = int(match["code"]) if match else 0
    lower = text.lower()
    if not number and "cuda" in lower:
        rows = cuda_errors().items()
        number = next((key for key, row in rows if row.says and row.says in lower), 0)
    if not number and not match and "CUDA driver initialization failed" in text:
        number = 3
    error = cuda_errors().get(number)
    if error is None:
        return None
    called = 200 <= number < 500 or 700 <= number < 800
    failed = "a call of CUDA failed" if called else "CUDA cannot be used"
    return Reason(
        code="IMG907",
        cause=f"{failed} (error {number}, {error.name}): {error.means}",
        cure=error.cure,
        confidence="high",
    )


def _cuda(text: str, facts: LogFacts) -> Reason | None:
    if (numbered := _cuda_code(text)) is not None:
        return numbered
    match = CUDA.search(text)
    if match is None:
        return None
    what = match["text"].rstrip(". ")
    cause = f"CUDA reported: {what}"
    if facts.driver:
        cause += f" (driver {facts.driver}"
        newest = gpus.load_drivers().newest_release(facts.driver)
        cause += f", for CUDA up to {newest})" if newest else ")"
    return Reason(
        code="IMG907",
        cause=cause,
        cure="run it again with CUDA_LAUNCH_BLOCKING=1 to see which call fails; compare the"
        " driver with what torch needs: imgbuild doctor",
        confidence="low",
    )
