"""Tests checks of unknown names and contradicting keys in a matrix."""

from __future__ import annotations

import pytest

from imgbuild.matrix.load import parse_matrix
from tests.support.matrix_text import (
    FILE,
    VALID_MATRIX,
    break_matrix,
    check_broken,
    find_problems,
    only_problem,
)
from tests.support.rows import each_row

TARGET = "targets.cu124-vllm"
FLASHINFER = '    flashinfer: {mode: "off", reason: there is no wheel}'

# Each row: the replaced text, its replacement (§ marks the place of the problem), and path, part of
# the message, value, part of the expectation, most similar name.
SHARED = {
    "unknown default index": (
        "default_index: main",
        "default_index: §mian",
        ("default_index", "unknown index", "mian", "one of main, torch", "main"),
    ),
    "a second index without a url": (
        "  main: {}",
        "  main: {}\n  §other: {}",
        ("indexes.other", "only the default index", None, "url: https", None),
    ),
    "unknown placeholder": (
        "url: 'https://example.org/whl/{cuda_tag}/torch{torch}'",
        "url: §'https://example.org/whl/{cudatag}/torch{torch}'",
        (
            "indexes.torch.url",
            "unknown placeholder",
            "{cudatag}",
            "{cuda_tag}, {torch}",
            "cuda_tag",
        ),
    ),
    "no address": (
        "url: 'https://example.org/whl/{cuda_tag}/torch{torch}'",
        "url: §example.org/whl",
        ("indexes.torch.url", "not a URL", "example.org/whl", "https://host/path", None),
    ),
    "a secret in a url": (
        "url: 'https://example.org/whl/{cuda_tag}/torch{torch}'",
        "url: §'https://me:hunter2@example.org/whl'",
        ("indexes.torch.url", "username or password", None, "netrc or keyring", None),
    ),
    "a secret in a mirror": (
        "packages: [python3, g++]",
        "packages: [python3, g++]\n    mirrors: [§'https://me:hunter2@example.org/debian']",
        ("bases.debian-12.mirrors[0]", "username or password", None, "netrc or keyring", None),
    ),
    "a Debian package twice": (
        "packages: [python3, g++]",
        "packages: [python3, g++, §python3]",
        ("bases.debian-12.packages[2]", "python3 is listed twice", None, "once", None),
    ),
    "a secret in the URL of an archive": (
        'python: "3.11"',
        (
            'python: {version: "3.12", from: standalone, archives:'
            " {x86_64: §'https://me:hunter2@example.org/a.tar.gz'}}"
        ),
        (
            "bases.debian-12.python.archives.x86_64",
            "username or password",
            None,
            "netrc or keyring",
            None,
        ),
    ),
    "an archive of another kind": (
        'python: "3.11"',
        (
            'python: {version: "3.12", from: standalone, archives:'
            " {x86_64: §'https://example.org/a.tar.zst'}}"
        ),
        (
            "bases.debian-12.python.archives.x86_64",
            "expected format",
            "https://example.org/a.tar.zst",
            "NAME.tar.gz",
            None,
        ),
    ),
    "a checksum without an archive": (
        'python: "3.11"',
        (
            'python: {version: "3.12", from: standalone, archives: {x86_64: '
            f"'https://example.org/a.tar.gz'}}, sha256: {{§arm64: {'a' * 64}}}}}"
        ),
        ("bases.debian-12.python.sha256.arm64", "no archive for arm64", None, "archives:", None),
    ),
    "a text that is no Debian package": (
        "packages: [python3, g++]",
        "packages: [python3, §G++ 12]",
        ("bases.debian-12.packages[1]", "expected format", "G++ 12", "Debian package name", None),
    ),
    "prefix not absolute": (
        "workdir: /workspace",
        "workdir: §workspace",
        ("image.workdir", "expected format", "workspace", "an absolute path", None),
    ),
    "a path that climbs": (
        "cache: /var/cache/imgbuild",
        "cache: §/var/cache/../etc",
        ("image.cache", "not normal", "/var/cache/../etc", "without . or ..", None),
    ),
    "entry point not absolute": (
        "entrypoint: [/opt/entry]",
        "entrypoint: [§entry]",
        ("image.entrypoint[0]", "expected format", "entry", "an absolute path", None),
    ),
    "PATH without the environment": (
        "PATH: {value: '/opt/venv/bin:/bin'",
        "PATH: {value: §'/bin'",
        ("image.env.PATH.value", "are not first", "/bin", "/opt/venv/bin:", None),
    ),
    "another virtual environment": (
        "VIRTUAL_ENV: {value: /opt/venv,",
        "VIRTUAL_ENV: {value: §/venv,",
        ("image.env.VIRTUAL_ENV.value", "not the environment", "/venv", "/opt/venv", None),
    ),
    "a variable that no shell takes": (
        "    VIRTUAL_ENV: {",
        "    §VIRTUAL-ENV: {",
        ("image.env.VIRTUAL-ENV", "expected format", "VIRTUAL-ENV", "as in a shell", None),
    ),
    "a label without a domain": (
        "labels: {org.example.team: rl}",
        "labels: {§Team Name: rl}",
        ("image.labels.Team Name", "expected format", "Team Name", "reversed domain", None),
    ),
    "a label of imgbuild's own": (
        "labels: {org.example.team: rl}",
        "labels: {§dev.imgbuild.cuda: rl}",
        ("image.labels.dev.imgbuild.cuda", "sets this label", None, "another name", None),
    ),
    "unknown package with a layer": (
        "named: [vllm, trl]",
        "named: [vllm, §trll]",
        ("layers.named[1]", "unknown package", "trll", "one of pip", "trl"),
    ),
    "a package with two layers": (
        "named: [vllm, trl]",
        "named: [vllm, trl, §vllm]",
        ("layers.named[2]", "vllm is listed twice", None, "once", None),
    ),
    "a pattern twice": (
        "order: [nvidia-*, torch]",
        "order: [nvidia-*, torch, §nvidia-*]",
        ("layers.order[2]", "nvidia-* is listed twice", None, "once", None),
    ),
    "more layers than the limit": (
        "groups: 4",
        "groups: 4\n  limit: §8",
        ("layers.limit", "exceed the limit of 8 layers", "8", "at least 9", None),
    ),
    "unknown package for a build": (
        "requires: [torch]}",
        "requires: [§troch]}",
        ("sdists.antlr4.requires[0]", "unknown package", "troch", "one of pip", "torch"),
    ),
    "no version specifier": (
        "pip: {reason: people add packages}",
        "pip: {reason: people add packages, spec: §'25.1'}",
        ("requires.pip.spec", "not a version specifier", "25.1", ">=78,<79", "==25.1"),
    ),
}
TARGETS = {
    "unknown base": (
        "base: debian-12",
        "base: §debian12",
        (f"{TARGET}.base", "unknown base", "debian12", "one of debian-12", "debian-12"),
    ),
    "unknown index": (
        "indexes: {torch: torch}",
        "indexes: {torch: §torhc}",
        (f"{TARGET}.indexes.torch", "unknown index", "torhc", "one of main, torch", "torch"),
    ),
    "arch excluded too": (
        "exclude: {arm64: no wheel",
        "exclude: {§x86_64: no wheel",
        (
            f"{TARGET}.exclude.x86_64",
            "x86_64 is excluded and also listed in arch",
            None,
            "only one of the two entries",
            None,
        ),
    ),
    "arch twice": (
        "arch: [x86_64]",
        "arch: [x86_64, §x86_64]",
        (f"{TARGET}.arch[1]", "x86_64 is listed twice", None, "once", None),
    ),
    "no compute capability": (
        'gpu: ["9.0"]',
        "gpu: [§sm_90]",
        (f"{TARGET}.gpu[0]", "expected format", "sm_90", 'such as "9.0"', None),
    ),
    "no version": (
        'vllm: "0.8.5.post1"',
        "vllm: §0.8.x",
        (f"{TARGET}.pins.vllm", "not a version", "0.8.x", "a normalized PEP 440 version", None),
    ),
    "a version in another form": (
        'vllm: "0.8.5.post1"',
        "vllm: §0.8.5.Post1",
        (f"{TARGET}.pins.vllm", "not normalized", "0.8.5.Post1", "0.8.5.post1", None),
    ),
    "a package pinned and required": (
        "setuptools: {reason: triton imports it}",
        "setuptools: {reason: triton imports it}\n      §trl: {reason: it is needed}",
        (
            f"{TARGET}.requires.trl",
            "trl is pinned in line 44 and required",
            None,
            "only one of the two entries",
            None,
        ),
    ),
    "a range that is none": (
        "setuptools: {reason: triton imports it}",
        "setuptools: {reason: triton imports it, spec: §'>=78,,<'}",
        (
            f"{TARGET}.requires.setuptools.spec",
            "not a version specifier",
            ">=78,,<",
            ">=78,<79",
            None,
        ),
    ),
    "a package of another CUDA": (
        'trl: "0.18.2"',
        'trl: "0.18.2"\n      §cupy-cuda13x: "13.4.1"',
        (
            f"{TARGET}.pins.cupy-cuda13x",
            "for CUDA 13, but the target is for CUDA 12.4",
            None,
            "a package for CUDA 12",
            None,
        ),
    ),
    "a build for another CUDA": (
        'torch: "2.6.0"',
        'torch: §"2.6.0+cu126"',
        (
            f"{TARGET}.pins.torch",
            "a different CUDA release than 12.4",
            "2.6.0+cu126",
            "2.6.0+cu124",
            None,
        ),
    ),
    "a compiler of another CUDA release": (
        'trl: "0.18.2"',
        'trl: "0.18.2"\n      nvidia-cuda-nvcc: §"13.0.88"',
        (f"{TARGET}.pins.nvidia-cuda-nvcc", "a different CUDA release", "13.0.88", "12.4.", None),
    ),
    "a range over CUDA releases": (
        "setuptools: {reason: triton imports it}",
        (
            "setuptools: {reason: triton imports it}\n"
            "      §nvidia-cuda-nvcc: {reason: it compiles, spec: '>=12'}"
        ),
        (
            f"{TARGET}.requires.nvidia-cuda-nvcc",
            "a different CUDA release",
            ">=12",
            "==12.4.*",
            None,
        ),
    ),
    "prebuilt without an index": (
        FLASHINFER,
        "    flashinfer: {mode: §prebuilt, reason: fast to start}",
        (
            f"{TARGET}.flashinfer.mode",
            "require flashinfer-python to be pinned and assigned",
            "prebuilt",
            "in pins and in indexes",
            None,
        ),
    ),
    "jit where nothing compiles": (
        FLASHINFER,
        "    flashinfer: {mode: §jit, reason: fast to start}",
        (
            f"{TARGET}.flashinfer.mode",
            "no index has a wheel with nvcc for CUDA 12.4",
            "jit",
            "requires CUDA 13.0 or newer",
            None,
        ),
    ),
    "a finding waived without a reason": (
        "    drop:\n",
        "    waive:\n      - §{check: imports, package: trl, subject: 'vllm:X'}\n    drop:\n",
        (f"{TARGET}.waive[0]", "key reason is missing", None, "reason: the reason", None),
    ),
    "a waiver of a check that there is not": (
        "    drop:\n",
        (
            "    waive:\n      - {check: §import, package: trl, subject: 'vllm:X', reason: not used"
            " here}\n    drop:\n"
        ),
        (
            f"{TARGET}.waive[0].check",
            "unknown value",
            "import",
            "the check that reports the finding",
            "imports",
        ),
    ),
    "a library path": (
        "      VLLM_USE_V1: {",
        "      §LD_LIBRARY_PATH: {",
        (
            f"{TARGET}.env.LD_LIBRARY_PATH",
            "hide the driver libraries",
            None,
            "symbolic links",
            None,
        ),
    ),
    "dropped path outside the package": (
        "paths: [lib/a]",
        "paths: [§../a]",
        (
            f"{TARGET}.drop[0].paths[0]",
            "not a path in the package",
            "../a",
            "below the prefix",
            None,
        ),
    ),
    "dropped path with a slash before it": (
        "paths: [lib/a]",
        "paths: [§/lib/a]",
        (
            f"{TARGET}.drop[0].paths[0]",
            "not a path in the package",
            "/lib/a",
            "below the prefix",
            "lib/a",
        ),
    ),
    "nothing dropped": (
        "paths: [lib/a]",
        "paths: §[]",
        (f"{TARGET}.drop[0].paths", "no path to drop is listed", None, "at least one path", None),
    ),
    "a package dropped twice": (
        "    links:",
        "      - {package: §trl, paths: [b], reason: vllm ships it too}\n    links:",
        (f"{TARGET}.drop[1].package", "trl is listed twice", None, "one entry", None),
    ),
    "a link not absolute": (
        "      /opt/lib64: {",
        "      opt/lib64: §{",
        (f"{TARGET}.links.opt/lib64", "expected format", "opt/lib64", "an absolute path", None),
    ),
    "a link to itself": (
        "{to: lib, reason: linkers",
        "{to: §lib64, reason: linkers",
        (
            f"{TARGET}.links./opt/lib64.to",
            "the link refers to itself",
            "lib64",
            "another path",
            None,
        ),
    ),
    "a link that is not normal": (
        "{to: lib, reason: linkers",
        "{to: §x/../lib, reason: linkers",
        (f"{TARGET}.links./opt/lib64.to", "not normal", "x/../lib", "lib", None),
    ),
}


