"""Tests that requirements files have pins and hashes but no URLs."""

import msgspec

from imgbuild.lock import requirements
from imgbuild.lock.model import LockedProject
from imgbuild.lock.resolution import BuiltWheel, LockedFile
from imgbuild.values import Arch
from tests.support import samples


def test_requirements_file_has_one_line_with_a_hash_per_package():
    lock = samples.lock(samples.wheel("trl"))
    text = requirements.requirements_text(lock, Arch.X86_64)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines == [
        f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}"
        for wheel in lock.arch[Arch.X86_64].wheels
    ]
    assert "://" not in text


def test_header_of_the_requirements_file_has_the_install_commands():
    text = requirements.requirements_text(samples.lock(), Arch.X86_64)
    assert "pip install --no-deps --require-hashes -r requirements-x86_64.txt" in text


def test_packages_required_by_url_keep_their_url():
    built = BuiltWheel(
        package="demo",
        version="1.0",
        index="git",
        sdist=LockedFile(file="demo-1.0.tar.gz", size=1, sha256="a" * 64),
        env={},
        requires=(),
        wheel=LockedFile(file="demo-1.0-py3-none-any.whl", size=1, sha256="b" * 64),
    )
    lock = samples.lock(samples.wheel("trl"))
    wheel = "https://files.example/trl-1.0-py3-none-any.whl"
    tree = f"git+https://git.example/demo@{'0' * 40}"
    project = LockedProject(sources={"trl": wheel, "demo": tree}, trees={"demo": "0" * 40})
    resolution = msgspec.structs.replace(lock.arch[Arch.X86_64], built=(built,))
    text = requirements.requirements_text(
        msgspec.structs.replace(lock, project=project, arch={Arch.X86_64: resolution}), Arch.X86_64
    )
    assert f"\ntrl @ {wheel} --hash=sha256:{samples.wheel('trl').sha256}\n" in text
    assert f"\n#   demo @ {tree}\n" in text
    assert "\ndemo" not in text
    assert "Built from its sdist" not in text


def test_package_built_from_an_sdist_has_the_hashes_of_sdist_and_wheel():
    built = BuiltWheel(
        package="antlr4-python3-runtime",
        version="4.9.3",
        index="pypi",
        sdist=LockedFile(file="antlr4-python3-runtime-4.9.3.tar.gz", size=1, sha256="a" * 64),
        env={},
        requires=(),
        wheel=LockedFile(
            file="antlr4_python3_runtime-4.9.3-py3-none-any.whl", size=1, sha256="b" * 64
        ),
    )
    lock = samples.lock()
    resolution = msgspec.structs.replace(lock.arch[Arch.X86_64], built=(built,))
    text = requirements.requirements_text(
        msgspec.structs.replace(lock, arch={Arch.X86_64: resolution}), Arch.X86_64
    )
    hashes = f"--hash=sha256:{'a' * 64} --hash=sha256:{'b' * 64}"
    assert f"antlr4-python3-runtime==4.9.3 {hashes}\n" in text
    assert "Built from its sdist" in text
