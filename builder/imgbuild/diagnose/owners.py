"""Finds the owner of a file in a traceback: a package, Python, or the user's program."""

from __future__ import annotations

import re
from functools import lru_cache

from imgbuild.audit.names.releases import load_name_table
from imgbuild.values import normalize_package

STANDARD_LIBRARY = re.compile(
    r"/lib(?:64)?/python\d[\d.]{0,6}/(?!(?:site|dist)-packages)|^[A-Za-z]:.{0,200}/[Ll]ib/"
    r"(?!site-packages)|^<(?!ipython)|\.pxi$"
)
MODEL_CODE = "transformers_modules"  # where transformers copies the code that comes with a model
SOURCES = ("src", "python", "lib")  # folders of a checkout with its packages
RAY_PACKAGE = "_ray_pkg_"  # a working_dir that Ray has copied to a node
# Folders that only these packages have, wherever their sources are.
OWN_FOLDERS = re.compile(
    r"(?:^|/)(?P<top>megatron(?=/(?:core|training|legacy)/)|transformer_engine(?=/(?:pytorch|common)/)|"
    r"deepspeed(?=/(?:runtime|checkpoint)/)|verl(?=/(?:model_merger|workers|trainer|utils)/))"
)
# Scripts that these packages copy to checkpoints and projects, or have outside of their folder.
SCRIPTS = re.compile(
    r"(?:^|/)(?:(?P<deepspeed>zero_to_fp32|ds_to_universal)|(?P<verl>(?:legacy_)?model_merger)|"
    r"(?P<megatron>tools/checkpoint/(?:convert|util|loader_\w+|saver_\w+)))\.py$"
)
AMBIGUOUS = frozenset(("yaml", "git", "click", "attr", "hydra", "swift", "apex", "numpy", "dotenv"))


@lru_cache(maxsize=1)
def _import_names() -> frozenset[str]:
    """Return the import names of known packages."""
    names = load_name_table()
    tops = {name.replace("-", "_") for name in names.packages.split()}
    return frozenset(tops | {top for top in names.import_names if "." not in top})


@lru_cache(maxsize=4096)
def package_of_file(file: str) -> str:
    """Return the import name of the package that contains a file, or "" for other code.

    The file is below site-packages or in a checkout. In a checkout, the folder of a known package
    starts a path, or is below `src`, `python` or a folder with the same name:
    `/work/verl/verl/trainer/main.py`.
    """
    path = file.replace("\\", "/")
    if f"/{MODEL_CODE}/" in path:
        return MODEL_CODE
    for mark in ("site-packages/", "dist-packages/"):
        if mark in path:
            return path.rpartition(mark)[2].partition("/")[0].removesuffix(".py")
    folders = path.split("/")[:-1]
    for index, folder in enumerate(folders):
        if folder.endswith("_compiled_cache"):  # unsloth's
            return folder.partition("_")[0]
        if folder not in _import_names():
            continue
        above = folders[index - 1] if index else ""
        same = normalize_package(above) in (
            normalize_package(folder),
            load_name_table().import_names.get(folder),
        )
        same = same or normalize_package(above).startswith(
            f"{normalize_package(folder)}-"
        )  # Megatron-LM/megatron
        root = not index or above in SOURCES or above.startswith(RAY_PACKAGE)
        if same or (folder not in AMBIGUOUS and root):
            return folder
    if match := OWN_FOLDERS.search(path):
        return match["top"]
    script = SCRIPTS.search(path)
    return (script.lastgroup or "") if script else ""


@lru_cache(maxsize=4096)
def is_standard(file: str) -> bool:
    """Whether a file is part of the standard library, is compiled, or is not a file on disk."""
    return bool(STANDARD_LIBRARY.search(file.replace("\\", "/")))


def shorten_path(file: str) -> str:
    """Return the path of a file, starting with its package.

    Other files are returned with two parent folders.
    """
    folders = file.replace("\\", "/").split("/")
    top = package_of_file(file)
    if top in folders:
        return "/".join(folders[len(folders) - 1 - folders[::-1].index(top) :])
    return "/".join(folders[-3:])
