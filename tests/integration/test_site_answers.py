"""Tests the results of the forms of the site in Chromium of Debian.

The results of the scripts are compared with the code of imgbuild and with the library packaging.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from imgbuild.audit.binaries import gpu_models
from imgbuild.doctor.host import Host, HostGpu
from imgbuild.doctor.targets import diagnose_host, judge_target, shared_remarks, target_needs
from imgbuild.lock import lock_file
from imgbuild.values import Arch
from tests.support.browser import Browser
from tests.support.site_window import ROOT, browser_data, open_form, site, window

__all__ = ["site", "window"]  # fixtures
SMI = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.161.08             Driver Version: 535.161.08     CUDA Version: 12.2     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off   |                    0 |
|   1  NVIDIA A100-SXM4-80GB          On  | 00000000:0F:00.0 Off   |                    0 |
+-----------------------------------------------------------------------------------------+
"""


# -- the forms


@pytest.mark.parametrize(
    ("text", "arch", "driver", "capability"),
    [
        (SMI, "x86_64", "535.161.08", "8.0"),
        ("A100, driver 535", "x86_64", "535", "8.0"),
        ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\nDriver Version: 580.82.07",
         "x86_64", "580.82.07", "9.0"),
        ("name, driver_version\nNVIDIA L40S, 550.90.07", "x86_64", "550.90.07", "8.9"),
        (json.dumps({"host": {"arch": "arm64", "driver": "580.95.05",
                              "gpus": [{"name": "NVIDIA GH200 480GB", "capability": "9.0"}]}}),
         "arm64", "580.95.05", "9.0"),
        ("GPU 0: NVIDIA GB10 (UUID: GPU-1)\nDriver Version: 580.95", "arm64", "580.95", "12.1"),
        ("DGX Spark 580.95.05", "arm64", "580.95.05", "12.1"),
        ("H100, driver 580.95.05, aarch64", "arm64", "580.95.05", "9.0"),
        ("535.161, CUDA 12.2, A100-PCIE-40GB", "x86_64", "535.161", "8.0"),
        ("CUDA Version: 12.2, NVIDIA A100-PCIE-40GB, 535.161", "x86_64", "535.161", "8.0"),
        ("cuda 12.4 A100-PCIE-40GB driver 550.54.14", "x86_64", "550.54.14", "8.0"),
        ("node-1, aarch64, NVIDIA GH200 480GB, 580.95.05", "arm64", "580.95.05", "9.0"),
    ],
)  # fmt: skip
def test_machine_form_lists_images_compatible_with_the_machine(
    site: Path, window: Browser, text: str, arch: str, driver: str, capability: str
) -> None:
    """The form shows the parsed text and the image that `imgbuild doctor` recommends."""
    open_form(window, site, "machine.html", machine=text)
    read = window.texts(".machine-read")[0]
    assert "unknown" not in read
    for words in (f"(compute capability {capability})", f"driver {driver}", arch):
        assert words in read
    gpu = HostGpu(name="GPU", capability=capability)
    current = [
        target_needs(
            ROOT / "images",
            lock_file.read_lock(ROOT / "images", target["name"]),
            recommended=bool(target["recommended"]),
        )
        for target in browser_data(site)["targets"]
        if not target["retired"]
    ]
    host = Host(arch=Arch(arch), driver=driver, gpus=(gpu,))
    groups: dict[tuple[str, ...], list[str]] = {}
    for verdict in diagnose_host(host, current).verdicts:
        if verdict.fits:
            remarks = shared_remarks(host, verdict, '"full driver"')
            groups.setdefault(remarks, []).append(verdict.target)
    fits = [name for group in groups.values() for name in group]
    assert window.texts('.answer[data-state="fits"] h3') == fits
    if next(iter(groups)) and len(groups) == 1:  # the driver restricts all images in the same way
        assert fits == [each.target for each in diagnose_host(host, current).verdicts if each.fits]
        (why,) = window.texts('.group:has([data-state="fits"]) .why')
        assert why == f"{len(fits)} images: {next(iter(groups))[0]}."
        facts = window.texts('[data-target="cu126-vllm"] p.muted')[0]
        assert facts.startswith("full driver: 560.28.03; tested on")
    if "driver 535" in text:
        assert fits[0] == "cu124-vllm0.8.5"
    assert len(window.texts('.group:has([data-state="fits"])')) == len(groups)


