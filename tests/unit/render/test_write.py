"""Tests the Dockerfile of a lock, and required parts of every other format."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest
from packaging.pylock import Pylock

from imgbuild.errors import InputError
from imgbuild.lock import locked_matrix, requirements
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.model import LockedProject
from imgbuild.lock.resolution import Wheel
from imgbuild.matrix import project_paths
from imgbuild.matrix.model import DroppedFiles
from imgbuild.plan import current
from imgbuild.render import apptainer, bake, committed, online, pylock, script, templates, write
from imgbuild.render.dockerfile import DockerfileModel, create_dockerfile
from imgbuild.values import Arch
from tests.support import render_sample, samples
from tests.support.inprocess_project import TARGET, Command, SampleProject, unwrap_text

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/data/render"
NO_TEMPLATES = Path("/nonexistent")


def value(*arches: Arch) -> DockerfileModel:
    matrix = render_sample.matrix(*arches)
    lock = render_sample.lock(matrix)
    return create_dockerfile(lock, render_sample.invented_digests(lock), matrix)


def text(rendering: DockerfileModel) -> str:
    return templates.render_template("dockerfile.j2", rendering, images=NO_TEMPLATES)


@pytest.mark.parametrize(
    ("name", "renderer"),
    [
        ("Dockerfile", lambda: text(value())),
        ("Dockerfile.x86_64", lambda: text(value(Arch.X86_64))),
        ("Dockerfile.online", lambda: text(_online())),
        ("small-arm64.def", lambda: _definition(value())),
        ("small.sh", lambda: script.script_text(_script(), "small", NO_TEMPLATES)),
    ],
)
def test_rendered_texts_match_golden_files(name, renderer, golden):
    golden(GOLDEN / name, renderer())


def _online() -> DockerfileModel:
    lock = render_sample.lock()
    reference = online.base_reference(value(), lock, "registry.example/me/images")
    return online.online_dockerfile(value(), lock, reference, render_sample.file_address)


def _definition(rendering: DockerfileModel) -> str:
    return apptainer.definition_text(rendering, Arch.ARM64, "small-arm64", NO_TEMPLATES)


def _script() -> script.InstallScript:
    lock = render_sample.lock()
    return script.create_script(
        lock, render_sample.invented_digests(lock), Arch.X86_64, render_sample.file_address
    )


def test_every_locked_wheel_is_installed_once_on_each_architecture():
    lock = render_sample.lock()
    for stage in value().stages:
        resolution = lock.arch[Arch.parse(stage.arch)]
        installed = [
            name
            for install in stage.installs
            for name in (
                *install.requirements,
                *(omission.requirement for omission in install.omissions),
            )
        ]
        assert sorted(installed) == sorted(
            f"{package}=={version}" for package, version in resolution.versions.items()
        )


def test_rendered_requirements_file_has_every_hash():
    lock = render_sample.lock()
    text = requirements.requirements_text(lock, Arch.X86_64)
    for wheel in lock.arch[Arch.X86_64].wheels:
        assert f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}\n" in text
    assert f"--hash=sha256:{'b' * 64}\n" in text  # of the wheel that was built, as a folder has it


def test_dropped_files_are_removed_from_the_record_file():
    (omission,) = [
        omission for install in value().stages[0].installs for omission in install.omissions
    ]
    rows = [re.compile(row.replace("\\/", "/")) for row in omission.rows]
    record = ["../../../bin/fastapi,sha256=x,1", "fastapi_cli/extra/a/b.py,,", "fastapi_cli/x.py,,"]
    assert [any(row.search(line) for row in rows) for line in record] == [True, True, False]
    assert not any(row.search("../../../bin/fastapi-cli,,") for row in rows)


def test_dockerfile_for_a_lock_without_uv_is_an_error_that_names_the_target():
    matrix = render_sample.matrix()
    lock = render_sample.without_package(render_sample.lock(matrix), "uv")
    with pytest.raises(InputError, match="small: the Dockerfile requires uv"):
        create_dockerfile(lock, render_sample.invented_digests(lock), matrix)


def test_online_dockerfile_requires_a_registry():
    with pytest.raises(InputError, match="the base debian-12 is not in a registry") as caught:
        online.base_reference(value(), render_sample.lock(), None)
    assert "--registry" in (caught.value.hint or "")


def test_online_dockerfile_has_url_of_every_file():
    rendered_text = text(_online())
    for wheel in render_sample.lock().arch[Arch.ARM64].wheels:
        assert f"https://index.example/{wheel.package}/{wheel.file}" in rendered_text
    assert "antlr4-python3-runtime-4.9.3.tar.gz" in rendered_text
    assert "antlr4_python3_runtime-4.9.3-py3-none-any.whl" not in rendered_text  # no index has it
    assert not re.search(r"from=wheels[, ]", rendered_text)
    assert "FROM base" not in rendered_text


def _needing(*wheels: Wheel) -> Lock:
    """The sample's lock. `wheels` are the build requirements of packages without a wheel."""
    lock = render_sample.lock()
    built = msgspec.structs.replace(render_sample.BUILT, requires=wheels)
    arches = {
        arch: msgspec.structs.replace(resolution, built=(built,))
        for arch, resolution in lock.arch.items()
    }
    return msgspec.structs.replace(lock, arch=arches)


