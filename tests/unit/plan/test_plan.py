"""Tests the order, grouping and inputs of layers in the plan of a lock."""

from __future__ import annotations

import datetime

import msgspec
import pytest

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.lock.lock_file import LayerRules
from imgbuild.matrix.model import DroppedFiles
from imgbuild.plan.cut import cut_wheels
from imgbuild.plan.plan import (
    AddedDebsRecipe,
    DebianRecipe,
    FilesRecipe,
    VenvRecipe,
    WheelsRecipe,
    base_plan,
    create_plan,
    image_environment,
    layer_id,
    omitted_paths,
)  # fmt: skip
from imgbuild.values import Arch
from tests.support import samples
from tests.support.rows import each_row

RULES = LayerRules(
    own_from=1000, named=("trl", "vllm"), groups=2, order=("nvidia-*", "torch"), limit=40
)


def names(*wheels, rules=RULES, taken=3):
    return [name for name, _ in cut_wheels(wheels, rules, taken=taken)]


def test_layers_of_large_wheels_have_the_same_order_in_all_targets():
    wheels = [
        samples.wheel("trl"),
        samples.wheel("zlib-ng", size=2000),
        samples.wheel("torch", size=2000),
        samples.wheel("nvidia-nccl-cu12", size=2000),
        samples.wheel("idna"),
        samples.wheel("attrs"),
    ]
    cut = names(*wheels)
    assert cut[:3] == ["nvidia-nccl-cu12", "torch", "zlib-ng"]
    assert cut[-1] == "trl"
    assert all(name.startswith("group-") for name in cut[3:-1])
    assert cut == names(*reversed(wheels))


def test_layer_group_of_a_small_wheel_depends_only_on_its_name():
    cut = cut_wheels([samples.wheel(f"small-{n}") for n in range(40)], RULES, taken=3)
    moved = cut_wheels([samples.wheel(f"small-{n}", "2.0") for n in range(40)], RULES, taken=3)
    packages = [sorted(wheel.package for wheel in group) for _, group in cut]
    assert packages == [sorted(wheel.package for wheel in group) for _, group in moved]
    assert sum(len(group) for group in packages) == 40


def test_changed_wheel_changes_only_its_layer_group():
    wheels = [samples.wheel(f"small-{n}") for n in range(40)]
    before = cut_wheels(wheels, RULES, taken=3)
    after = cut_wheels([samples.wheel("small-0", "2.0"), *wheels[1:]], RULES, taken=3)
    changed = [name for (name, old), (_, new) in zip(before, after, strict=True) if old != new]
    assert len(changed) == 1


def test_smallest_large_wheels_join_layer_groups_at_the_layer_limit():
    rules = msgspec.structs.replace(RULES, limit=10)
    wheels = [samples.wheel(f"big-{n}", size=1000 + n) for n in range(30)]
    cut = cut_wheels(wheels, rules, taken=3)
    assert len(cut) + 3 <= 10
    assert [name for name, _ in cut[:5]] == [f"big-{n}" for n in range(25, 30)]
    assert sum(len(group) for _, group in cut) == 30


def test_package_with_an_assigned_layer_keeps_the_layer_at_the_limit():
    rules = msgspec.structs.replace(RULES, limit=8, groups=1)
    wheels = [samples.wheel(f"big-{n}", size=9000) for n in range(9)]
    assert "vllm" in names(*wheels, samples.wheel("vllm", size=1000), rules=rules)


def test_layer_limit_that_is_too_low_is_an_error():
    rules = msgspec.structs.replace(RULES, limit=4)
    with pytest.raises(InputError, match=r"layers\.limit is 4"):
        cut_wheels([samples.wheel("trl")], rules, taken=3)


def test_every_wheel_is_in_exactly_one_layer():
    lock = samples.lock(*(samples.wheel(f"w-{n}", size=n * 100) for n in range(30)))
    layers = create_plan(lock, Arch.X86_64).layers
    packages = [
        wheel.package
        for layer in layers
        if isinstance(layer.recipe, WheelsRecipe)
        for wheel in layer.recipe.wheels
    ]
    assert sorted(packages) == [wheel.package for wheel in lock.arch[Arch.X86_64].wheels]