def test_forms_show_a_failed_test_of_an_image(site: Path, window: Browser) -> None:
    open_form(window, site, "machine.html", machine="H200, driver 580.95.05")
    (facts,) = window.texts('[data-target="cu128-unsloth2026.10"] p.muted')
    assert facts == "multi-gpu failed on 2 H200; passed on H200 (x86_64)"
    images = ("cu128-unsloth2026.10 x86_64", "cu124-trl0.17 x86_64")
    open_form(window, site, "compare.html", left=images[0], right=images[1])
    (row,) = [row for row in window.texts("#answer tr") if row.startswith("Tested on")]
    assert row == "Tested onmulti-gpu failed on 2 H200; passed on H200H100, 2 H200"


def test_machine_form_selects_the_architecture_of_the_machine(site: Path, window: Browser) -> None:
    content = browser_data(site)
    x86_64 = {image["target"] for image in content["images"] if image["arch"] == "x86_64"}
    names = {content["targets"][number]["name"] for number in x86_64}
    open_form(window, site, "machine.html", machine="A100, driver 535")
    cards = window.run(
        "return [...document.querySelectorAll('.answer')]"
        ".map(each => [each.dataset.target, each.textContent])"
    )
    assert {name for name, _ in cards} >= names
    assert not [name for name, text in cards if name in names and "it is for arm64" in text]
    open_form(window, site, "requirements.html", requirements="torch")
    (first, *_), (facts, *_) = window.texts(".answer h3"), window.texts(".answer p")
    assert first not in names or facts.startswith("x86_64 ·")


@pytest.mark.parametrize(
    "text", ["vllm==0.8.5.post1 torch==2.7.0", "'vllm==0.8.5.post1' 'torch==2.7.0'"]
)
def test_versions_form_accepts_versions_separated_by_spaces(
    site: Path, window: Browser, text: str
) -> None:
    open_form(window, site, "together.html", versions=text)
    assert "vllm 0.8.5.post1 requires torch==2.6.0" in window.texts("#answer li")
    assert window.texts("#answer pre") == ["imgbuild audit 'vllm==0.8.5.post1' 'torch==2.7.0'"]


def test_notes_of_the_matrix_are_shown_as_reasons_for_a_conflict(
    site: Path, window: Browser
) -> None:
    """For verl 0.9.1 with trl 1.16.0, a learned constraint and a note are shown."""
    open_form(window, site, "together.html", versions="verl 0.9.1, trl 1.16.0")
    (verdict,) = window.texts(".verdict")
    assert verdict.startswith(
        "No image has these versions together, because verl==0.9.1 needs trl<1.13.0 (imports"
    )
    lines = window.texts("#answer li")
    assert [line for line in lines if line.startswith("learned: verl==0.9.1 needs trl<1.13.0")]
    (note,) = [line for line in lines if "TRL is the newest that has what verl imports" in line]
    assert note.startswith("cu130-verl0.9: ")
    open_form(window, site, "together.html", versions="verl 0.9.1, trl 1.12.0")
    assert not [line for line in window.texts("#answer li") if "TRL is the newest" in line]
    open_form(window, site, "together.html", versions="vllm 0.27")
    assert [line for line in window.texts("#answer li") if "does not start on Python 3.11" in line]


