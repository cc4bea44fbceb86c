"""Tests the choice of the locked target nearest to a project."""

from __future__ import annotations

from imgbuild.matrix.constraints import Constraint
from imgbuild.project.model import Declarations, DeclaredPython, FilePlace, LocalPackage
from imgbuild.resolve import choose
from imgbuild.resolve.choose import LockedFacts, TargetCandidate, TargetChange
from imgbuild.resolve.demands import PackageDemand
from imgbuild.values import Arch
from tests.support.rows import each_row

PLACE = FilePlace("requirements.txt", 1)
NONE = Declarations()


def facts(target: str, **more: object) -> LockedFacts:
    values: dict[str, object] = {
        "target": target,
        "arch": Arch.X86_64,
        "versions": {"torch": "2.6.0", "vllm": "0.8.5.post1", "transformers": "4.52.4"},
        "python": "3.11.2",
        "cuda": "12.4",
        "as_of": "2025-06-20",
        "tested": "gpu",
    }
    return LockedFacts(**(values | more))  # type: ignore[arg-type]


def demand(text: str) -> PackageDemand:
    name, _, spec = text.partition(" ")
    return PackageDemand(package=name, spec=spec, places=(PLACE,))


def ranked(
    targets: list[LockedFacts],
    *texts: str,
    declared: Declarations = NONE,
    cuda: tuple[str, ...] = (),
) -> list[TargetCandidate]:
    wanted = [demand(text) for text in texts]
    return choose.rank_candidates(targets, declared, lambda _: wanted, cuda=cuda)


def names(candidates: list[TargetCandidate]) -> list[str]:
    return [item.target for item in candidates]


def python(spec: str) -> Declarations:
    return Declarations(python=(DeclaredPython(spec=spec, place=PLACE),))


def test_satisfied_and_added_and_changed_requirements_are_distinguished() -> None:
    (item,) = ranked([facts("a")], "torch ==2.6.0", "wandb >=0.19", "transformers ==4.52.3")
    assert (item.met, item.added, item.form) == (("torch",), ("wandb",), "like")
    (change,) = item.changed
    assert str(change) == "transformers 4.52.4 -> ==4.52.3 (requirements.txt:1)"


def test_tested_target_that_meets_all_requirements_is_extended() -> None:
    assert ranked([facts("a")], "torch >=2.6", "wandb")[0].form == "extends"
    assert ranked([facts("a", tested="")], "torch >=2.6")[0].form == "like"
    assert ranked([facts("a")], "torch", declared=python(">=3.12"))[0].form == "like"


def test_target_without_changes_precedes_a_target_with_more_packages() -> None:
    tested = facts("b")
    nearer = facts("a", versions={**tested.versions, "deepspeed": "0.18", "websockets": "17.0"})
    found = ranked([nearer, tested], "deepspeed", "websockets <17")
    assert [(item.target, item.form) for item in found] == [("b", "extends"), ("a", "like")]
    engine = facts("c", versions={"torch": "2.6.0"})
    assert names(ranked([nearer, engine], "vllm", "websockets <17"))[0] == "a"


def test_checkout_of_a_package_is_different_from_its_release() -> None:
    checkout = PackageDemand(
        package="transformers", source="git+https://example.org/t.git", places=(PLACE,)
    )
    item = choose.create_candidate(facts("a"), [checkout], NONE)
    assert item.changed[0].wanted == "git+https://example.org/t.git"


def test_target_that_contains_the_project_is_not_extended() -> None:
    own = LocalPackage(name="Team_RL", folder=".", place=PLACE, version="0.3", backend=True)
    declared = Declarations(packages=(own,))
    released = facts("b", versions={"torch": "2.6.0", "team-rl": "0.9.1"})
    found = ranked([facts("a"), released], "torch", "wandb", declared=declared)
    assert [(item.target, item.form) for item in found] == [("a", "extends"), ("b", "like")]
    (change,) = found[1].changed
    assert str(change) == "team-rl 0.9.1 -> ==0.3 (the project's own package)"


def test_url_credentials_are_not_shown() -> None:
    address = "https://user:S3CRET@files.example/transformers-4.52.3-py3-none-any.whl?sig=S3CRET"
    wheel = PackageDemand(package="transformers", source=address, places=(PLACE,))
    item = choose.create_candidate(facts("a"), [wheel], NONE)
    assert "S3CRET" not in str(item.changed[0])
    assert "//files.example/transformers" in str(item.changed[0])


def test_constraint_can_change_a_version_but_adds_no_package() -> None:
    bounds = [
        PackageDemand(package="transformers", spec="<4.50", installed=False, places=(PLACE,)),
        PackageDemand(package="absent", spec="<2", installed=False, places=(PLACE,)),
    ]
    item = choose.create_candidate(facts("a"), bounds, NONE)
    assert (item.met, item.added, len(item.changed)) == ((), (), 1)


def test_target_with_a_different_engine_ranks_below_many_other_changes() -> None:
    others = {f"p{number}": "1.0" for number in range(30)}
    wrong_torch = facts("torch", versions={"torch": "2.5.1", "vllm": "0.8.5", **others})
    wrong_others = facts(
        "others", versions={"torch": "2.6.0", "vllm": "0.8.5"} | dict.fromkeys(others, "9.9")
    )
    texts = ["torch >=2.6", "vllm ==0.8.5", *(f"{name} ==1.0" for name in others)]
    assert names(ranked([wrong_torch, wrong_others], *texts)) == ["others", "torch"]


