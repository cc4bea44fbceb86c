"""Tests functions of smoke test cases that need neither a GPU nor the tested packages."""

from __future__ import annotations

import json
import sys
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType

import pytest

from imgbuild.show import test_cases
from imgbuild.system import files
from tests.support.smoke_scripts import SCRIPTS, smoke_module

META = ("METADATA", "RECORD")


def test_documentation_lists_every_smoke_case(monkeypatch):
    tiers = smoke_module("smoke_tiers", monkeypatch).TIERS
    text = (SCRIPTS.parent / "docs/smoke.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    for tier, cases in tiers.items():
        mine = " ".join(row for row in rows if row.startswith(f"| `{tier}`"))
        assert not [case.name for case in cases if case.name not in mine], tier


def test_show_lists_the_name_of_every_smoke_case(monkeypatch, golden):
    tiers = smoke_module("smoke_tiers", monkeypatch).TIERS
    names = {tier: [case.name for case in cases] for tier, cases in tiers.items()}
    golden(files.data("smoke_cases.json"), json.dumps(names, indent=1) + "\n")
    shown = " ".join(test_cases.tier_descriptions(tiers))
    assert not [name for cases in names.values() for name in cases if name not in shown]


def test_settings_ignored_by_verl_are_detected(monkeypatch):
    verl = smoke_module("gpu_verl", monkeypatch)
    configuration = {"trainer": {"nnodes": 1, "logger": None}, "critic": {"model": {"path": "x"}}}
    setting_names = [
        "trainer.nnodes",
        "trainer.logger",
        "trainer.n_nodes",
        "critic.model.fsdp.size",
        "critic.model.override_config.attn_implementation",  # it has no fixed keys
        "reward.num_workers",
    ]
    absent = verl.lacking(setting_names, configuration)
    assert absent == ["trainer.n_nodes", "critic.model.fsdp.size", "reward.num_workers"]
    assert set(absent) - verl.VERSIONED == {"trainer.n_nodes", "critic.model.fsdp.size"}


def test_verl_ppo_case_has_a_critic_and_uses_the_model_merger(monkeypatch):
    verl = smoke_module("gpu_verl", monkeypatch)
    grpo = verl.settings(Path("/m"), Path("/d.parquet"), Path("/r.py"), "vllm")
    ppo = grpo | verl.with_critic(Path("/m"))
    assert (grpo["algorithm.adv_estimator"], ppo["algorithm.adv_estimator"]) == ("grpo", "gae")
    saved = "actor_rollout_ref.actor.checkpoint.save_contents"
    assert "hf_model" in grpo[saved]
    assert "hf_model" not in ppo[saved]
    assert ppo["critic.model.path"] == Path("/m")
    compile(verl.CRITIC, "smoke_critic.py", "exec")


def test_verl_case_with_sglang_differs_only_in_engine_and_engine_options(monkeypatch):
    verl = smoke_module("gpu_verl", monkeypatch)
    files = (Path("/m"), Path("/d.parquet"), Path("/r.py"))
    vllm, sglang = verl.settings(*files, "vllm"), verl.settings(*files, "sglang")
    changed = dict(sglang.items() - vllm.items())
    rollout = "actor_rollout_ref.rollout"
    assert changed.pop(f"{rollout}.name") == "sglang"
    assert changed.pop("trainer.use_v1") is False  # without TransferQueue, as here
    assert "trainer.use_v1" not in vllm  # where its absence is a failure
    assert changed
    assert all(key.startswith(f"{rollout}.engine_kwargs.sglang.") for key in changed)
    assert verl.lacking(changed, {}) == []  # verl passes them on and has no names for them


def test_verl_failure_prints_ends_of_worker_logs(tmp_path, monkeypatch, capsys):
    verl = smoke_module("gpu_verl", monkeypatch)
    logs = tmp_path / "ray/session_latest/logs"
    logs.mkdir(parents=True)
    (logs / "worker-1.err").write_text("first\n" * verl.LAST + "Received sigquit from a child\n")
    (logs / "raylet.out").write_text("of no interest\n")

    def failing(command, env):
        raise SystemExit(3)

    monkeypatch.setattr(verl.smoke_gpu, "follow", failing)
    with pytest.raises(SystemExit):
        verl.trained(["verl"], {}, tmp_path)
    output = capsys.readouterr().out
    assert "Received sigquit from a child\n--- end of worker-1.err" in output
    assert output.count("first\n") == verl.LAST - 1
    assert "of no interest" not in output


def test_engines_that_generated_tokens_are_counted(monkeypatch):
    busy = smoke_module("gpu_serve", monkeypatch).busy
    metrics = """\
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="smoke"} 128.0
vllm:generation_tokens_total{engine="1",model_name="smoke"} 96.0
vllm:generation_tokens_total{engine="1",model_name="smoke",pid="7"} 32.0
vllm:generation_tokens_total{engine="2",model_name="smoke"} 0.0
vllm:generation_tokens_created{engine="3",model_name="smoke"} 1.7e+09
vllm:prompt_tokens_total{engine="4",model_name="smoke"} 9.0
"""
    assert busy(metrics) == {"0": 128.0, "1": 128.0}


@pytest.mark.parametrize(
    ("names", "present", "absent"),
    [
        ("cuda_graph_max_bs, piecewise_cuda_graph_max_tokens", "cuda_graph_max_bs", "_decode"),
        ("cuda_graph_max_bs_decode", "cuda_graph_max_bs_decode", "piecewise"),
    ],
)
def test_sglang_requests_match_version(names, present, absent, monkeypatch):
    stack = smoke_module("smoke_stack", monkeypatch)
    module = ModuleType("sglang.srt.server_args")
    exec(f"class ServerArgs:\n    def __init__(self, {names}): ...", module.__dict__)
    for name in ("sglang", "sglang.srt"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.srt.server_args", module)
    options = stack.sglang_options(2)
    assert options["tp_size"] == 2
    assert present in options
    assert not any(absent in name for name in options)


def test_vllm_case_with_an_unpadded_vocabulary_reports_the_known_limitation(monkeypatch):
    structured = smoke_module("gpu_vllm_structured", monkeypatch)
    assert structured.at_once([3, 3]) == []
    assert structured.at_once([1, 1]) == [structured.ONE]
    for counts in ([1, 3], [0, 1], [2, 2], [0, 0]):
        [problem] = structured.at_once(counts)
        assert structured.ONE not in problem
    tiers = smoke_module("smoke_tiers", monkeypatch)
    entries = json.loads((SCRIPTS / "allowed.json").read_text("utf-8"))["cases"]
    known = {entry["name"]: entry["error"] for entry in entries if entry["package"] == "xgrammar"}
    unpadded = {case.name for case in tiers.TIERS["gpu"] if case.arguments[1:] == ("unpadded",)}
    assert known == dict.fromkeys(unpadded, structured.ONE)


def test_model_of_the_user_is_trained_with_smaller_steps_and_compared_by_mean(monkeypatch):
    grpo = smoke_module("gpu_grpo", monkeypatch)
    monkeypatch.delenv("SMOKE_MODEL", raising=False)
    assert grpo.kind() == "tiny"
    assert grpo.distance([[0.0, 1.0]], [[0.0, 3.0]]) == 2.0
    monkeypatch.setenv("SMOKE_MODEL", "/models/Qwen2.5-0.5B")
    assert grpo.kind() == "given"
    assert grpo.distance([[0.0, 1.0]], [[0.0, 3.0]]) == 1.0
    configurations: list[dict[str, object]] = []

    def config(**settings: object) -> None:
        configurations.append(settings)

    monkeypatch.setattr(grpo.smoke_stack, "accepted", lambda _, arguments: arguments)
    grpo.settings(config, {})
    assert configurations[0]["learning_rate"] == grpo.RATE["given"]


def test_notes_of_a_case_include_server_logs(monkeypatch, tmp_path):
    run = smoke_module("run", monkeypatch)
    (tmp_path / "server-8000.log").write_text("INFO ready\nWARNING: kernels are not compiled\n")
    combined_log = run.with_servers("Skipping import of cpp extensions", tmp_path)
    assert run.notes(combined_log) == [
        "Skipping import of cpp extensions",
        "WARNING: kernels are not compiled",
    ]


def test_script_in_two_packages_needs_the_right_size_in_only_one_record(tmp_path, monkeypatch):
    static_files = smoke_module("static_files", monkeypatch)
    packages = tmp_path / "lib/python3/site-packages"
    packages.mkdir(parents=True)
    script = tmp_path / "bin/helper"
    script.parent.mkdir()
    for name, size in (("helper", 3), ("mine", 5)):
        folder = packages / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        rows = (f"../../../bin/helper,,{size}", *(f"{folder.name}/{n},," for n in META))
        (folder / "RECORD").write_text("\n".join(rows))
    found = []
    items = [(d.metadata["Name"], d) for d in distributions(path=[str(packages)])]
    monkeypatch.setattr(static_files, "installed", lambda: items)
    monkeypatch.setattr(static_files, "site_packages", lambda: packages)
    monkeypatch.setattr(static_files, "finish", lambda problems, _: found.append(problems))
    for content in ("12345", "1234"):
        script.write_text(content)
        static_files.main()
    assert found[0] == []
    assert len(found[1]) == 1
    assert "../../../bin/helper: 4 bytes, expected" in found[1][0]