def test_missing_package_requirements_are_shown_as_reasons(site: Path, window: Browser) -> None:
    """For verl 0.9 with CUDA 12.4, no fact about the pair is recorded."""
    open_form(window, site, "together.html", versions="verl 0.9.1, cuda 12.4")
    assert window.texts(".verdict") == ["No image has these versions together."]
    (line,) = [each for each in window.texts("#answer li") if each.startswith("cu124-vllm0.8.5")]
    assert "verl 0.9.1 requires tensordict" in line
    assert "the image has tensordict 0.6.2, transformers 4.51.3" in line
    open_form(window, site, "together.html", versions="trl 1.16.0, vllm 0.11.0")
    (line,) = [each for each in window.texts("#answer li") if each.startswith("cu128-verl0.6: ")]
    assert "vllm>=0.11.1" in line  # learned from the code, not in the metadata


def test_url_of_the_machine_form_contains_only_gpu_and_driver(site: Path, window: Browser) -> None:
    open_form(window, site, "machine.html")
    secret = SMI.replace("+--", "Tue my-secret-host\n+--", 1)
    window.type("[name=machine]", secret)
    address = window.run("return decodeURIComponent(location.hash.replaceAll('+', ' '))")
    assert address == "#machine=NVIDIA A100-SXM4-80GB, driver 535.161.08"
    names = window.texts(".answer h3")
    open_form(window, site, "machine.html", machine="NVIDIA A100-SXM4-80GB, driver 535.161.08")
    assert window.texts(".answer h3") == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello world", "No GPU and no driver was found in this text."),
        ("GTX 580", "GTX 580 (unknown), no driver given"),
    ],
)
def test_machine_form_reports_text_without_a_known_gpu(
    site: Path, window: Browser, text: str, words: str
) -> None:
    open_form(window, site, "machine.html", machine=text)
    assert words in window.texts("#answer")[0]
    assert window.texts('[data-state="fits"]') == []


@pytest.mark.parametrize("text", ["NVIDIA X999, 580.95.05", "Driver Version: 580.95.05"])
def test_machine_form_does_not_report_an_unknown_gpu_as_compatible(
    site: Path, window: Browser, text: str
) -> None:
    open_form(window, site, "machine.html", machine=text)
    assert window.texts('[data-state="fits"]') == []
    assert window.texts('[data-state="unknown"]') != []
    assert window.texts(".verdict") == ["Whether an image runs on it is not known."]


def test_machine_form_has_the_same_results_as_the_doctor_command(
    site: Path, window: Browser
) -> None:
    """All combinations of image, driver, GPU and architecture are compared with doctor's code."""
    content = browser_data(site)
    drivers = (
        "450.80.02", "525.60.13", "525.60", "535", "550.54.14", "570.26", "575.51.03", "580",
        "580.65", "580.65.06", "580.65.6", "580.159.04", "590.44.01", "999.1",
    )  # fmt: skip
    machines: list[dict[str, Any]] = [
        {"arch": arch, "driver": driver, "gpus": [{"name": "GPU", "capability": capability}]}
        for arch in Arch
        for driver in drivers
        for capability in content["capabilities"]
    ]
    open_form(window, site, "machine.html")
    answers = window.run(
        "const all = window.imgbuildData; return arguments[0].map(machine => all.images.map("
        "image => window.imgbuildMachine.judge(machine, image, all)).map("
        "({ state, limited, remarks }) => [state, limited, remarks.join()]))",
        machines,
    )
    locked = {
        target["name"]: target_needs(
            ROOT / "images", lock_file.read_lock(ROOT / "images", target["name"])
        )
        for target in content["targets"]
    }
    compiled = set()
    for machine, states in zip(machines, answers, strict=True):
        gpus = tuple(HostGpu(**gpu) for gpu in machine["gpus"])
        host = Host(arch=Arch(machine["arch"]), driver=machine["driver"], gpus=gpus)
        for image, (state, limited, remarks) in zip(content["images"], states, strict=True):
            name = content["targets"][image["target"]]["name"]
            verdict = judge_target(host, locked[name])
            fits = image["arch"] == machine["arch"] and verdict.fits
            assert (state == "fits") == fits, (name, machine, state)
            for words in ("at first use", "PTX only") if fits else ():
                there = words in ",".join(verdict.remarks)
                assert (words in remarks) == there, (name, machine, remarks)
                compiled.add((words, there))
            assert limited == (fits and verdict.limited), (name, machine)
    assert {("at first use", True), ("at first use", False), ("PTX only", True)} <= compiled


