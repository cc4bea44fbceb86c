"""Commands to copy: what they pull, and that they are what a shell and Kubernetes read."""

from __future__ import annotations

import shlex

import pytest
import yaml

from imgbuild.site.model import SiteCatalogue, SiteTarget


@pytest.fixture
def shown(made: SiteCatalogue) -> SiteTarget:
    return next(each for each in made.targets if each.name == "cu130-verl0.9")


def text(shown: SiteTarget, title: str) -> str:
    return next(command.text for command in shown.commands if command.title == title)


@pytest.mark.parametrize("title", ["Docker", "podman", "Apptainer", "Kubernetes"])
def test_an_image_is_named_by_its_digest(shown: SiteTarget, title: str) -> None:
    assert shown.digests is not None
    assert f"registry.example/owner/images@{shown.digests.digest}" in text(shown, title)


def test_commands_are_words_of_a_shell(shown: SiteTarget) -> None:
    for command in shown.commands:
        if command.title != "Kubernetes":
            lines = command.text.replace("\\\n", "").splitlines()
            assert all(len(shlex.split(line)) > 2 for line in lines if line != "sbatch job.sh")


def test_the_job_is_one_of_kubernetes(shown: SiteTarget) -> None:
    job = yaml.safe_load(text(shown, "Kubernetes"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert job["metadata"]["name"] == "cu130-verl0-9"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