def test_dockerfile_uses_the_wheels_of_each_architecture():
    """An sdist is built on x86_64, so the build imports the torch locked for x86_64."""
    other = "torch-2.6.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    torch = msgspec.structs.replace(samples.wheel("torch", "2.6.0"), file=other, sha256="c" * 64)
    lock = _needing(torch, samples.wheel("setuptools", "80.9.0"))
    torch_wheel = render_sample.wheels_by_package(lock)["torch"]
    files = online.build_files(lock, [Arch.ARM64])
    (text,) = (data.decode() for data in files.values())
    assert list(files) == ["build-antlr4-python3-runtime-arm64.txt"]
    assert f"torch==2.6.0 --hash=sha256:{torch_wheel.sha256}\n" in text
    install_script = script.create_script(
        lock, render_sample.invented_digests(lock), Arch.ARM64, render_sample.file_address
    )
    (needs,) = [each.requires for each in install_script.alone if each.sdist]
    assert [line.plain.partition("=")[0] for line in needs] == ["setuptools"]  # torch is there


def test_wheel_of_another_architecture_is_refused():
    file = "ninja-1.11-py3-none-manylinux_2_12_x86_64.manylinux2010_x86_64.whl"
    lock = _needing(msgspec.structs.replace(samples.wheel("ninja", "1.11"), file=file))
    assert online.build_files(lock, [Arch.X86_64])
    with pytest.raises(
        InputError, match=r"ninja 1\.11, but the lock has only ninja-1\.11-py3"
    ) as caught:
        online.build_files(lock, [Arch.ARM64])
    assert "--only wheels" in (caught.value.hint or "")


def test_files_of_built_packages_can_be_dropped():
    lock = render_sample.lock()
    drop = DroppedFiles(
        package="antlr4-python3-runtime", paths=("bin/pygrun",), reason="trl ships it too"
    )
    lock = msgspec.structs.replace(lock, drop=(*lock.drop, drop))
    rendering = create_dockerfile(
        lock, render_sample.invented_digests(lock), render_sample.matrix()
    )
    rendering = online.online_dockerfile(
        rendering, lock, "registry.example/base@sha256:0", render_sample.file_address
    )
    steps = text(rendering).split("\nRUN ")
    (step,) = [step for step in steps if "PYTHONPATH=/tmp/build" in step and "amd64" in step]
    places = [
        step.index(words)
        for words in (
            "--prefix /tmp/part antlr4-python3-runtime==4.9.3",
            "-path /tmp/part/bin/pygrun",
            "cp -a /tmp/part/. /opt/venv/",
        )
    ]
    assert places == sorted(places)
    assert "# Without some files of antlr4-python3-runtime==4.9.3: trl ships it too" in text(
        rendering
    )


def test_online_dockerfile_refers_to_the_registry_base():
    lock = render_sample.lock()
    image = f"quay.example/base:1@sha256:{'c' * 64}"
    base = msgspec.structs.replace(lock.base, kind="registry", image=image)
    lock = msgspec.structs.replace(lock, base=base)
    assert online.base_reference(value(), lock, None) == image


def _head(rendering: DockerfileModel) -> str:
    return text(rendering).partition("\nARG ")[0]


def test_build_command_in_a_dockerfile_header_names_one_platform():
    """A machine without emulation cannot build for a second platform."""
    for rendering in (value(), _online()):
        (named,) = re.findall(r"docker buildx build .*--platform (\S+)", _head(rendering))
        assert named == "linux/amd64"
        (several,) = re.findall(r"^# --platform (\S+) builds both", _head(rendering), re.MULTILINE)
        assert sorted(several.split(",")) == ["linux/amd64", "linux/arm64"]
    assert re.findall(r"--platform (\S+)", _head(value(Arch.ARM64))) == ["linux/arm64"]