@each_row("name", [*SHARED])
def test_invalid_keys_outside_targets_are_reported(name: str) -> None:
    check_broken(*SHARED[name])


@each_row("name", [*TARGETS])
def test_invalid_keys_of_a_target_are_reported(name: str) -> None:
    check_broken(*TARGETS[name])


def test_secret_in_the_matrix_is_not_shown_in_an_error() -> None:
    text, _, _ = break_matrix(
        "url: 'https://example.org/whl/{cuda_tag}/torch{torch}'", "url: §https://me:hunter2@x.org/"
    )
    assert "hunter2" not in str(only_problem(text))


def test_environment_value_with_a_newline_is_refused() -> None:
    text, line, column = break_matrix('VLLM_USE_V1: {value: "1"', 'VLLM_USE_V1: {value: §"1\\n2"')
    problem = only_problem(text)
    assert (problem.line, problem.column) == (line, column)
    assert "several lines" in problem.message


def test_torch_index_of_a_different_cuda_release_is_refused() -> None:
    text, line, column = break_matrix("indexes: {torch: torch}", "indexes: {torch: §torch}")
    problem = only_problem(text.replace("whl/{cuda_tag}/torch{torch}", "whl/cu126"))
    assert (problem.line, problem.column) == (line, column)
    assert problem.message == "this index is for cu126, but the target is for cu124"


