"""Tests that containers for Compose, Kubernetes and other tools receive values unchanged."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from imgbuild.container import settings
from imgbuild.container.settings import ContainerSettings, StartOptions
from imgbuild.errors import InputError
from imgbuild.render import compose, container_yaml, kubernetes, skypilot
from imgbuild.values import Arch
from tests.support import samples
from tests.support.inprocess_project import TARGET, Command, SampleProject, read_json
from tests.support.rows import each_row

SCHEMAS = Path(__file__).parents[2] / "data" / "kubernetes"
DIGEST = "sha256:" + "1" * 64
IMAGE = f"registry.example/rl@{DIGEST}"
COMMAND = ("python", "train.py")
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"))) | st.text(
    "$(){A} \n"
)


def container(**options: Any) -> ContainerSettings:
    """The container of the sample lock, with Ray's server for jobs."""
    made = settings.container_settings(
        samples.lock(),
        [Arch.X86_64],
        IMAGE,
        DIGEST,
        StartOptions(**{"command": COMMAND, **options}),
    )
    return msgspec.structs.replace(made, ray="2.60.0")


def schema(name: str) -> Any:
    return json.loads((SCHEMAS / f"{name}.json").read_text())


def expanded(text: str) -> str:
    """An argument as Kubernetes expands it: $$ becomes $, and $(NAME) is unchanged."""
    return re.sub(r"\$(\$|\([^)]*\))", lambda match: "$" if match[1] == "$" else match[0], text)


def interpolated(text: str) -> str:
    """A value as Compose interpolates it. No variable may remain."""
    assert not re.search(r"\$(?!\$)", text.replace("$$", "")), text
    return text.replace("$$", "$")