def test_header_of_a_dockerfile_outside_the_lock_folder_names_the_lock():
    matrix = render_sample.matrix()
    lock = render_sample.lock(matrix)
    rendering = create_dockerfile(lock, render_sample.invented_digests(lock), matrix, [Arch.ARM64])
    head = _head(msgspec.structs.replace(rendering, kept=False))
    assert "beside it" not in head
    assert "images/small" not in head
    assert "--builder docker" not in head, "it builds the committed Dockerfile"
    assert "imgbuild render small --arch arm64 --output FOLDER" in head
    assert "imgbuild build small --arch arm64 --only base " in head
    assert "imgbuild build small --arch arm64 --only wheels " in head
    assert re.findall(r"--platform (\S+)", head) == ["linux/arm64"]


def test_dockerfile_commands_for_one_architecture_name_its_requirements_file():
    assert "#   sh small-arm64.sh FOLDER" in script.script_text(
        _script(), "small-arm64", NO_TEMPLATES
    )
    assert "render small --format apptainer --arch arm64`" in _definition(value())


def test_bake_targets_have_names_without_dots_and_contexts_with_digests():
    rendering = msgspec.structs.replace(value(), target="cu130-vllm0.20.2")
    (name,) = bake.bake_document([rendering])["target"]
    assert name == "cu130-vllm0_20_2"
    bake_target = bake.bake_document([rendering])["target"][name]
    assert sorted(bake_target["platforms"]) == ["linux/amd64", "linux/arm64"]
    assert bake_target["contexts"]["base"].endswith(f"@{rendering.base.digest}")
    assert bake_target["network"] == "none"
    assert re.fullmatch(r"[A-Za-z0-9_-]+", name)


def by_address() -> Lock:
    """The sample lock with a wheel built from a git repository and a wheel by URL."""
    lock = render_sample.lock()
    arch = {
        name: msgspec.structs.replace(
            each, built=tuple(msgspec.structs.replace(item, index="git") for item in each.built)
        )
        for name, each in lock.arch.items()
    }
    (built, *_) = (item for each in arch.values() for item in each.built)
    wheel = next(iter(arch.values())).wheels[0]
    sources = {
        built.package: f"git+https://git.example/demo@{'0' * 40}#subdirectory=python",
        wheel.package: f"https://files.example/{wheel.file}",
    }
    project = LockedProject(sources=sources, trees={built.package: "0" * 40})
    return msgspec.structs.replace(lock, arch=arch, project=project)


def test_package_required_by_url_is_not_requested_from_the_default_index():
    lock = by_address()
    arch = {
        name: msgspec.structs.replace(
            each,
            wheels=tuple(
                msgspec.structs.replace(wheel, index="url")
                if lock.project is not None and wheel.package in lock.project.sources
                else wheel
                for wheel in each.wheels
            ),
        )
        for name, each in lock.arch.items()
    }
    assert locked_matrix.default_index_name(msgspec.structs.replace(lock, arch=arch)) == "pypi"


def test_pylock_has_the_commit_of_a_git_repository():
    lock = by_address()
    text = pylock.pylock_text(lock, tuple(lock.arch), render_sample.file_address)
    assert (
        'vcs = {type = "git", url = "https://git.example/demo", commit-id = "'
        + "0" * 40
        + '", subdirectory = "python"}'
    ) in text
    Pylock.from_dict(tomllib.loads(text)).validate()


def test_pylock_is_read_by_packaging_and_has_every_hash():
    lock = render_sample.lock()
    text = pylock.pylock_text(lock, tuple(lock.arch), render_sample.file_address)
    assert (
        "\n# Built from its sdist on installing, with QUIET='yes, please'.\n[[packages]]\n" in text
    )
    read = Pylock.from_dict(tomllib.loads(text))
    read.validate()
    by_name = {str(package.name): package for package in read.packages}
    for package, wheel in render_sample.wheels_by_package(lock).items():
        (locked_wheel,) = by_name[package].wheels or ()
        assert locked_wheel.hashes == {"sha256": wheel.sha256}
        assert locked_wheel.url == render_sample.file_address(package, wheel)
    marker = str(by_name["nvidia-x"].marker)
    assert "platform_machine" in marker
    assert "aarch64" not in marker
    sdist = by_name["antlr4-python3-runtime"].sdist
    assert sdist is not None
    assert sdist.hashes == {"sha256": "a" * 64}


def test_install_script_relocates_image_folders():
    install_script = _script()
    assert install_script.env["GREETING"] == '"say \\"hi\\" to \\$HOME"'
    assert "PATH" not in install_script.env
    assert install_script.links == {"lib/libx.so": "libx.so.1"}
    assert install_script.env["FLASHINFER_WORKSPACE_BASE"] == '"$cache"'
    assert [each.package for each in install_script.alone] == [
        "fastapi-cli",
        "antlr4-python3-runtime",
    ]
    plain = [line.plain.partition("=")[0] for line in install_script.requirements]
    assert plain == ["fastapi", "nvidia-x", "pip", "torch", "trl", "uv"]