def test_torch_index_requires_a_pin_of_torch() -> None:
    text, line, column = break_matrix("indexes: {torch: torch}", "indexes: {torch: §torch}")
    problem = only_problem(text.replace('      torch: "2.6.0"\n', ""))
    assert (problem.line, problem.column) == (line - 1, column)
    assert "does not pin torch" in problem.message


def test_target_name_that_is_too_long_for_a_tag_is_refused() -> None:
    text, line, column = break_matrix("  cu124-vllm:", "  §" + "a" * 129 + ":")
    problem = only_problem(text)
    assert (problem.line, problem.column, problem.expected) == (
        line,
        column,
        "at most 128 characters",
    )


def test_matrix_without_targets_is_refused() -> None:
    text = VALID_MATRIX[: VALID_MATRIX.index("targets:")] + "targets: {}\n"
    assert "no target is defined" in [problem.message for problem in find_problems(text)]


def test_invalid_folder_of_the_environment_is_refused() -> None:
    text, line, column = break_matrix("prefix: /opt/venv", "prefix: §venv")
    prefix_problem = next(
        problem for problem in find_problems(text) if problem.path == "image.prefix"
    )
    assert (prefix_problem.line, prefix_problem.column, prefix_problem.value) == (
        line,
        column,
        "venv",
    )