def test_machine_form_parses_gpu_names_as_the_doctor_command_does(
    site: Path, window: Browser
) -> None:
    names = [
        name.replace("##", "90") for model in gpu_models.load_gpu_models() for name in model.names
    ]
    names += [
        f"NVIDIA {name} {more}"
        for name in names
        for more in ("80GB HBM3", "SXM4-80GB", "Laptop GPU", "PCIe", "Ti SUPER", "XYZ")
    ]
    names += [
        "Tesla V100-SXM2-32GB",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "NVIDIA GH200 480GB",
        "Quadro RTX 8000",
        "4090 Ti",
        "RTX 3000",
        "sm_90a",
        "x",
        "",
        "A" * 100,
        "H100(x)",
        "A100[1]",
    ]
    open_form(window, site, "machine.html")
    found = window.run(
        "const table = window.imgbuildData.gpus;"
        "return arguments[0].map(name => window.imgbuildMachine.find(name, table))",
        names,
    )
    expected = [gpu_models.find_gpu_model(name) for name in names]
    assert [each and (each["capability"], each["arch"]) for each in found] == [
        each and (each.capability, str(each.arch or "")) for each in expected
    ]


VERSIONS = (
    "0", "0.0", "1", "1.0", "1.0.0", "1.0.1", "1.1", "1.10", "1.2", "1.2.0.dev1", "1.2a1", "1.2b2",
    "1.2rc1", "1.2rc1.dev3", "1.2.post1", "1.2.post1.dev2", "1.2.post2", "1.2+cu124", "1.2+cu128",
    "1.2+1", "1.2.post1+local.7", "2.6.0", "2.6.0+cu124", "0.8.5.post1", "0.8.5", "0.8.6",
    "2025.10.9", "1!0.5", "1!1.0", "3.0.0rc2", "3.0.0", "3.0.0.post0", "4.57.1", "10.0.0.1",
)  # fmt: skip
BOUNDS = (
    "0.8.5", "0.8.5.post1", "1", "1.0", "1.2", "1.2a1", "1.2rc1", "1.2.post1", "1.2.dev1", "1.2.0",
    "2.6.0", "3", "3.0.0rc2", "1!0", "1.1.0", "4.57", "1.2.post1.dev2",
)  # fmt: skip