@given(TEXTS, TEXTS)
def test_container_values_and_arguments_are_passed_unchanged(value: str, word: str) -> None:
    made = container(env=(f"VALUE={value}",), command=("echo", word))
    [service] = yaml.safe_load(compose.compose_text(made, "x"))["services"].values()
    assert interpolated(service["environment"]["VALUE"]) == value
    assert [interpolated(each) for each in service["command"]] == ["echo", word]
    document = yaml.safe_load(kubernetes.job_manifest(made, "x"))
    [inner] = document["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in inner["env"]}
    assert expanded(variables["VALUE"]) == value
    assert [expanded(each) for each in inner["args"]] == ["echo", word]
    task = yaml.safe_load(skypilot.task_text(msgspec.structs.replace(made, gpu="H100"), "x"))
    assert task["envs"]["VALUE"] == value
    assert shlex.split(task["run"]) == ["echo", word]


@each_row(
    "text",
    ["on", "No", "y", "~", "null", "1e3", "0o17", "0777", "1:30", "0x1f", ".inf", "=", "", " a ",
     "- a", "a: b", "#x", "%x", "@x", "`x`", "!tag", "&a", "*a", "{}", "[", "a\nb", "\u2028", "é",
     "\U0001f600", "\ufeffx", "2026-11-28", "${X}"],
)  # fmt: skip
def test_text_in_yaml_files_is_quoted_for_every_yaml_reader(text: str) -> None:
    written = container_yaml.yaml_document({"key": text}, "x")
    assert yaml.safe_load(written) == {"key": text}
    assert re.fullmatch(r'# x\nkey: ".*"\n', written), written
    assert written.isascii()


@each_row(
    ("form", "write", "options"),
    [
        ("job", kubernetes.job_manifest, {"rdma": "rdma/ib", "shared": 1000, "ports": (8000,)}),
        ("job", kubernetes.job_manifest, {"gpus": "0", "env": ("A=1", "TOKEN")}),
        ("jobset", kubernetes.jobset_manifest, {"nodes": 4, "gpus": "8", "rdma": "rdma/ib"}),
        ("rayjob", kubernetes.rayjob_manifest, {"nodes": 1}),
        ("rayjob", kubernetes.rayjob_manifest, {"nodes": 3, "gpus": "8", "ports": (8265,)}),
    ],
)
def test_kubernetes_objects_have_only_fields_of_the_published_schema(
    form: str, write: Any, options: Any
) -> None:
    import jsonschema  # loading it takes a second

    document = yaml.safe_load(write(container(**options), "x"))
    jsonschema.validate(document, schema(form))
    assert IMAGE in json.dumps(document)
    document["spec"]["unknown"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema(form))


def test_torchrun_variables_are_set_in_jobset() -> None:
    document = yaml.safe_load(kubernetes.jobset_manifest(container(nodes=2, gpus="8"), "x"))
    [workers] = document["spec"]["replicatedJobs"]
    job = workers["template"]["spec"]
    assert (job["parallelism"], job["completions"], job["completionMode"]) == (2, 2, "Indexed")
    [inner] = job["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in inner["env"]}
    name = document["metadata"]["name"]
    assert variables["PET_MASTER_ADDR"] == f"{name}-{workers['name']}-0-0.{name}"
    assert (variables["PET_NNODES"], variables["PET_NPROC_PER_NODE"]) == ("2", "8")
    assert inner["resources"]["limits"] == {"nvidia.com/gpu": 8}


def test_ray_cluster_has_one_head_node_and_worker_nodes() -> None:
    cluster = yaml.safe_load(kubernetes.rayjob_manifest(container(nodes=3), "x"))["spec"][
        "rayClusterSpec"
    ]
    [group] = cluster["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (2, 2, 2)
    assert cluster["rayVersion"] == "2.60.0"
    [head] = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert "args" not in head
    assert "workerGroupSpecs" not in kubernetes.rayjob_manifest(container(), "x")


@given(st.lists(st.text("ab-_./=:,@+1", min_size=1, max_size=8), min_size=1, max_size=5))
def test_entry_point_is_passed_unchanged_through_shells_and_ray(words: list[str]) -> None:
    words[0] = words[0].replace("=", "a")
    text = kubernetes.rayjob_entrypoint(tuple(words))
    # What `ray job submit` makes of the words that a shell gives it, then read by sh.
    assert shlex.split(subprocess.list2cmdline(shlex.split(text))) == words


@each_row(
    "words",
    [("sh", "-c", "a b"), ("echo", "$HOME"), ("echo", "*"), ("echo", ""), ("A=1", "x"), ("if",),
     ("echo", "a;b"), ("echo", "~"), ("echo", "é"), ("echo", "a\nb"), ("echo", "{a,b}"),
     ("echo", "a\\b"), ("echo", "'"), ("echo", "#"), ("echo", "!!"), ("%1",), ("time", "x")],
)  # fmt: skip
def test_arguments_that_a_shell_would_change_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="a shell would change these words"):
        kubernetes.rayjob_entrypoint(words)


def test_secrets_are_rendered_by_name_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("OTHER", "other_secret")
    made = container(env=("OTHER",), gpu="H100")
    texts = [
        compose.compose_text(made, "x"),
        kubernetes.job_manifest(made, "x"),
        skypilot.task_text(made, "x"),
        compose.devcontainer_text(msgspec.structs.replace(made, command=())),
    ]
    for text in texts:
        assert "secret" not in text.replace("secretKeyRef", "").replace("secrets:", "")
        assert "OTHER" in text
    [service] = yaml.safe_load(texts[0])["services"].values()
    assert service["environment"]["HF_TOKEN"] is None
    assert yaml.safe_load(texts[2])["secrets"] == {"OTHER": None}
    assert json.loads(texts[3])["remoteEnv"]["HF_TOKEN"] == "${localEnv:HF_TOKEN}"


def test_requested_settings_are_in_each_container_format() -> None:
    made = container(gpus="2", shared=64, ports=(8000,))
    [service] = yaml.safe_load(compose.compose_text(made, "x"))["services"].values()
    assert service["shm_size"] == "64m"
    assert "ipc" not in service
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 2
    dev = json.loads(compose.devcontainer_text(msgspec.structs.replace(made, command=())))
    assert {"--gpus=2", "--shm-size=64m"} <= set(dev["runArgs"])
    assert dev["forwardPorts"] == [8000]
    [service] = yaml.safe_load(compose.compose_text(container(rdma="/dev/infiniband"), "x"))[
        "services"
    ].values()
    assert (service["network_mode"], service["cap_add"]) == ("host", ["IPC_LOCK"])
    assert service["ipc"] == "host"
    spec = yaml.safe_load(kubernetes.job_manifest(made, "x"))["spec"]["template"]["spec"]
    [memory] = [each for each in spec["volumes"] if each["name"] == "shm"]
    assert memory["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Mi"}
    assert spec["nodeSelector"] == {"kubernetes.io/arch": "amd64"}


@each_row(
    ("write", "options", "message"),
    [
        (compose.compose_text, {"nodes": 2}, "supports one machine"),
        (compose.compose_text, {"rdma": "rdma/ib"}, "expected a device"),
        (compose.compose_text, {"rdma": "/dev/infiniband", "ports": (1,)}, "cannot be combined"),
        (kubernetes.job_manifest, {"nodes": 2}, "supports one node"),
        (kubernetes.job_manifest, {"gpus": "all"}, "Kubernetes requires a number"),
        (
            kubernetes.job_manifest,
            {"rdma": "/dev/infiniband"},
            "expected the resource of a device plugin",
        ),
        (kubernetes.job_manifest, {"command": ()}, "requires a command"),
        (kubernetes.jobset_manifest, {"command": ()}, "requires a command"),
        (kubernetes.rayjob_manifest, {"command": ()}, "requires a command"),
        (skypilot.task_text, {}, "selects machines by GPU"),
        (
            skypilot.task_text,
            {"gpu": "H100", "gpus": "all", "shared": 1, "rdma": "a/b"},
            "--shared",
        ),
        (skypilot.task_text, {"gpu": "H100", "gpus": "0"}, "cannot be combined"),
    ],
)
def test_settings_that_a_container_format_cannot_express_are_refused(
    write: Any, options: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        write(container(**options), "x")


def test_dev_container_refuses_command_and_variables() -> None:
    with pytest.raises(InputError, match="does not support a command"):
        compose.devcontainer_text(container())
    with pytest.raises(InputError, match="cannot contain"):
        compose.devcontainer_text(container(command=(), env=("A=${localEnv:HOME}",)))
    made = json.loads(compose.devcontainer_text(container(command=(), env=("A=$HOME $$",))))
    assert made["containerEnv"]["A"] == "$HOME $$"


def test_all_invalid_container_options_are_reported_together() -> None:
    with pytest.raises(InputError) as caught:
        container(
            gpus="65", gpu="H 100", nodes=0, shared=-1, env=("1=2", "A=\0"), ports=(0,),
            rdma="x", command=("a\x1b",),
        )  # fmt: skip
    message = caught.value.message
    for part in (
        "--gpus 65", "--gpu 'H 100'", "--nodes 0", "--shared -1", "--env '1=2'",
        "--env A contains a control", "--port 0", "--rdma 'x'", "a word of the command",
    ):  # fmt: skip
        assert part in message
    with pytest.raises(InputError, match="exceeds the limit of"):
        container(env=tuple(f"A{number}=1" for number in range(300)))


def test_kubernetes_names_are_dns_labels() -> None:
    assert settings.dns_label("cu130-vllm0.33.0") == "cu130-vllm0-33-0"
    assert settings.dns_label("A_b..") == "a-b"
    assert len(settings.dns_label("x" * 100)) == settings.LABEL


def test_rendered_container_names_the_image_by_digest(
    imgbuild: Command, sample: SampleProject
) -> None:
    words = ("render", TARGET, "--format", "k8s-job", "--gpus", "2")
    place = ("--registry", "registry.example/rl")
    done = imgbuild(*words, *place, "--", "python", "-c", "print(1)", "--json")
    [inner] = yaml.safe_load(done.stdout)["spec"]["template"]["spec"]["containers"]
    assert inner["image"] == f"registry.example/rl@{sample.target_digests.digest}"
    assert inner["args"] == ["python", "-c", "print(1)", "--json"]
    served = imgbuild(*words, *place, "--port", "8000", "--", "vllm", "serve", "x").stdout
    assert f"run: kubectl port-forward job/{settings.dns_label(TARGET)} 8000\n" in served
    [answer] = read_json(imgbuild(*words, *place, "--json", "--", "true"))
    assert list(answer["files"]) == [f"{TARGET}-job.yaml"]
    absent = imgbuild(*words, "--", "true")
    assert (absent.status, "--registry HOST/REPOSITORY" in absent.stderr) == (2, True)
    local = imgbuild("render", TARGET, "--format", "compose")
    script = "echo a\n\techo b"
    lines = imgbuild("render", TARGET, "--format", "compose", "--", "bash", "-c", script).stdout
    [service] = yaml.safe_load(lines)["services"].values()
    assert service["command"] == ["bash", "-c", script]
    assert f"{TARGET}:latest" in local.stdout
    assert f"imgbuild load {TARGET}" in local.stderr
    other = imgbuild("render", TARGET, "--format", "requirements", "--", "true")
    assert (other.status, "does not support a command" in other.stderr) == (2, True)
    assert imgbuild("render", TARGET, "--format", "kuberay", *place, "--", "x").status == 2