def test_install_script_has_urls_of_packages_on_other_indexes():
    lock = render_sample.lock()
    lock = msgspec.structs.replace(lock, indexes={"trl": "elsewhere"})
    install_script = script.create_script(
        lock, render_sample.invented_digests(lock), Arch.X86_64, render_sample.file_address
    )
    trl = render_sample.wheels_by_package(lock)["trl"]
    where = f"trl @ https://index.example/trl/{trl.file} --hash=sha256:{trl.sha256}"
    (line,) = [line for line in install_script.requirements if line.with_url]
    assert line.with_url == where
    assert line.plain == f"trl==0.18.2 --hash=sha256:{trl.sha256}"  # as a folder of wheels has it


def test_project_template_takes_precedence(tmp_path):
    templates_folder = tmp_path / "templates"
    templates_folder.mkdir()
    (templates_folder / "files.j2").write_text("# mine, for {{ target }}\n")
    rendered_text = templates.render_template("dockerfile.j2", value(), images=tmp_path)
    assert "# mine, for small" in rendered_text
    assert "# The empty environment" in rendered_text  # the others are imgbuild's


def test_error_for_a_broken_template_names_the_template(tmp_path):
    templates_folder = tmp_path / "templates"
    templates_folder.mkdir()
    (templates_folder / "files.j2").write_text("\n{{ nothing_of_this_name }}\n")
    with pytest.raises(InputError, match="nothing_of_this_name"):
        templates.render_template("dockerfile.j2", value(), images=tmp_path)
    (templates_folder / "files.j2").write_text("{% if %}\n")
    with pytest.raises(InputError, match=r"files\.j2:1"):
        templates.render_template("dockerfile.j2", value(), images=tmp_path)


def test_accounts_that_differ_between_architectures_are_written_to_separate_files():
    matrix = render_sample.matrix()
    lock = render_sample.lock(matrix)
    arches = {
        arch: msgspec.structs.replace(
            resolution,
            base_files={"etc/passwd": f"{arch}:x:7:7::/:/bin/sh\n", "etc/group": "root:x:0:\n"},
        )
        for arch, resolution in lock.arch.items()
    }
    lock = msgspec.structs.replace(lock, arch=arches)
    files = committed.copied_files(lock, tuple(lock.arch), matrix)
    assert files["files-arm64/etc/passwd"].startswith(b"arm64:")
    assert files["files-amd64/etc/passwd"].startswith(b"x86_64:")
    assert b"imgbuild:x:1000:" in files["files/etc/group"]
    rendered_text = text(create_dockerfile(lock, render_sample.invented_digests(lock), matrix))
    assert (
        'install -D -T -m 0644 /run/context/files-"$TARGETARCH"/etc/passwd /etc/passwd'
        in rendered_text
    )
    assert "\nARG TARGETARCH\n" in rendered_text
    definition = _definition(create_dockerfile(lock, render_sample.invented_digests(lock), matrix))
    assert "install -D -T -m 0644 /imgbuild/files-arm64/etc/passwd /etc/passwd" in definition
    assert "TARGETARCH" not in definition


def test_old_dockerfile_is_removed_if_the_new_lock_cannot_have_one(tmp_path):
    project = project_paths.Project(matrix=tmp_path / "matrix.yaml")
    matrix = render_sample.matrix()
    before = render_sample.lock(matrix)
    left: list[set[str]] = []
    for lock in (before, render_sample.without_package(before, "uv")):
        current.write_locked(project, lock, render_sample.invented_digests(lock))
        write.keep_new(project, matrix, ["small"])
        places = (project.images / "small").rglob("*")
        left.append({path.name for path in places if path.is_file()})
    first, second = left
    assert {"Dockerfile", "environment.sh"} <= first
    assert second == {
        "lock.json", "digests.json", "requirements-x86_64.txt", "requirements-arm64.txt",
    }  # fmt: skip


def test_dockerfile_for_a_lock_without_uv_is_refused(tmp_path):
    """`imgbuild lock` reports this in a project whose images have no uv."""
    lock = samples.lock()
    with pytest.raises(InputError, match="uv"):
        create_dockerfile(lock, render_sample.invented_digests(lock), samples.matrix())


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (["--online"], "--output FOLDER"),
        (["--registry", "host/name"], "--registry requires --online"),
        (["--check", "--online", "--output", "x"], "--check cannot be combined"),
        (["--format", "script", "--check"], "cannot be combined with --format script"),
        (["--arch", "x86_64"], "includes all architectures of the lock"),
    ],
)
def test_contradicting_render_options_are_refused(
    imgbuild: Command, sample: SampleProject, words: list[str], result: str
) -> None:
    assert result in unwrap_text(imgbuild("render", TARGET, *words, status=2).stderr)