def test_version_comparison_on_the_site_matches_packaging(site: Path, window: Browser) -> None:
    specifiers = [f"{operator}{bound}" for operator in ("==", "!=", "<", "<=", ">", ">=", "===")
                  for bound in BOUNDS]  # fmt: skip
    specifiers += [f"~={bound}" for bound in BOUNDS if "." in bound.partition("!")[2] or (
        "." in bound and "!" not in bound)]  # fmt: skip
    specifiers += [f"{operator}{bound}.*" for operator in ("==", "!=")
                   for bound in ("0.8.5", "1", "1.0", "1.2", "2.6", "1!0", "4.57.0")]  # fmt: skip
    specifiers += ["==1.2+cu124", "!=1.2+cu124", ">=1,<2", ">1.0,!=1.2.*,<=3", "", " >= 1 , < 2 "]
    open_form(window, site, "requirements.html")
    answers = window.run(
        "return arguments[0].map(version => arguments[1].map("
        "spec => window.imgbuildVersions.satisfies(version, spec)))",
        VERSIONS,
        specifiers,
    )
    wrong = [
        (version, specifier, found)
        for version, row in zip(VERSIONS, answers, strict=True)
        for specifier, found in zip(specifiers, row, strict=True)
        if SpecifierSet(specifier).contains(version, prereleases=True) != found
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "fields", "first", "words"),
    [
        ("verl\nvllm>=0.11  # engine\n", {"arch": "arm64"}, "cu130-verl0.9", "has all"),
        ("vllm==0.10.2\ntrl==0.21.0", {}, "cu128-trl0.21", "has all"),
        ("torch==2.6.0\nvllm==0.8.5\ntrl==0.17.0", {}, "cu124-trl0.17", "fits with a change"),
        ("SGLang>=0.5.20\nno_such.package", {}, "cu130-sglang0.5.23", "has 1 of 2"),
        ("vllm<0.1", {}, "cu124-vllm0.8.5", "1 conflict"),
        ("vllm<0.1\ntorch<1", {}, "cu124-vllm0.8.5", "2 conflicts"),
        ("torch==2.8.0+cu128\ntorchaudio==2.8.0+cu128", {}, "cu128-verl0.6", "has all"),
        ("torch==2.8.0+cu129", {}, "cu128-verl0.6", "1 conflict"),
        ("torch==2.8.0+cu12torch2.8", {}, "cu128-verl0.6", "has all"),
        ("torch==2.8.0+cpu", {}, "cu128-verl0.6", "1 conflict"),
        ("torch==2.6.0\nvllm==0.8.4\nnumpy==1\nclick==1", {}, "cu124-vllm0.8.5", "3 conflicts"),
        (
            (
                "trl==0.21.0\nvllm==0.10.2; (os_name == 'posix' and python_version >= '3.10')"
                "\nvllm==99; sys_platform == 'darwin' or extra == 'x'"
            ),
            {},
            "cu128-trl0.21",
            "has all",
        ),
        (
            '[project]\nname = "x"\ndependencies = [\n "trl[vllm]==0.21.0",\n "vllm==0.10.2",\n]',
            {},
            "cu128-trl0.21",
            "has all",
        ),
        ("vllm==0.8.5+cu124", {}, "cu124-vllm0.8.5", "fits with a change"),
        ("-r other.txt\ntorch==2.7.0 --hash=sha256:00", {}, "cu126-vllm", "has all"),
    ],
)
def test_requirements_form_lists_images_that_meet_the_requirements(
    site: Path, window: Browser, text: str, fields: dict[str, str], first: str, words: str
) -> None:
    open_form(window, site, "requirements.html", requirements=text, **fields)
    assert window.texts(".answer h3")[0] == first
    assert window.texts(".answer .chip")[0] == words
    skipped = [line for line in window.texts("#answer .notice") if line.startswith("Not compared")]
    assert bool(skipped) == text.startswith("-r")


def test_proposed_specifier_has_no_local_version(site: Path, window: Browser) -> None:
    open_form(window, site, "requirements.html", requirements="vllm==0.8.5+cu124")
    (change,) = window.texts('[data-target="cu124-vllm0.8.5"] li')[:1]
    assert change.endswith("Write vllm==0.8.5.post1 or vllm~=0.8.5")
    assert SpecifierSet("~=0.8.5").contains("0.8.5.post1")
    open_form(window, site, "requirements.html", requirements="torch==2.8.0+cu129")
    (conflict,) = window.texts('[data-target="cu128-verl0.6"] li')[:1]
    assert conflict == "CUDA 12.9 of torch==2.8.0+cu129: the image has 12.8"
    open_form(window, site, "together.html", versions="torch==2.9.0+cu128")
    assert window.texts("#answer pre") == ["imgbuild resolve 'torch==2.9.0' --cuda 12.8"]


def test_package_that_cannot_be_added_is_a_conflict(site: Path, window: Browser) -> None:
    open_form(window, site, "requirements.html", requirements="vllm==0.8.5\ntrl==1.16.0\ndeepspeed")
    cards = window.run(
        "return [...document.querySelectorAll('.answer')].map(each => each.textContent)"
    )
    (trl,) = [card for card in cards if card.startswith("cu130-trl1.16.0")]
    assert "vllm==0.8.5 cannot be added: vllm 0.8.5.post1 requires" in trl
    open_form(window, site, "requirements.html", requirements="foo bar")
    assert window.texts(".answer") == []
    assert "No line is a requirement" in window.texts("#answer")[0]


