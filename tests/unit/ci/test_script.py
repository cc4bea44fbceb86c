"""Tests the commands in the script of CI jobs, their order, and omitted steps."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import msgspec
import pytest

from imgbuild import codec
from imgbuild.plan import image_digests
from imgbuild.values import Arch
from tests.support.ci_jobs_sample import RUNNERS, _sample, _shared_sample, job_script, make_jobs
from tests.support.inprocess_project import TARGET, SampleProject

__all__ = ["_sample", "_shared_sample"]  # fixtures
REGISTRY = "registry.example/rl"


def calls(text: str) -> list[list[str]]:
    """Return the function calls of the script, split into words, without keys."""
    _, _, body = text.partition(f"\ntarget {TARGET}\n")
    joined = body.replace("{ ", "").replace("; }", "").replace("&&\n", "\n").replace("||", "\n")
    word_lists = [shlex.split(line) for line in joined.splitlines() if line.strip()]
    return [[*words[:2], *words[3:]] if words[0] == "step" else words for words in word_lists]


def command(text: str, step: str) -> list[str]:
    return next(words[2:] for words in calls(text) if words[:2] == ["step", step])


def test_ci_script_pushes_the_image_before_gpu_tests_and_tags_it_last(sample):
    text = job_script(sample, make_jobs(sample, RUNNERS + "sif: true\n"), key=Path("/a/key"))
    steps = [words[1] for words in calls(text) if words[0] in ("begin", "step")]
    assert steps == [
        f"{TARGET}@x86_64", "check", "audit", "build", "smoke", "push",
        f"{TARGET}@x86_64-gpu", "pull", "smoke",
        f"{TARGET}@publish", "sign", "tag",
        f"{TARGET}@x86_64-sif", "pull", "sif",
    ]  # fmt: skip
    begin = {words[1]: words[2:] for words in calls(text) if words[0] == "begin"}
    digest = sample.target_digests.digest
    assert {words[0] for words in begin.values()} == {digest}
    keys = {name: words[1] for name, words in begin.items()}
    image, gpu, publish = (f"{TARGET}@{place}" for place in ("x86_64", "x86_64-gpu", "publish"))
    assert begin[gpu][2:] == ["x86_64", image, keys[image]]
    assert begin[publish][2:] == ["any", image, keys[image], gpu, keys[gpu]]
    assert begin[f"{TARGET}@x86_64-sif"][2:] == ["any", publish, keys[publish]]
    assert len(set(keys.values())) == len(keys)


def test_steps_of_a_ci_script_are_commands_with_options(sample):
    text = job_script(
        sample, make_jobs(sample), key=Path("/a/key"), through="root", plain_http=("h:1",)
    )
    plain, place = ["--plain-http", "h:1"], f"{REGISTRY}@{sample.target_digests.digest}"
    assert command(text, "check") == ["lock", "--check", TARGET]
    assert command(text, "smoke") == [
        "smoke", TARGET, "--arch", "x86_64", "--tier", "static", "--tier", "cpu",
        "--through", "root",
    ]  # fmt: skip
    assert command(text, "push") == ["push", TARGET, REGISTRY, "--digest-only", *plain]
    assert command(text, "sign") == [
        "sign", place, "--target", TARGET, "--sign-key", "/a/key", *plain,
    ]  # fmt: skip
    tags = [f"{TARGET}-$(date -u +%Y%m%d)", TARGET]  # the target's tag last
    assert command(text, "tag") == ["registry", "tag", *plain, place, *tags]


def test_script_neither_pushes_without_registry_nor_signs_without_key(sample):
    steps = [
        words[1] for words in calls(job_script(sample, make_jobs(sample))) if words[0] == "step"
    ]
    assert "sign" not in steps
    bare = job_script(sample, make_jobs(sample), registry="")
    bare_steps = [words[1] for words in calls(bare) if words[0] in ("begin", "step")]
    assert bare_steps == [
        f"{TARGET}@x86_64", "check", "audit", "build", "smoke",
        f"{TARGET}@x86_64-gpu", "pull", "smoke",
    ]  # fmt: skip
    assert command(bare, "pull") == ["build", TARGET]
    assert "\npublished=()\n" in bare


def test_key_of_a_ci_step_depends_on_tiers_and_image(sample):
    def _key(gate: str, digest: str = sample.target_digests.digest) -> str:
        target_jobs = make_jobs(sample, gate=f"gate: {gate}\n")
        image = tuple(msgspec.structs.replace(job, digest=digest) for job in target_jobs.image)
        text = job_script(sample, msgspec.structs.replace(target_jobs, image=image))
        return next(line.split()[2] for line in text.splitlines() if " step smoke" in line)

    assert _key("[static]") == _key("[static]")
    assert len({_key("[static]"), _key("[static, cpu]"), _key("[static]", "sha256:0")}) == 3


def test_ci_script_verifies_each_layer_by_a_second_build(sample):
    text = job_script(sample, make_jobs(sample, again=True))
    builds = [words[2:] for words in calls(text) if words[:2] == ["step", "build"]]
    assert builds == [["build", TARGET], ["build", TARGET, "--verify"]]


def test_cves_step_of_a_ci_script_runs_only_if_configured(sample):
    assert "step cves" not in job_script(sample, make_jobs(sample))
    settings = RUNNERS + "cves: {severity: critical, ignore_unfixed: true}\n"
    assert command(job_script(sample, make_jobs(sample, settings), settings), "cves") == [
        "cves", TARGET, "--arch", "x86_64", "--severity", "critical", "--ignore-unfixed",
    ]  # fmt: skip
    settings = RUNNERS + "cves: {}\n"
    words = command(job_script(sample, make_jobs(sample, settings), settings), "cves")
    assert words[4:] == ["--severity", "high"]


def test_image_over_size_budget_is_refused(sample):
    target_jobs = make_jobs(sample)
    large = msgspec.structs.replace(sample.target_digests.arch[Arch.X86_64], size=2_500_000)
    target_digests = msgspec.structs.replace(sample.target_digests, arch={Arch.X86_64: large})
    codec.write_document(
        image_digests.digests_path(sample.folder / "images", TARGET), target_digests
    )
    text = job_script(sample, target_jobs, RUNNERS + "budget: {'cu124*': 2, '*': 9}\n")
    [(_, step, status, answer, message)] = [c for c in calls(text) if c[0] == "refuse"]
    assert (step, status) == ("size", "1")
    assert json.loads(answer)["message"] == message
    assert message.endswith("size of 2.5 MB, more than the budget of 2 MB")
    wide = job_script(sample, target_jobs, RUNNERS + "budget: {'cu13*': 2, '*': 9}\n")
    assert not [words for words in calls(wide) if words[0] == "refuse"]


def test_slurm_gpu_tests_are_queued_during_builds(sample):
    text = job_script(sample, make_jobs(sample), slurm=("--partition=gpu", "--sbatch=--qos=high"))
    smoke = [
        "smoke", TARGET, "--arch", "x86_64", "--tier", "gpu", "--on", "slurm",
        "--sbatch=--gpus-per-node=1", "--partition=gpu", "--sbatch=--qos=high",
    ]  # fmt: skip
    word_lists = calls(text)
    assert word_lists.count(["target", TARGET]) == 1  # and the one that `calls` has removed
    submit = word_lists.index(["submit", *smoke])
    assert (
        submit < word_lists.index(["target", TARGET]) < word_lists.index(["step", "smoke", *smoke])
    )
    [gpu] = [words for words in word_lists if words[:2] == ["begin", f"{TARGET}@x86_64-gpu"]]
    assert gpu[4] == "any"


@pytest.mark.parametrize("word", ["it's", "$(touch /x)", "`x`", 'a "b"', "a\nb", "; rm -rf *"])
def test_every_value_in_a_ci_script_is_one_shell_word(sample: SampleProject, word: str):
    folder = sample.folder / word
    text = job_script(
        sample, make_jobs(sample), results=folder, key=folder / "key", plain_http=(word,),
        selection=(word,), slurm=(f"--sbatch={word}",),
    )  # fmt: skip
    words = shlex.split(text, comments=True)
    assert f"results={folder}" in words
    assert str(folder / "key") in words
    assert f"--sbatch={word}" in words
    assert word in words
