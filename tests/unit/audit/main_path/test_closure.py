"""Tests which modules and functions of small package sets are on the main path."""

from __future__ import annotations

from imgbuild.audit.main_path import policy as policies
from imgbuild.audit.main_path.closure import Level, main_path
from imgbuild.audit.main_path.policy import MainPathEntry, MainPathPolicy
from tests.support.source_modules import SourceModules, rules


def walk(files, *entries):
    return main_path(SourceModules({"lib 2.0": files}), rules(*entries))


def level(path, module, runner=""):
    reached = path.reached(module, runner)
    return reached.level if reached else None


def test_import_of_a_module_runs_its_parents_and_their_imports():
    files = {
        "lib/__init__.py": "from . import base\n",
        "lib/base.py": "",
        "lib/a/__init__.py": "",
        "lib/a/b.py": "import lib.c\n",
        "lib/c.py": "def unused(): ...\n",
        "lib/d.py": "",
    }
    path = walk(files, "lib.a.b")
    assert path.modules() == ["lib", "lib.a", "lib.a.b", "lib.base", "lib.c"]
    assert level(path, "lib.c") is Level.CERTAIN
    assert level(path, "lib.c", "unused") is None


def test_function_called_on_the_main_path_is_on_the_main_path():
    files = {
        "lib/__init__.py": """
            from lib.work import step
            def run():
                step()
                if DEBUG:
                    trace()
            def trace():
                from lib import late
        """,
        "lib/work.py": "def step():\n    def inner():\n        helper()\ndef helper(): ...\n",
        "lib/late.py": "",
    }
    path = walk(files, "lib.run")
    assert level(path, "lib.work", "step") is Level.CERTAIN
    assert level(path, "lib.work", "helper") is Level.CERTAIN
    assert level(path, "lib", "trace") is Level.POSSIBLE
    assert level(path, "lib.late") is Level.POSSIBLE


def test_constructing_a_class_reaches_all_methods_and_base_classes():
    files = {
        "lib/__init__.py": "from lib.core import Engine\n",
        "lib/core.py": """
            from lib.base import Base
            class Engine(Base):
                import lib.inside
                def __init__(self):
                    start()
                def close(self):
                    stop()
            def start(): ...
            def stop(): ...
        """,
        "lib/base.py": "class Base:\n    def common(self):\n        from lib import used\n",
        "lib/inside.py": "",
        "lib/used.py": "",
    }
    path = walk(files, "lib.Engine")
    assert level(path, "lib.core", "Engine.__init__") is Level.CERTAIN
    assert level(path, "lib.core", "start") is Level.CERTAIN
    assert level(path, "lib.core", "stop") is Level.LIKELY
    assert level(path, "lib.base", "Base.common") is Level.LIKELY
    assert level(path, "lib.inside") is Level.CERTAIN
    assert level(path, "lib.used") is Level.LIKELY


def test_import_of_a_class_does_not_reach_its_methods():
    files = {
        "lib/__init__.py": "from lib.core import Engine\nclass Other: ...\n",
        "lib/core.py": "class Engine:\n    def close(self): ...\n",
    }
    assert level(walk(files, "lib"), "lib.core", "Engine.close") is None


def test_import_in_a_try_block_is_doubtful_unless_another_import_is_certain():
    files = {
        "lib/__init__.py": "try:\n    import lib.fast\nexcept ImportError:\n    pass\n",
        "lib/fast.py": "import lib.kernel\n",
        "lib/kernel.py": "",
        "lib/sure.py": "import lib.kernel\n",
    }
    path = walk(files, "lib")
    assert level(path, "lib.kernel") is Level.DOUBTFUL
    path = walk(files, "lib", "lib.sure")
    assert level(path, "lib.fast") is Level.DOUBTFUL
    assert level(path, "lib.kernel") is Level.CERTAIN
    assert path.reached("lib.kernel", "").entry == "lib.sure"


def test_use_of_a_lazy_name_loads_its_module():
    files = {
        "lib/__init__.py": """
            def __getattr__(name):
                if name == "LLM":
                    from lib.llm import LLM
                    return LLM
                raise AttributeError(name)
        """,
        "lib/llm.py": "import lib.deep\nclass LLM: ...\n",
        "lib/deep.py": "",
        "lib/user.py": "from lib import LLM\n",
    }
    assert level(walk(files, "lib"), "lib.deep") is None
    assert level(walk(files, "lib.user"), "lib.deep") is Level.POSSIBLE


def test_entry_points_for_other_versions_are_skipped():
    files = {"lib/__init__.py": "", "lib/core.py": ""}
    package_set = SourceModules({"lib 2.0": files})
    named = (
        MainPathEntry(name="lib.core", why="too new", versions=">=3"),
        MainPathEntry(name="lib.gone.Engine", why="of another version"),
        MainPathEntry(name="other.Engine", why="of a package that is not there"),
    )
    path = main_path(package_set, MainPathPolicy(walk=frozenset(("lib",)), entries=named))
    assert "lib.core" not in path.modules()
    assert "other" not in path.modules()


def test_names_in_the_also_field_are_reached_with_their_entry_point():
    files = {"lib/__init__.py": "", "lib/plugin.py": "class Worker:\n    def run(self): ...\n"}
    named = (MainPathEntry(name="lib", why="the package", also=("lib.plugin.Worker",)),)
    path = main_path(
        SourceModules({"lib 2.0": files}), MainPathPolicy(walk=frozenset(("lib",)), entries=named)
    )
    assert level(path, "lib.plugin", "Worker.run") is Level.LIKELY


