"""environment.yml of conda: the packages that are on the Python index, in Debian, or in CUDA.

What conda packages are called elsewhere is a small table: only what is the same software.
"""

from __future__ import annotations

import re
from typing import Any

from imgbuild.project import requirement_lines
from imgbuild.project.model import Place
from imgbuild.project.reading import Reading
from imgbuild.project.sources import line_of

# Packages whose name on the Python index is another one.
RENAMED = {
    "pytorch": "torch",
    "pytorch-gpu": "torch",
    "pytorch-cpu": "torch",
    "py-opencv": "opencv-python-headless",
    "opencv": "opencv-python-headless",
    "libopencv": "opencv-python-headless",
    "pytables": "tables",
    "msgpack-python": "msgpack",
    "matplotlib-base": "matplotlib",
    "python-graphviz": "graphviz",
    "ray-default": "ray[default]",
    "ray-core": "ray",
    "ray-train": "ray[train]",
    "ray-tune": "ray[tune]",
    "python-xxhash": "xxhash",
    "python-tzdata": "tzdata",
    "uvicorn-standard": "uvicorn[standard]",
    "py-xgboost": "xgboost",
    "faiss": "faiss-cpu",
    "hydra": "hydra-core",
    "python-fastjsonschema": "fastjsonschema",
    "brotli-python": "brotli",
}
# Programs and libraries of conda-forge that a Debian package brings: those of another name, and
# those of the same.
DEBIAN = {
    "openjdk": "default-jre-headless",
    "gcc_linux-64": "gcc",
    "gxx": "g++",
    "gxx_linux-64": "g++",
    "compilers": "build-essential",
    "c-compiler": "gcc",
    "cxx-compiler": "g++",
    "openssh": "openssh-client",
    "tesseract": "tesseract-ocr",
    "poppler": "poppler-utils",
    "libsndfile": "libsndfile1",
    "openmpi": "libopenmpi-dev",
    "libaio": "libaio-dev",
    "texlive-core": "texlive-base",
}
DEBIAN_SAME = [
    "cmake",
    "curl",
    "ffmpeg",
    "gcc",
    "git",
    "git-lfs",
    "graphviz",
    "htop",
    "jq",
    "make",
    "nodejs",
    "numactl",
    "pandoc",
    "parallel",
    "patchelf",
    "perl",
    "pkg-config",
    "rsync",
    "screen",
    "sox",
    "swig",
    "tmux",
    "tree",
    "unzip",
    "vim",
    "wget",
    "zip",
]
CUDA = frozenset({
    r"(?:(?P<channel>[^:\s]+)::)?(?P<name>[A-Za-z0-9_.-]+)\s*"
    r"(?P<version>[^\[]*?)\s*(?:\[(?P<keys>.*)\])?"
    "cudatoolkit-dev", "cuda-libraries", "cuda-libraries-dev", "cuda-cudart", "cuda-cudart-dev",
})  # fmt: skip
# Libraries of conda's own environments; wheels and the base of an image have their own.
LIBRARY = re.compile(
    r"(?:_|lib(?!rosa|cst|tmux)|xorg-|font-|fonts-|r-|ld_impl|cuda-|gcc|gxx|gfortran|binutils|"
    r"sysroot|kernel-headers|magma-cuda|mkl|aws-c-|gst)"
)
LIBRARIES = [
    "openssl",
    "ca-certificates",
    "ncurses",
    "readline",
    "sqlite",
    "tk",
    "xz",
    "zlib",
    "zstd",
    "bzip2",
    "intel-openmp",
    "llvm-openmp",
    "blas",
    "openblas",
    "cudnn",
    "nccl",
    "icu",
    "expat",
    "krb5",
    "c-ares",
    "freetype",
    "jpeg",
    "lcms2",
    "lerc",
    "lz4-c",
    "gmp",
    "gnutls",
    "nettle",
    "lame",
    "openh264",
    "giflib",
    "tbb",
    "mpfr",
    "mpc",
    "yaml",
    "pcre",
    "pcre2",
    "glib",
    "dbus",
    "gettext",
    "harfbuzz",
    "cairo",
    "pango",
    "pixman",
    "fontconfig",
    "qt",
    "qt-main",
    "nspr",
    "nss",
    "mysql",
    "ninja-base",
    "pytorch-mutex",
    "torchtriton",
    "brotli-bin",
    "snappy",
    "gflags",
    "glog",
    "re2",
    "orc",
    "arrow-cpp",
    "aws-sdk-cpp",
    "s2n",
]
INSTALLERS = ("pip", "setuptools", "wheel")
SPEC = re.compile(
    r"(?:(?P<channel>[^:\s]+)::)?(?P<name>[A-Za-z0-9_.-]+)\s*(?P<version>[^\[]*?)\s*(?:\[(?P<keys>.*)\])?"
)