def test_standalone_python_requires_an_archive_for_each_architecture() -> None:
    source = "{version: '3.12', from: standalone, archives: {arm64: 'https://a.example/b.tar.gz'}}"
    (problem,) = find_problems(VALID_MATRIX.replace('python: "3.11"', f"python: {source}"))
    assert (problem.path, problem.value) == (f"{TARGET}.arch[0]", "x86_64")
    assert "debian-12 has no archive of Python for x86_64" in problem.message
    assert problem.expected == "one of arm64"
    source = "{version: '3.12', from: standalone, archives: {}}"
    (problem,) = find_problems(VALID_MATRIX.replace('python: "3.11"', f"python: {source}"))
    assert str(problem.path).endswith("archives")


@pytest.mark.parametrize("version", ["3.9", "3.15"])
def test_unsupported_release_of_standalone_python_is_refused(version: str) -> None:
    archives = "archives: {x86_64: 'https://a.example/b.tar.gz'}"
    source = f"{{version: '{version}', from: standalone, {archives}}}"
    (problem,) = find_problems(VALID_MATRIX.replace('python: "3.11"', f"python: {source}"))
    assert (problem.path, problem.value) == ("bases.debian-12.python.version", version)
    assert problem.message == f"a standalone Python {version} is not supported"
    assert problem.expected == "one of 3.10, 3.11, 3.12, 3.13, 3.14"


