"""Tests that commands on pages name the correct image and are valid."""

from __future__ import annotations

import re
import shlex

import msgspec
import pytest
import typer.main
import yaml

from imgbuild.cli._app import app
from imgbuild.container.settings import StartOptions
from imgbuild.render import write
from imgbuild.render.write import RenderOptions
from imgbuild.site import commands, pages
from imgbuild.site.catalogue import SiteSources
from imgbuild.site.model import SiteCatalogue, SiteTarget
from imgbuild.values import Arch
from tests.support.rows import each_row
from tests.support.site_history import HISTORY

MARK = re.compile("</?b[^>]*>")  # of what a reader chooses


@pytest.fixture
def shown(example_site: SiteCatalogue) -> SiteTarget:
    return next(each for each in example_site.targets if each.name == "cu130-verl0.9")


def text(shown: SiteTarget, title: str) -> str:
    return next(command.text for command in shown.commands if command.title == title)


@pytest.mark.parametrize("title", ["Docker", "OpenAI server", "podman", "Apptainer"])
def test_commands_on_a_page_name_the_image_by_digest(shown: SiteTarget, title: str) -> None:
    assert shown.digests is not None
    assert f"registry.example/owner/images@{shown.digests.digest}" in text(shown, title)


def test_server_command_has_the_program_and_the_port_of_the_image(
    example_site: SiteCatalogue,
) -> None:
    servers = {
        each.name: command.text
        for each in example_site.targets
        for command in each.commands
        if command.title == commands.SERVER
    }
    assert "-p 127.0.0.1:8000:8000" in servers["cu130-verl0.9"]
    assert servers["cu130-verl0.9"].endswith(" vllm serve MODEL")
    assert "-p 127.0.0.1:30000:30000" in servers["cu130-verl-sglang"]
    assert servers["cu130-verl-sglang"].endswith(" MODEL --host 0.0.0.0")
    assert "cu130-trl" not in servers


def test_slurm_commands_on_a_page_begin_with_the_pull_of_the_sif(shown: SiteTarget) -> None:
    one, two = (text(shown, f"Slurm, {nodes}").splitlines() for nodes in ("one node", "two nodes"))
    assert one[0] == two[0]
    assert one[0].startswith("apptainer pull cu130-verl0.9.sif ")


def test_without_a_registry_the_page_shows_a_push_before_the_pull(shown: SiteTarget) -> None:
    lines = str(pages.FILTERS["push"](shown)).splitlines()
    assert lines[0] == f"imgbuild push cu130-verl0.9 {commands.REPOSITORY}"
    assert lines[1] == f"docker pull {commands.REPOSITORY}@{shown.page.digest}"


def test_commands_on_a_page_are_valid_shell_words(shown: SiteTarget) -> None:
    for command in shown.commands:
        lines = command.text.replace("\\\n", "").splitlines()
        assert all(len(shlex.split(line)) > 2 for line in lines if line != "sbatch job.sh")


def test_job_on_a_page_is_a_kubernetes_job(shown: SiteTarget) -> None:
    assert shown.lock is not None
    job = yaml.safe_load(commands.job_text(shown.lock).replace(commands.GPUS, "8"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert {"name": "workspace", "mountPath": container["workingDir"]} in container["volumeMounts"]
    claims = [
        volume.get("persistentVolumeClaim") for volume in job["spec"]["template"]["spec"]["volumes"]
    ]
    assert {"claimName": "workspace"} in claims
    assert container["args"][2:4] == ["--nproc-per-node", "8"]


def test_job_on_a_page_matches_the_rendered_job(shown: SiteTarget, sources: SiteSources) -> None:
    """The page and `imgbuild render --format k8s-job` must show the same job."""
    words = commands.LAUNCH_COMMAND.replace(commands.GPUS, "8").split()
    options = RenderOptions(
        form="k8s-job",
        registry="registry.example/owner/images",
        container=StartOptions(command=tuple(words), gpus="8"),
    )
    assert shown.lock is not None
    chosen = (shown.lock, tuple(shown.lock.arch))
    (rendered,) = write.render_locks(sources.project, sources.matrix, [chosen], options)
    assert shown.digests is not None
    page = commands.job_text(shown.lock).replace(commands.GPUS, "8")
    image = f"registry.example/owner/images@{shown.digests.digest}"
    job = yaml.safe_load(page.replace(commands.IMAGE, image))
    job["metadata"]["name"] = "cu130-verl0-9"
    assert job == yaml.safe_load(rendered.text)


def test_push_and_job_on_a_page_name_the_same_repository(shown: SiteTarget) -> None:
    assert shown.lock is not None
    assert shown.digests is not None
    every = commands.target_commands(shown.lock, shown.digests, None, rendered=True)
    example_site = {each.title: each.text for each in every}
    place = commands.REPOSITORY
    assert f"imgbuild push cu130-verl0.9 {place}\n" in example_site["Kubernetes"]
    assert f"--registry {place} -- torchrun" in example_site["Kubernetes"]
    assert f"--registry {place} --" in example_site["Ray in Kubernetes"]


@each_row(
    ("reason", "expected"),
    [
        ("", None),
        ("it failed on a GPU", None),
        ("absent-target has a newer vLLM", None),
        ("cu124-vllm0.7.2 failed; use cu124-vllm.", ("cu124-vllm", Arch.X86_64)),
    ],
)
def test_successor_of_a_retired_image_is_another_image(
    example_site: SiteCatalogue, reason: str, expected: tuple[str, Arch] | None
) -> None:
    targets = {each.name: each for each in example_site.targets}
    locked = [each for each in example_site.targets if each.lock]
    chosen = targets["cu124-vllm0.7.2"]
    retired = msgspec.structs.replace(
        chosen, row=msgspec.structs.replace(chosen.row, retired=reason)
    )
    assert pages._successor(retired, locked) == expected
    planned = msgspec.structs.replace(retired, page=msgspec.structs.replace(chosen.page, images=()))
    assert pages._successor(planned, locked) is None


def test_page_has_compose_and_ray_commands_only_for_suitable_images(
    example_site: SiteCatalogue,
) -> None:
    titles = {
        each.name: [command.title for command in each.commands] for each in example_site.targets
    }
    assert {"Docker Compose", "Ray in Kubernetes"} <= set(titles["cu130-verl0.9"])
    assert "Docker Compose" in titles["cu130-trl"]
    assert "Ray in Kubernetes" not in titles["cu130-trl"]
    retired = {each.name for each in example_site.targets if each.row.retired}
    assert retired
    assert not any("Docker Compose" in titles[name] for name in retired)


def test_every_command_of_imgbuild_on_a_page_exists(example_site: SiteCatalogue) -> None:
    program = typer.main.get_command(app)
    flags = {
        name: {flag for option in command.params for flag in option.opts}
        for name, command in program.commands.items()  # type: ignore[attr-defined]
    }
    shown = set()
    for path, data in pages.site_pages(example_site, HISTORY):
        if path.endswith((".html", ".js")):
            shown |= set(
                re.findall(r"imgbuild ([a-z]+)((?: [^\s<`|;&]+)*)", MARK.sub("", data.decode()))
            )
    used = {
        (verb, flag)
        for verb, rest in shown
        for flag in re.findall(r"(--[a-z-]+)(?: |$)", rest.partition(" -- ")[0])
    }
    assert {"build", "init", "render", "resolve", "slurm"} <= {verb for verb, _ in used | shown}
    assert {(verb, flag) for verb, flag in used if flag not in flags.get(verb, ())} == set()