def read_file(reading: Reading, name: str) -> None:
    """Read an environment.yml."""
    document = reading.yaml(name)
    if document is None:
        return
    place = Place(file=name)
    if not isinstance(document, dict):
        reading.problem(
            place, "not an environment of conda", expected="a mapping with dependencies"
        )
        return
    text = reading.sources.text(name)
    dependencies = document.get("dependencies") or []
    if not isinstance(dependencies, list):
        reading.problem(place, "dependencies is not a list", value=str(dependencies)[:60])
        return
    for entry in dependencies:
        if isinstance(entry, dict):
            _pip_part(reading, entry, name, text)
        elif isinstance(entry, str):
            dependency(reading, entry, Place(file=name, line=_line(text, entry)))
        elif entry is not None:
            reading.problem(place, "a dependency is not text", value=str(entry)[:60])
    variables = document.get("variables")
    if variables:
        reason = "variables of the environment: set them under env in matrix.yaml"
        line = line_of(text, "variables:")
        reading.leave_out(Place(file=name, line=line), "variables", reason)


def _line(text: str, entry: str) -> int:
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip().removeprefix("-").partition(" #")[0].strip().strip("\"'")
        if stripped == entry.strip():
            return number
    return line_of(text, entry)


def _pip_part(reading: Reading, entry: dict[str, Any], name: str, text: str) -> None:
    for key, lines in entry.items():
        place = Place(file=name, line=line_of(text, f"{key}:"))
        if key != "pip" or not isinstance(lines, list):
            reading.leave_out(place, str(key), "only a list for pip is read here")
            continue
        scope = requirement_lines.Scope(above=(name,))
        for line in lines:
            if not isinstance(line, str):
                reading.problem(place, "a requirement is not text", value=str(line)[:60])
                continue
            spot = Place(file=name, line=_line(text, line))
            scope = requirement_lines.read_line(reading, line, spot, scope)


def dependency(reading: Reading, text: str, place: Place) -> None:
    """Read a package as conda writes it: `numpy=1.26`, `conda-forge::git`, `python>=3.10`."""
    match = SPEC.fullmatch(text.strip())
    if match is None:
        reading.leave_out(place, text, "not a package as conda writes it")
        return
    name = match["name"].lower()
    written = match["version"] or _key(match["keys"], "version")
    version = specifier(written)
    if version is None:
        reading.leave_out(place, text, "versions that pip cannot express")
    elif name == "python":
        reading.python(_minor(version), place)
    elif name in CUDA:
        _cuda(reading, written, text, place)
    elif name in INSTALLERS:
        return
    elif name in DEBIAN or name in DEBIAN_SAME:
        package = DEBIAN.get(name, name)
        if written:
            reading.leave_out(place, text, f"Debian's own version of {package} is installed")
        reading.debian_package(package, place)
    elif name in ("faiss-gpu", "faiss-gpu-cuvs", "faiss-gpu-raft"):
        reading.leave_out(
            place, text, "has no build of that name on the Python index: faiss-cpu has"
        )
    elif name in RENAMED or not (name in LIBRARIES or LIBRARY.match(name)):
        reading.requirement(f"{RENAMED.get(name, name)}{version}", place)
    else:
        reading.leave_out(place, text, "a library of conda: wheels and the image have their own")


def _cuda(reading: Reading, written: str, text: str, place: Place) -> None:
    release = re.search(r"(\d+\.\d+)", written)
    if release:
        reading.cuda_release(release[1], place)
    else:
        reading.leave_out(place, text, "names no CUDA release")


def _key(keys: str | None, name: str) -> str:
    match = re.search(rf"{name}\s*=\s*(['\"]?)([^'\"\]]*)\1", keys or "")
    return match[2] if match else ""


def _minor(version: str) -> str:
    """`==3.10.*` for an exact release of Python: images have the newest of each minor version."""
    match = re.fullmatch(r"==(\d+\.\d+)\.[\d.]+", version)
    return f"=={match[1]}.*" if match else version


def specifier(version: str) -> str | None:
    """Conda's versions as PEP 440 has them; None if it has no such form.

    `=1.26` and `1.26` are any release that begins so, `=1.26.4=BUILD` and `==1.26.4` are exact.
    Source: conda's documentation of match specifications.
    """
    version = version.strip().replace(" ", "=") if re.match(r"\s*[\d.]+\s", version) else version
    version = version.replace(" ", "").strip()
    if not version or version == "*":
        return ""
    if "|" in version:
        return None
    exact = re.fullmatch(r"={0,2}([\w.!+]+)=[\w.*]+", version)
    if exact:
        return f"=={exact[1]}"
    fuzzy = re.fullmatch(r"=?([\d.]+)(\.?\*)?", version)
    if fuzzy:
        number = fuzzy[1].rstrip(".")
        return f"=={number}" if number.count(".") > 1 and not fuzzy[2] else f"=={number}.*"
    if re.fullmatch(r"=[\w.!+]+", version):
        return f"={version}"
    parts = version.split(",")
    if all(re.fullmatch(r"(==|!=|<=|>=|<|>|~=)[\w.*!+]+", part) for part in parts):
        return ",".join(parts)
    return None


def is_environment(name: str) -> bool:
    """Whether a file has the name of an environment of conda."""
    file = name.rpartition("/")[2]
    pattern = r"(conda[-_.])?(env|environment)([-_.][\w-]+)?\.ya?ml|conda\.ya?ml"
    return bool(re.fullmatch(pattern, file))