def test_requirements_form_names_the_wheel_and_what_needs_nvcc(site: Path, window: Browser) -> None:
    open_form(window, site, "requirements.html", requirements="deepspeed\nvllm==0.8.5.post1\napex")
    card = window.texts('[data-target="cu124-vllm0.8.5"]')[0]
    assert "has in its name: cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64" in card
    assert "compile at first use with nvcc; this image has none" in card
    open_form(window, site, "requirements.html", requirements="deepspeed\nvllm==0.26.0\napex")
    card = window.texts('[data-target="cu130-verl0.9"]')[0]
    assert "cu13torch2.11cxx11abiTRUE" in card
    assert "with nvcc" not in card


def test_requirements_form_shows_commands_for_an_image_that_meets_all(
    site: Path, window: Browser
) -> None:
    open_form(window, site, "requirements.html", requirements="verl\nvllm>=0.11")
    digest = json.loads((ROOT / "images/cu130-verl0.9/digests.json").read_text())["digest"]
    use, project = window.texts(".answer .code pre")[:2]
    pull = f"docker pull registry.example/owner/images@{digest}"
    assert use == f"{pull} imgbuild run cu130-verl0.9 -- python train.py"
    assert project == (
        "imgbuild init --from requirements.txt --extends cu130-verl0.9 imgbuild lock"
        " imgbuild build imgbuild run -- python train.py"
    )
    buttons = window.run("return document.querySelectorAll('.answer button.copy').length")
    places = window.run("return document.querySelectorAll('.answer .code').length")
    assert buttons == places > 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vllm 0.8.5, torch 2.7", "vllm 0.8.5.post1 requires torch==2.6.0"),
        ("vllm 0.8.5 with torch 2.7", "torch 2.7: in 1 image, with vllm 0.9.2: cu126-vllm"),
        ("trl 1.12.0 and vllm 0.31", "learned: trl==1.12.0 needs vllm<0.28.0"),
        ("vllm 0.10.2, trl 0.21", "These versions are together in 1 image."),
        ("peft 0.15.2, vllm 99", "no reason against them is recorded"),
        ("trl 0.24.0, vllm 0.11.0", "trl 0.24.0 with vllm 0.11.0: no audit of their code is"),
        (
            "vllm 0.8.5, trl 1.16.0",
            "learned: trl==1.16.0 needs vllm>=0.11.1 (imports, trl/generation/vllm_client.py:43",
        ),
        ("vllm 0.8.5, trl 1.16.0", "trl 1.16.0 supports vllm<=0.31.0,>=0.22.0 (its extra vllm)"),
        (
            "vllm 0.8.5, trl 1.16.0",
            "With transformers 4.56.2 of the images, vllm has a known incompatibility",
        ),
        ("vllm 0.33.0, trl 1.16.0", "Outside the versions that a package names as supported"),
        ("vllm 0.8.5, trl 1.16.0", "in 3 images, with trl 0.17.0, 0.18.2: cu124-vllm0.8.5"),
        ("vllm 0.8.5, trl 1.16.0", "imgbuild resolve 'vllm==0.8.5.post1' 'trl==1.16.0'"),
        ("cuda 12.4, python 3.13", "With a package, such as vllm, imgbuild can solve for them."),
        ("vllm 0.33.0, python 3.12", "imgbuild resolve 'vllm==0.33.0' --python 3.12"),
        ("vllm 0.33.0, python 3.11", "The images with vllm 0.33.0 have Python 3.13."),
        ("vllm 0.33.0, python 3.12", "without an image: cu130-vllm0.33.0-py312: needs"),
        ("vllm 0.25.1", "It is in 1 image and 1 retired image."),
        ("vllm 0.8.5, trl 1.9", "learned: trl==1.9.2 needs vllm>=0.11.0 (imports"),
        ("vllm 0.8.5, TRL 1.x", "trl 1.1.0, 1.5.1, 1.9.2, 1.12.0"),
        ("python 3.13, arm64", "These versions are together in 1 image."),
        ("python 3.13, aarch64, vllm 0.8.5", "aarch64: in "),
        ("flash-attn", "published only as source with CUDA code"),
        ("vllm 1.y", "Not understood: vllm 1.y"),
        ("foo 3", "No image has it."),
        ("= ! ?", "Not understood"),
        ("newest vllm with newest torch", "vllm 0.33.0 requires torch==2.14.0"),
        ("vllm latest", "Newest in the images: vllm 0.33.0"),
        ("torch 2.15.0", "refused: torch 2.15.0 in cu130-trl"),
        ("verl 0.9 with python 3.13", "python 3.13: in 2 images, with no verl: cu130-vllm0.33.0"),
        ("deepspeed 0.19.8, cuda 12.8", "imgbuild resolve 'deepspeed==0.19.8' --cuda 12.8"),
        (
            "vllm 0.26.0 with cuda 13.0",
            "These versions are together in 2 images and 1 retired image.",
        ),
        (
            "sglang 0.5.23, vllm 0.33",
            "sglang 0.5.23 requires torch==2.14.1; vllm 0.33.0 requires torch==2.14.0",
        ),
    ],
)
def test_conflicting_requirements_are_explained(
    site: Path, window: Browser, text: str, words: str
) -> None:
    open_form(window, site, "together.html", versions=text)
    assert words in window.texts("#answer")[0]


