"""Tests that torch uses the locked CUDA, cuDNN and NCCL, and that no other copy is loaded."""

from __future__ import annotations

import re
from pathlib import Path

import smoke_gpu
from smoke_support import expectation, finish

# Package without its CUDA suffix: its library, which torch must load from it.
LIBRARIES = {
    "nvidia-cuda-runtime": "libcudart.so",
    "nvidia-cudnn": "libcudnn.so",
    "nvidia-cublas": "libcublas.so",
    "nvidia-nccl": "libnccl.so",
}


def locked(package: str) -> dict[str, str]:
    """Return the versions of an NVIDIA package, with or without the suffix -cu12 or -cu13."""
    packages = expectation()["packages"]
    return {name: packages[name] for name in packages if re.fullmatch(rf"{package}(-cu\d+)?", name)}


def numbers(version: str, count: int) -> list[int]:
    """Return the first `count` numbers of a version."""
    return [int(part) for part in re.findall(r"\d+", version)[:count]]


def loaded() -> dict[str, set[str]]:
    """Return the files that this process has mapped, by the prefix of their names."""
    rows = Path("/proc/self/maps").read_text("utf-8").splitlines()
    paths = {row.split(maxsplit=5)[5] for row in rows if len(row.split(maxsplit=5)) == 6}
    return {
        name: {path for path in paths if Path(path).name.startswith(name)}
        for name in LIBRARIES.values()
    }


def main() -> None:
    """Compare the versions of torch, the libraries and the lock, and check the mapped files."""
    smoke_gpu.require()
    import torch

    smoke_gpu.turn()
    tensor = torch.ones(1, 1, 8, 8, device="cuda")
    torch.nn.functional.conv2d(tensor, tensor[..., :3, :3])  # loads cuDNN
    torch.cuda.synchronize()
    in_use = {
        "nvidia-cuda-runtime": numbers(str(torch.version.cuda), 2),
        "nvidia-cudnn": _cudnn(torch.backends.cudnn.version()),
        "nvidia-nccl": list(torch.cuda.nccl.version()),
    }
    problems = []
    for package, answer in in_use.items():
        versions = locked(package)
        if len(versions) != 1:
            problems.append(f"the lock has {', '.join(versions) or 'no'} {package} (expected one)")
            continue
        [version] = versions.values()
        if numbers(version, len(answer)) != answer:
            text = ".".join(map(str, answer))
            problems.append(f"{package} {version} is locked, but torch uses {text}")
    prefix = expectation()["prefix"]
    for name, paths in loaded().items():
        print(name, *sorted(paths))
        if len(paths) != 1:
            problems.append(f"{name} is loaded {len(paths)} times, not once: {sorted(paths)}")
        problems += [f"{path} is not in the image" for path in paths if not path.startswith(prefix)]
    capability = torch.cuda.get_device_capability()
    text = ", ".join(f"{key} {'.'.join(map(str, value))}" for key, value in in_use.items())
    device = f"{torch.cuda.get_device_name()}, sm_{capability[0]}{capability[1]}"
    finish(
        problems, f"torch {torch.__version__} for {torch.cuda.get_arch_list()}: {text}; {device}"
    )


def _cudnn(version: int | None) -> list[int]:
    """Return the numbers of a cuDNN version: 90100 is 9.1.0, and 8902 is 8.9.2."""
    if version is None:
        return []
    step = 10_000 if version >= 10_000 else 1_000
    return [version // step, version % step // 100, version % 100]


if __name__ == "__main__":
    main()