def test_layer_ids_do_not_depend_on_target_or_date():
    first = samples.lock()
    other = samples.lock(of=samples.matrix(as_of=datetime.date(2026, 1, 1), summary="another"))
    other = msgspec.structs.replace(other, target="other")
    assert [layer.id for layer in create_plan(first, Arch.X86_64).layers] == [
        layer.id for layer in create_plan(other, Arch.X86_64).layers
    ]


def test_id_of_a_wheel_layer_depends_only_on_hashes_prefix_and_python():
    recipe = WheelsRecipe(prefix="/opt/venv", python="3.11", wheels=(samples.wheel("trl"),))
    renamed = msgspec.structs.replace(samples.wheel("trl"), file="x.whl", index="mirror")
    assert layer_id(recipe) == layer_id(msgspec.structs.replace(recipe, wheels=(renamed,)))
    for changes in (
        {"prefix": "/venv"},
        {"python": "3.12"},
        {"wheels": (samples.wheel("trl", "2.0"),)},
        {"omit": {"trl": ("a.py",)}},
    ):
        assert layer_id(msgspec.structs.replace(recipe, **changes)) != layer_id(recipe)


def test_layer_ids_match_golden_values():
    """If a value changes, the number of the layer format in plan.py must be raised."""
    recipe = WheelsRecipe(prefix="/opt/venv", python="3.11", wheels=(samples.wheel("trl"),))
    assert layer_id(recipe) == (
        "sha256:ee1237f126d1d388f9a2d37f8902f3cb9551784781bc4b4383d9336493e718de"
    )
    base = DebianRecipe(
        arch=Arch.X86_64, suite="bookworm", debs=(samples.deb("bash"),), user=samples.USER
    )
    assert layer_id(base) == (
        "sha256:0969fe117d523ed2f80896f0b148b1b46be6d7c93a61cf283f94c736b9a0c10c"
    )


def test_dropped_file_is_only_in_the_recipe_of_its_package():
    drop = DroppedFiles(package="pip", paths=("b.py", "a.py"), reason=samples.REASON)
    lock = samples.lock(of=samples.matrix(drop=(drop,)))
    omits = [
        layer.recipe.omit
        for layer in create_plan(lock, Arch.X86_64).layers
        if isinstance(layer.recipe, WheelsRecipe) and layer.recipe.omit
    ]
    assert omits == [{"pip": ("a.py", "b.py")}]


@each_row(
    ("beside", "versions", "dropped"),
    [
        ("torch", "", True),
        ("torch", "<26", True),
        ("torch", "<25", False),  # samples lock pip 25.1
        ("triton", "", False),  # not installed: no other package ships the path
    ],
)
def test_file_is_dropped_only_if_another_package_contains_the_file(beside, versions, dropped):
    drop = DroppedFiles(
        package="pip", paths=("a.py",), reason=samples.REASON, beside=beside, versions=versions
    )
    wheels = (samples.wheel("pip", "25.1"), samples.wheel("torch", "2.6.0"))
    assert omitted_paths((drop,), wheels) == ({"pip": ("a.py",)} if dropped else {})


def test_image_configuration_depends_only_on_the_lock():
    config = create_plan(samples.lock(), Arch.X86_64).config
    assert config.created == "2025-06-20T00:00:00Z"
    assert config.user == "1000:1000"
    assert config.labels["dev.imgbuild.version.torch"] == "2.6.0"
    assert config.labels["org.opencontainers.image.title"] == "small"


def test_plan_of_the_base_has_no_other_layers():
    base = base_plan(create_plan(samples.lock(), Arch.X86_64))
    assert [layer.name for layer in base.layers] == ["debian-12"]
    assert base.config.env == ("LANG=C.UTF-8", "PATH=/usr/bin:/bin")
    assert base.config.labels == {}