@pytest.mark.parametrize(("text", "first"), [("vllm>=0.11", "0.11.0"), ("vllm<0.20", "0.19.1")])
def test_reasons_for_a_conflict_begin_with_the_nearest_version(
    site: Path, window: Browser, text: str, first: str
) -> None:
    open_form(window, site, "together.html", versions=f"{text}, torch 2.15.0")
    assert window.texts("#answer li")[0].startswith(f"vllm {first} requires torch==")


@pytest.mark.parametrize("text", ["vllm 0.8.5, torch 2.9", "vllm 0.8.5, foo 1", "foo 1"])
def test_site_shows_no_command_for_impossible_or_unknown_requirements(
    site: Path, window: Browser, text: str
) -> None:
    open_form(window, site, "together.html", versions=text)
    assert "imgbuild resolve" not in window.texts("#answer")[0]


def test_filter_without_a_match_links_to_the_reasons_for_the_conflict(
    site: Path, window: Browser
) -> None:
    open_form(window, site, "index.html", packages="flash-attn, vllm>=0.8")
    (link,) = window.run(
        "return [...document.querySelectorAll('#why a')].map(a => [a.href, a.offsetWidth > 0])"
    )
    assert link[0].endswith("together.html#versions=flash-attn%2C+vllm%3E%3D0.8")
    assert link[1]
    open_form(window, site, "requirements.html", requirements="flash-attn\nvllm")
    assert "flash-attn: it is published only as source" in window.texts("#answer")[0]


def test_version_outside_the_range_of_an_extra_is_not_a_conflict(
    site: Path, window: Browser
) -> None:
    open_form(window, site, "together.html", versions="vllm 0.8.5, trl 1.16.0")
    headings = window.texts("#answer h3")
    assert "They cannot be installed together" not in headings
    assert any(heading.startswith("Outside the versions") for heading in headings)
    for text in ("vllm 0.8.5, torch 2.7", "sglang 0.5.23, vllm 0.33"):
        open_form(window, site, "together.html", versions=text)
        assert "They cannot be installed together" in window.texts("#answer h3")
    open_form(window, site, "together.html", versions="vllm>=0.8, torch 2.9")
    assert "They cannot be installed together" not in window.texts("#answer h3")