def test_target_without_the_engine_ranks_below_another_engine_version() -> None:
    without = facts("without", versions={"torch": "2.6.0"})
    other = facts("other", versions={"torch": "2.6.0", "vllm": "0.9.2"})
    assert names(ranked([without, other], "torch", "vllm ==0.8.5")) == ["other", "without"]


def test_target_with_the_nearest_engine_version_comes_first() -> None:
    targets = [
        facts(version, versions={"torch": "2.6.0", "vllm": version})
        for version in ("0.26.0", "0.7.2", "0.10.2")
    ]
    assert names(ranked(targets, "vllm <=0.6.3")) == ["0.7.2", "0.10.2", "0.26.0"]


def test_pinned_torch_selects_targets_of_the_same_minor_release() -> None:
    targets = [
        facts("same", versions={"torch": "2.6.1"}),
        facts("other", versions={"torch": "2.7.0", "vllm": "0.8.5"}),
    ]
    assert names(ranked(targets, "torch ==2.6.0", "vllm ==0.8.5")) == ["same"]


def test_declared_cuda_release_is_preferred_if_no_target_has_the_torch() -> None:
    targets = [
        facts("cu124", versions={"torch": "2.5.1"}, cuda="12.4"),
        facts("cu130", versions={"torch": "2.11.0"}, cuda="13.0"),
        facts("cu126", versions={"torch": "2.7.0"}, cuda="12.6"),
    ]
    assert names(ranked(targets, "torch ==2.4.0", cuda=("12.6",))) == ["cu126"]
    assert names(ranked(targets, "torch ==2.4.0")) == ["cu124"]


@each_row(
    ("spec", "first"),
    [(">=3.12", "new"), ("==3.11.*", "old"), (">=3.13.14,<3.14", "new"), ("==3.11.9", "old")],
)
def test_target_with_the_python_of_the_project_comes_first(spec: str, first: str) -> None:
    old = facts("old", python="3.11.2")
    new = facts("new", python="3.13.5", versions={"torch": "2.14.0"})
    assert names(ranked([old, new], "vllm", declared=python(spec)))[0] == first


def test_equally_ranked_targets_are_in_the_documented_order() -> None:
    def order(**more: object) -> list[str]:
        return names(ranked([facts("a"), facts("b", **more)], "torch", cuda=("12.4",)))

    assert order(cuda="13.0") == ["a", "b"]
    assert order(retired=True, recommended="vllm") == ["a", "b"]
    assert order(recommended="verl") == ["b", "a"]
    assert order(tested="multi-gpu") == ["b", "a"]
    assert order(as_of="2026-01-01") == ["b", "a"]
    assert order(unfit=("too new",), tested="multi-gpu") == ["a", "b"]


def test_target_recommended_for_a_package_of_the_project_is_preferred() -> None:
    versions = {"torch": "2.6.0", "verl": "0.9.1", "vllm": "0.8.5"}
    verl = facts("verl", recommended="verl", versions=versions)
    vllm = facts("vllm", recommended="vllm", versions=versions)
    assert names(ranked([vllm, verl], "verl", "vllm")) == ["verl", "vllm"]
    assert names(ranked([verl, vllm], "torch")) == ["vllm", "verl"]


def test_conflicts_of_added_packages_are_looked_up_for_the_nearest_targets() -> None:
    asked = []

    def conflicts(target: LockedFacts, _: object) -> list[TargetChange]:
        asked.append(target.target)
        if target.target != "a":
            return []
        return [TargetChange(package="torch", has="2.6.0", wanted=">=2.7", by="trl 0.30")]

    targets = [facts("a", tested="multi-gpu"), facts("b"), facts("c", retired=True)]
    wanted = [demand("trl ==0.30")]
    order = choose.rank_candidates(targets, NONE, lambda _: wanted, conflicts, first=2)
    assert (asked, names(order)) == (["a", "b"], ["b", "a", "c"])
    assert order[1].form == "like"
    asked.clear()
    order = choose.rank_candidates(targets, NONE, lambda _: wanted, conflicts, first=1)
    assert (asked, names(order)) == (["a", "b"], ["b", "a", "c"])  # b could be nearer than a


def test_learned_constraints_apply_to_added_packages() -> None:
    learned = (
        Constraint(package="fast", versions="==2.0", needs="torch!=2.6.0", check="names"),
        Constraint(package="kernels", versions=">=0.3", needs="torch!=2.11.0", check="cuda",
                   name="libcudart.so.13"),
    )  # fmt: skip
    old, new = facts("a", learned=learned), facts("b", learned=learned, cuda="13.0")
    assert [*map(str, old.learned_requirements("fast", "2.0"))] == ["torch!=2.6.0"]
    assert old.learned_requirements("fast", "1.0") == []
    assert [*map(str, old.learned_requirements("kernels", "0.4"))] == ["torch!=2.6.0"]
    assert new.learned_requirements("kernels", "0.4") == []


def test_old_pin_of_an_added_package_prefers_targets_of_its_time() -> None:
    versions = {"torch": "2.6.0"}
    old = facts("old", as_of="2026-01-01", versions=versions)
    dated = facts("dated", as_of="2025-12-31", versions={**versions, "peft": "0.15.0"})
    new = facts("new", as_of="2026-11-25", versions=versions)
    later = facts("later", as_of="2026-03-01", versions={**versions, "peft": "0.21.0"})
    targets = [old, dated, new, later]

    def lacking(*texts: str) -> list[str]:
        return [name for name in names(ranked(targets, *texts)) if name in ("old", "new")]

    assert lacking("torch", "peft ==0.13.0") == ["old", "new"]
    assert lacking("torch", "peft ==0.21.0") == ["new", "old"]
    assert lacking("torch", "peft >=0.13") == ["new", "old"]