def test_hardened_base_has_separate_layer_ids() -> None:
    plain = samples.matrix()
    base = msgspec.structs.replace(plain.bases["debian-12"], hardened=True)
    hard = msgspec.structs.replace(plain, bases={"debian-12": base})
    plain_layers, other = (
        create_plan(samples.lock(of=each), Arch.X86_64).layers for each in (plain, hard)
    )
    moved = [new.name for old, new in zip(plain_layers, other, strict=True) if old.id != new.id]
    assert moved == ["debian-12", "files"]
    (files,) = (layer.recipe for layer in other if isinstance(layer.recipe, FilesRecipe))
    assert files.private
    assert b"hardened" not in codec.encode(samples.lock(of=plain))


def test_tools_layer_is_between_wheels_and_files() -> None:
    plain = create_plan(samples.lock(), Arch.X86_64).layers
    layers = create_plan(samples.lock_with_tools(), Arch.X86_64).layers
    assert [layer.name for layer in layers] == [
        *(layer.name for layer in plain[:-1]), "tools", "files",
    ]  # fmt: skip
    moved = [new.name for old, new in zip(plain[:-1], layers, strict=False) if old.id != new.id]
    assert moved == ["venv"], "base and wheels must be shared with images without tools"
    tools = layers[-2].recipe
    assert isinstance(tools, AddedDebsRecipe)
    assert [deb.package for deb in tools.debs] == ["htop", "libnl"]
    assert tools.base == layers[0].recipe == plain[0].recipe


def test_tools_count_towards_layer_limit() -> None:
    rules = LayerRules(own_from=1, named=(), groups=1, order=(), limit=7)
    wheels = [samples.wheel(f"w-{number}", size=1000 + number) for number in range(9)]
    for lock in (samples.lock(*wheels), samples.lock_with_tools(*wheels)):
        layers = create_plan(msgspec.structs.replace(lock, layers=rules), Arch.X86_64).layers
        assert len(layers) == rules.limit


def test_base_for_a_dockerfile_includes_tools() -> None:
    base = base_plan(create_plan(samples.lock_with_tools(), Arch.X86_64))
    assert [layer.name for layer in base.layers] == ["debian-12", "tools"]
    assert base.config.env == ("LANG=C.UTF-8", "PATH=/usr/bin:/bin")


def test_lock_and_layer_recipes_omit_unused_settings() -> None:
    lock = samples.lock()
    assert image_environment(lock, Arch.X86_64) == lock.settings.env
    texts = [
        codec.encode(lock),
        *(codec.encode(x.recipe) for x in create_plan(lock, Arch.X86_64).layers),
    ]
    for word in (b"tools", b"user_packages", b"user_site", b"readme"):
        assert not [text for text in texts if word in text]


def test_folder_for_user_packages_depends_on_the_image_packages() -> None:
    both = samples.matrix_with_tools("htop", arch=tuple(Arch))
    lock = samples.lock_with_tools(samples.wheel("trl"), of=both)
    values = image_environment(lock, Arch.X86_64)
    base = values["PYTHONUSERBASE"]
    assert base == image_environment(lock, Arch.ARM64)["PYTHONUSERBASE"]
    assert base.startswith("/workspace/.imgbuild-packages/small-")
    assert values["PATH"] == f"/opt/imgbuild/bin:{lock.settings.env['PATH']}:{base}/bin"
    assert f"PYTHONUSERBASE={base}" in create_plan(lock, Arch.X86_64).config.env
    newer = samples.lock_with_tools(samples.wheel("trl", "2.0"), of=both)
    assert image_environment(newer, Arch.X86_64)["PYTHONUSERBASE"] != base
    renamed = msgspec.structs.replace(lock, target="other")
    assert "/other-" in image_environment(renamed, Arch.X86_64)["PYTHONUSERBASE"]


def test_user_packages_setting_changes_environment_and_files() -> None:
    layers = create_plan(samples.lock_with_tools(samples.wheel("trl")), Arch.X86_64).layers
    (venv,) = (layer.recipe for layer in layers if isinstance(layer.recipe, VenvRecipe))
    (files,) = (layer.recipe for layer in layers if isinstance(layer.recipe, FilesRecipe))
    assert venv.user_site is True
    assert files.user_packages
    assert files.user_packages.versions == {"pip": "1.0", "torch": "2.6.0", "trl": "1.0"}