def test_machine_form_shows_the_required_driver(site: Path, window: Browser) -> None:
    open_form(window, site, "machine.html", machine="GH200, driver 570.86.15")
    (answer,) = window.texts(".verdict")
    assert answer.endswith("With driver 580.65.06 or newer, images run on it.")
    for gpu in ("V100", "Instinct MI300X"):
        open_form(window, site, "machine.html", machine=f"{gpu}, driver 470.82.01")
        (answer,) = window.texts(".verdict")
        assert answer == f"No image runs on it. None has code for {gpu}: no driver changes this."


# -- two images


def test_image_comparison_matches_the_locks(site: Path, window: Browser) -> None:
    names = ("cu130-verl-sglang", "cu130-verl0.9")
    fields = dict(zip(("left", "right"), (f"{name} x86_64" for name in names), strict=True))
    open_form(window, site, "compare.html", **fields)
    locks = [lock_file.read_lock(ROOT / "images", name).arch[Arch.X86_64] for name in names]
    debian = [{deb.package: deb.version for deb in lock.debs} for lock in locks]
    titles = window.texts("#answer h2")
    for title, (left, right) in zip(
        ("Python", "Debian"), ([lock.versions for lock in locks], debian), strict=True
    ):
        every = {*left, *right}
        differing = {name for name in every if left.get(name) != right.get(name)}
        words = f"{title} packages: {len(differing)} differ, {len(every - differing)} are equal"
        assert words in titles
    listed = window.run(
        "return [...document.querySelectorAll('.compared')].map(part => "
        "part.querySelectorAll('tbody tr').length)"
    )
    for number, title in zip(listed, titles, strict=False):
        assert f" {number} differ" in title
    assert len(listed) == 2
    page = (site / "targets/cu130-verl0.9.html").read_text()
    assert f"{listed[0]}: list</a>" in page
    window.run("document.getElementById('swap').click()")
    assert window.run("return document.querySelector('[name=left]').value") == fields["right"]
    assert "left=cu130-verl0.9" in window.run("return location.hash")


def test_image_comparison_begins_with_the_download(site: Path, window: Browser) -> None:
    images = {"left": "cu124-vllm x86_64", "right": "cu130-vllm0.33.0 x86_64"}
    open_form(window, site, "compare.html", **images)
    (end,) = window.texts(".verdict")
    assert window.texts("#answer > :first-child") == [end]
    assert end.startswith("From cu124-vllm to cu130-vllm0.33.0: ")
    assert "Another version: " in " ".join(window.texts("#answer summary"))
    properties = window.run(
        "return [...document.querySelectorAll('#answer > table tbody tr')]"
        ".map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
    )
    assert all(left != right for left, right in properties)
    assert window.run("return document.documentElement.scrollHeight") < 4000
    window.run("document.querySelectorAll('details').forEach(each => each.open = true)")
    for width in (360, 800):
        window.view(width)
        assert window.run("return document.documentElement.scrollWidth") <= width


def test_commands_on_an_image_page_use_the_selected_values(site: Path, window: Browser) -> None:
    open_form(window, site, "kubernetes.html")
    window.type("#choices input", "registry.example/a@sha256:0")
    window.type("#choices select", "4")
    job = yaml.safe_load(
        window.run("return document.querySelector('[data-copy=\"job.yaml\"]').textContent")
    )
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert container["image"] == "registry.example/a@sha256:0"
    open_form(window, site, "targets/cu124-vllm.html")
    window.type("#choices select", "4")
    assert "--nodes 1 --gpus 4" in window.texts('[data-copy="Slurm, one node"]')[0]


def test_changes_page_can_be_limited_to_one_image(site: Path, window: Browser) -> None:
    open_form(window, site, "changes.html", image="cu130-verl0.9")
    names = {*window.texts("[data-image] > a")}
    assert names == {"cu130-verl0.9"}
    assert window.texts("#none") == []
    open_form(window, site, "changes.html", image="cu999")
    assert window.texts("[data-image], h2") == []
    assert window.texts("#none")[0].startswith("None of the changes on this page")