def test_verl_rollout_is_followed_if_its_engine_is_installed():
    rollouts = "verl/workers/rollout"
    verl = {
        "verl/__init__.py": "",
        f"{rollouts}/__init__.py": "",
        f"{rollouts}/vllm_rollout/__init__.py": "",
        f"{rollouts}/vllm_rollout/vllm_async_server.py": "import vllm\n",
        f"{rollouts}/sglang_rollout/__init__.py": "",
        f"{rollouts}/sglang_rollout/sglang_rollout.py": "class ServerAdapter: ...\n",
        f"{rollouts}/sglang_rollout/async_sglang_server.py": """
            import sglang
            class SGLangHttpServer:
                async def launch_server(self):
                    sglang.start()
        """,
    }
    servers = {
        "vllm": "verl.workers.rollout.vllm_rollout.vllm_async_server",
        "sglang": "verl.workers.rollout.sglang_rollout.async_sglang_server",
    }
    for engine, other in (("vllm", "sglang"), ("sglang", "vllm")):
        package_set = SourceModules({"verl 1": verl, f"{engine} 1": {f"{engine}/__init__.py": ""}})
        path = main_path(package_set)
        assert level(path, servers[engine]) is Level.CERTAIN
        assert level(path, servers[other]) is None
        if engine == "sglang":
            launch = "SGLangHttpServer.launch_server"
            assert level(path, servers[engine], launch) is Level.LIKELY


def test_server_of_trl_is_an_entry_point_only_with_vllm():
    server = "trl.scripts.vllm_serve"
    trl = {
        "trl/__init__.py": "",
        "trl/scripts/__init__.py": "",
        "trl/scripts/vllm_serve.py": """
            import vllm
            class WeightSyncWorkerExtension:
                def init_communicator(self): ...
            def llm_worker(): ...
            def main(): ...
        """,
    }
    alone = main_path(SourceModules({"trl 1.9.2": trl}))
    assert server not in alone.modules()
    beside = main_path(SourceModules({"trl 1.9.2": trl, "vllm 1": {"vllm/__init__.py": ""}}))
    assert level(beside, server, "llm_worker") is Level.CERTAIN
    method = "WeightSyncWorkerExtension.init_communicator"
    assert level(beside, server, method) is Level.LIKELY


def test_bundled_policy_of_the_main_path_is_valid():
    loaded = policies.load_policy()
    assert {"trl", "vllm", "verl", "transformers"} <= loaded.walk
    assert len({entry.name for entry in loaded.entries}) == len(loaded.entries)
    assert all(entry.why for entry in loaded.entries)


def test_name_defined_in_two_branches_has_the_definition_of_the_branch_that_runs():
    files = {
        "lib/__init__.py": """
            import other
            from packaging.version import Version
            if Version(other.__version__) < Version("2"):
                from lib.old import Engine
            else:
                from lib.new import Engine
            def run():
                Engine()
        """,
        "lib/old.py": "class Engine:\n    def step(self): ...\n",
        "lib/new.py": "class Engine:\n    def step(self): ...\n",
    }
    other = {"other/__init__.py": "__version__ = 'x'\n"}
    old = main_path(SourceModules({"lib 2.0": files, "other 1.5": other}), rules("lib.run"))
    new = main_path(SourceModules({"lib 2.0": files, "other 2.5": other}), rules("lib.run"))
    assert level(old, "lib.old", "Engine.step") is Level.LIKELY
    assert level(old, "lib.new", "Engine.step") is None
    assert level(new, "lib.new", "Engine.step") is Level.LIKELY
    assert level(new, "lib.old") is None


def test_private_method_is_reached_from_its_callers_or_a_base_class():
    files = {
        "lib/__init__.py": """
            class Base:
                def train(self):
                    self._step()
                def _step(self): ...
            class Mine(Base):
                def _step(self): ...
                def _special(self): ...
                def _helper(self): ...
                def save(self):
                    if self.special:
                        self._special()
        """,
    }
    path = walk(files, "lib.Mine")
    assert level(path, "lib", "Mine._step") is Level.LIKELY
    assert level(path, "lib", "Mine._special") is Level.POSSIBLE
    assert level(path, "lib", "Mine._helper") is None


def test_uncalled_method_of_an_optional_object_has_the_lowest_reachability_level():
    files = {
        "lib/__init__.py": """
            from other import Unseen
            class Base:
                hook: object
                def step(self): ...
            class Context:
                def __init__(self):
                    self.reset()
                def __exit__(self, *error): ...
                def reset(self): ...
                def rotary(self):
                    turn()
            class Layer(Base):
                def step(self): ...
                def hook(self): ...
                def spare(self): ...
            class Bridge(Unseen):
                def cross(self): ...
            def turn(): ...
            def run(config):
                if config.hybrid:
                    Context()
                    Layer()
                    Bridge()
        """,
        "lib/user.py": "import lib\ndef use():\n    made = lib.Context()\n    made.rotary()\n",
    }
    path = walk(files, "lib.run")
    possible = ("Context.__init__", "Context.__exit__", "Context.reset", "Layer.step", "Layer.hook")
    assert {level(path, "lib", name) for name in possible} == {Level.POSSIBLE}
    assert level(path, "lib", "Bridge.cross") is Level.POSSIBLE
    remote = ("Context.rotary", "turn", "Layer.spare")
    assert {level(path, "lib", name) for name in remote} == {Level.REMOTE}

    path = walk(files, "lib.run", "lib.user.use")
    assert level(path, "lib", "turn") is Level.CERTAIN