@pytest.mark.parametrize("folder", ["/opt/python", "/opt/python/venv", "/opt"])
def test_image_folders_overlapping_standalone_python_are_refused(folder: str) -> None:
    source = "{version: '3.12', from: standalone, archives: {x86_64: 'https://a.example/b.tar.gz'}}"
    text = VALID_MATRIX.replace('python: "3.11"', f"python: {source}")
    (problem,) = find_problems(text.replace("workdir: /workspace", f"workdir: {folder}"))
    assert (problem.path, problem.value) == ("image.workdir", folder)
    assert "/opt/python is reserved for the standalone Python" in problem.message


def test_user_packages_require_pip_and_uv_in_the_image() -> None:
    old = "    requires:\n      setuptools: {reason: triton imports it}\n"
    added = f"    user_packages: true\n{old}"
    (problem,) = find_problems(VALID_MATRIX.replace(old, added))
    assert (problem.path, problem.value) == (f"{TARGET}.user_packages", "True")
    assert problem.message == "the target does not require uv"
    assert problem.expected == "uv under requires"
    parse_matrix(
        VALID_MATRIX.replace(old, f"{added}      uv: {{reason: people add packages}}\n").encode(),
        FILE,
    )
    (problem,) = find_problems(
        VALID_MATRIX.replace(old, added).replace("pip: {reason:", "uv: {reason:")
    )
    assert problem.message == "the target does not require pip"


def test_user_packages_require_a_base_of_debian_packages() -> None:
    base = VALID_MATRIX[VALID_MATRIX.index("    kind: debian") : VALID_MATRIX.index("image:\n")]
    registry = (
        "    kind: registry\n    image: example.org/python:3.11@sha256:" + "0" * 64 + "\n"
        '    python: "3.11"\n    glibc: "2.36"\n'
    )
    text = VALID_MATRIX.replace(base, registry).replace(
        "requires:\n  pip: {", "requires:\n  uv: {reason: people add packages}\n  pip: {"
    )
    parse_matrix(text.encode(), FILE)
    (problem,) = find_problems(text.replace("    cuda:", "    user_packages: true\n    cuda:"))
    assert problem.path == f"{TARGET}.user_packages"
    assert problem.message == "the base debian-12 comes from a registry"
    assert problem.expected == "a base of Debian packages"
