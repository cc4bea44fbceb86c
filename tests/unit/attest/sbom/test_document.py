"""Tests the content of SBOMs, with the published schemas and third-party readers."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lib4sbom
import msgspec
import pytest
from cyclonedx.model.bom import Bom
from cyclonedx.schema import SchemaVersion
from packageurl import PackageURL

from imgbuild.attest.sbom import cyclonedx, document, needs, packages, spdx
from imgbuild.attest.sbom.document import ComponentKind, Sbom, create_sbom
from imgbuild.attest.sbom.packages import Package, SbomPackages
from imgbuild.lock import extension
from imgbuild.lock.resolution import RegistryLayer
from imgbuild.plan import image_digests
from imgbuild.plan.plan import create_plan
from imgbuild.values import Arch, sha256
from tests.support import extended, sbom_sample, standalone_matrix

if TYPE_CHECKING:
    import jsonschema  # loading it takes a second

MARKERS = {"platform_system": "Linux", "python_version": "3.11"}


@functools.cache
def sample_sbom(arch: Arch = Arch.X86_64) -> Sbom:
    lock = sbom_sample.lock()
    return create_sbom(
        lock, sbom_sample.invented_digests(lock), arch, sbom_sample.package_metadata(lock)
    )


def named(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(item for item in document["components"] if item["bom-ref"] == name)


def related(document: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (
            row["spdxElementId"].removeprefix("SPDXRef-"),
            row["relationshipType"],
            row["relatedSpdxElement"].removeprefix("SPDXRef-"),
        )
        for row in document["relationships"]
    }


# -- dependencies


def package_metadata(**packages: tuple[str, ...]) -> dict[str, Package]:
    return {name: Package(file=name, needs=lines) for name, lines in packages.items()}


def test_sbom_requirement_applies_if_its_marker_matches():
    sample = package_metadata(
        one=('two; python_version < "3.12"', 'three; platform_system == "Windows"', "absent"),
        two=(),
        three=(),
    )
    assert needs.wheel_dependencies(sample, MARKERS) == {"one": ("two",), "two": (), "three": ()}


def test_requirements_with_versions_override_earlier_records_without_versions():
    both = {
        "one": Package(file="one.whl", requires=('Two>=2; python_version < "3.12"',), needs=("x",)),
        "two": Package(file="two.whl", needs=("one",)),
        "x": Package(file="x.whl", requires=()),
    }
    assert needs.wheel_dependencies(both, MARKERS) == {"one": ("two",), "two": ("one",), "x": ()}


def test_requirements_of_an_extra_apply_only_if_the_extra_is_requested():
    sample = package_metadata(
        ray=('grpcio; extra == "default"', 'ray[default]; extra == "all"', 'far; extra == "far"'),
        grpcio=(),
        far=(),
        verl=("Ray[all]",),
    )
    assert needs.wheel_dependencies(sample, MARKERS)["ray"] == ("grpcio",)
    del sample["verl"]
    assert needs.wheel_dependencies(sample, MARKERS)["ray"] == ()


def test_deb_dependency_resolves_to_first_installed_alternative_or_provider():
    sample = package_metadata(one=("absent | two | three", "awk"), two=(), three=())
    sample["mawk"] = Package(file="mawk", provides=("awk",))
    assert needs.deb_dependencies(sample)["one"] == ("mawk", "two")


# -- the SBOM


def test_sbom_contains_every_part_of_lock_once():
    parts = {part.id: part for part in sample_sbom().components}
    assert list(parts) == sorted(parts)
    assert set(parts) == {
        "deb/base-files", "deb/bash", "deb/python3", "layer/files", "layer/venv",
        "sdist/antlr4-runtime", "system", "tool/setuptools-75.0-py3-none-any.whl",
        "wheel/antlr4-runtime", "wheel/numpy", "wheel/pip", "wheel/ray", "wheel/torch",
    }  # fmt: skip
    assert parts["system"].version == "12"
    assert parts["deb/bash"].purl == (
        "pkg:deb/debian/bash@1.0-1?arch=amd64&distro=debian-12&upstream=bash%401.0-0"
    )
    assert parts["wheel/torch"].purl == (
        "pkg:pypi/torch@2.6.0?file_name=torch-2.6.0-py3-none-any.whl"
    )
    lock = sbom_sample.lock()
    layers = {
        layer.name: layer for layer in sbom_sample.invented_digests(lock).arch[Arch.X86_64].layers
    }
    assert parts["wheel/torch"].layer == layers["torch"]
    assert parts["deb/bash"].layer == layers["debian-12"]
    assert parts["tool/setuptools-75.0-py3-none-any.whl"].layer is None
    # python3 shares the copyright file of bash, to which Debian links.
    assert parts["deb/python3"].licence == parts["deb/bash"].licence


def test_sbom_image_depends_on_requested_packages_and_on_those_without_dependents():
    sbom_file = sample_sbom()
    assert sbom_file.needs["image"] == (
        "deb/bash", "deb/python3", "layer/files", "layer/venv", "system",
        "wheel/antlr4-runtime", "wheel/pip", "wheel/ray", "wheel/torch",
    )  # fmt: skip
    assert sbom_file.needs["wheel/torch"] == ("wheel/numpy",)
    assert sbom_file.needs["deb/python3"] == ("deb/bash",)
    assert sbom_file.build_inputs == {
        "wheel/antlr4-runtime": (
            "sdist/antlr4-runtime",
            "tool/setuptools-75.0-py3-none-any.whl",
        )
    }


def test_sbom_lists_a_tool_as_requested_and_in_its_layer():
    lock = sbom_sample.lock((Arch.X86_64,))
    base = msgspec.structs.replace(lock.base, packages=("python3",), tools=("bash",))
    resolved = msgspec.structs.replace(lock.arch[Arch.X86_64], tools=("bash",))
    lock = msgspec.structs.replace(lock, base=base, arch={Arch.X86_64: resolved})
    digests = sbom_sample.invented_digests(lock)
    sbom_file = create_sbom(lock, digests, Arch.X86_64, sbom_sample.package_metadata(lock))
    assert "deb/bash" in sbom_file.needs["image"]
    layers = {layer.name: layer for layer in digests.arch[Arch.X86_64].layers}
    parts = {part.id: part for part in sbom_file.components}
    assert parts["deb/bash"].layer == layers["tools"]
    assert parts["deb/python3"].layer == layers["debian-12"]


def test_registry_base_is_identified_by_digest_with_unknown_contents():
    lock = sbom_sample.lock((Arch.X86_64,))
    digest = f"sha256:{'ab' * 32}"
    layer = RegistryLayer(digest=f"sha256:{'1' * 64}", size=1, diff_id=f"sha256:{'2' * 64}")
    base = msgspec.structs.replace(
        lock.base, kind="registry", image=f"host.example:5000/group/python:3.11@{digest}"
    )
    resolved = msgspec.structs.replace(
        lock.arch[Arch.X86_64], debs=(), base_layers=(layer,), base_manifest=digest
    )
    lock = msgspec.structs.replace(lock, base=base, arch={Arch.X86_64: resolved})
    sbom_file = create_sbom(lock, sbom_sample.invented_digests(lock), Arch.X86_64, SbomPackages())
    part = next(part for part in sbom_file.components if part.kind is ComponentKind.BASE)
    purl = PackageURL.from_string(part.purl)
    assert (purl.name, purl.version) == ("python", digest)
    assert purl.qualifiers == {
        "arch": "amd64",
        "repository_url": "host.example:5000/group/python",
    }
    assert json.loads(cyclonedx.cyclonedx_document(sbom_file))["compositions"] == [
        {"aggregate": "unknown", "assemblies": ["base"]}
    ]
    valid_cyclonedx(cyclonedx.cyclonedx_document(sbom_file))
    valid_spdx(spdx.spdx_document(sbom_file))


def test_extension_sbom_lists_added_and_published_packages(tmp_path: Path):
    matrix = extended.read_extended(extended.create_repository(tmp_path))
    lock = extension.make_lock(matrix, extended.OWN_TARGET, extended.resolve_additions(matrix))
    target_digests = image_digests.compute_digests(
        lock, extended.invented_records(create_plan(lock, arch) for arch in lock.arch)
    )
    sbom_file = create_sbom(lock, target_digests, Arch.X86_64, SbomPackages())
    parts = {part.id: part for part in sbom_file.components}
    script = parts["file/opt/team/train.sh"]
    assert (script.kind, script.sha256) == (ComponentKind.FILE, sha256(extended.SCRIPT))
    assert script.layer is not None
    assert script.layer.name == "added-files"
    assert parts["deb/rsync"].layer is not None
    assert parts["deb/rsync"].layer.name == "added-debs"
    assert parts["wheel/torch"].layer is not None
    assert {"deb/rsync", "wheel/wandb", "wheel/torch", "file/opt/team/train.sh"} <= {
        *sbom_file.needs["image"]
    }
    valid_cyclonedx(cyclonedx.cyclonedx_document(sbom_file))
    valid_spdx(spdx.spdx_document(sbom_file))


def test_purls_match_packageurl_library():
    for part in sample_sbom().components:
        if part.purl:
            assert PackageURL.from_string(part.purl).to_string() == part.purl


# -- documents


def valid_cyclonedx(data: bytes) -> None:
    """Validate against the published CycloneDX schema and read back with its library."""
    from cyclonedx.validation.json import JsonStrictValidator

    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(data.decode())
    assert error is None, error
    Bom.from_json(json.loads(data)).validate()  # type: ignore[attr-defined]


@functools.cache
def _spdx_schema() -> jsonschema.Draft7Validator:
    import jsonschema

    path = Path(lib4sbom.__file__).parent / "schemas/spdx/2.3-schema.json"
    schema = json.loads(path.read_bytes())
    assert schema["$id"] == "http://spdx.org/rdf/terms/2.3"
    return jsonschema.Draft7Validator(schema)


def valid_spdx(data: bytes) -> None:
    """Validate against the published SPDX schema and with the SPDX tools."""
    from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    value = json.loads(data)
    assert [error.message for error in _spdx_schema().iter_errors(value)] == []
    messages = validate_full_spdx_document(JsonLikeDictParser().parse(value))
    assert [message.validation_message for message in messages] == []


@pytest.mark.parametrize("arch", sbom_sample.ARCHES)
def test_cyclonedx_is_valid(arch: Arch):
    valid_cyclonedx(cyclonedx.cyclonedx_document(sample_sbom(arch)))


@pytest.mark.parametrize("arch", sbom_sample.ARCHES)
def test_spdx_is_valid(arch: Arch):
    valid_spdx(spdx.spdx_document(sample_sbom(arch)))


def test_validators_reject_invalid_documents():
    broken = json.loads(cyclonedx.cyclonedx_document(sample_sbom()))
    broken["components"][0]["hashes"] = [{"alg": "SHA-256", "content": "short"}]
    with pytest.raises(AssertionError):
        valid_cyclonedx(json.dumps(broken).encode())
    broken = json.loads(spdx.spdx_document(sample_sbom()))
    broken["relationships"][1]["relatedSpdxElement"] = "SPDXRef-nobody"
    with pytest.raises(AssertionError):
        valid_spdx(json.dumps(broken).encode())


def test_cyclonedx_contains_all_sbom_data():
    document = json.loads(cyclonedx.cyclonedx_document(sample_sbom()))
    digest = sample_sbom().digest
    about = document["metadata"]["component"]
    assert (about["name"], about["version"], about["type"]) == ("small", digest, "container")
    assert about["purl"] == f"pkg:oci/small@{digest}?arch=amd64"
    assert document["metadata"]["timestamp"] == "2025-06-20T00:00:00Z"
    torch = named(document, "wheel/torch")
    torch_hash = next(part.sha256 for part in sample_sbom().components if part.id == "wheel/torch")
    assert torch["hashes"] == [{"alg": "SHA-256", "content": torch_hash}]
    assert torch["licenses"] == [{"expression": "BSD-3-Clause", "acknowledgement": "declared"}]
    assert named(document, "wheel/numpy")["licenses"] == [
        {"license": {"name": "BSD License", "acknowledgement": "declared"}}
    ]
    layers = {item["name"]: item["value"] for item in about["properties"]}
    place = {item["name"]: item["value"] for item in torch["properties"]}["imgbuild:layer"]
    assert layers[f"imgbuild:layer.{place}.digest"] == next(
        layer.digest for layer in sample_sbom().layers if layer.name == "torch"
    )
    assert "licenses" not in named(document, "wheel/pip")  # its data is unknown
    assert named(document, "sdist/antlr4-runtime")["scope"] == "excluded"
    assert {"ref": "wheel/torch", "dependsOn": ["wheel/numpy"]} in document["dependencies"]
    steps = document["formulation"][0]["workflows"][0]
    assert steps["inputs"][0] == {"resource": {"ref": "sdist/antlr4-runtime"}}


def test_spdx_contains_all_sbom_data():
    document = json.loads(spdx.spdx_document(sample_sbom()))
    listed = {item["SPDXID"]: item for item in document["packages"]}
    assert all(item["downloadLocation"] == "NOASSERTION" for item in listed.values())
    assert listed["SPDXRef-wheel-torch"]["licenseDeclared"] == "BSD-3-Clause"
    assert listed["SPDXRef-wheel-pip"]["licenseDeclared"] == "NOASSERTION"
    assert listed["SPDXRef-wheel-numpy"]["licenseDeclared"] == "LicenseRef-imgbuild-BSD-License"
    assert listed["SPDXRef-deb-bash"]["packageFileName"] == "bash_1.0-1_amd64.deb"
    texts = {
        item["licenseId"]: item["extractedText"] for item in document["hasExtractedLicensingInfos"]
    }
    assert texts["LicenseRef-imgbuild-BSD-License"] == "BSD License"
    assert "/usr/share/doc/bash/copyright" in texts["LicenseRef-Debian-permissive"]
    assert related(document) >= {
        ("DOCUMENT", "DESCRIBES", "image"),
        ("image", "CONTAINS", "wheel-torch"),
        ("wheel-torch", "DEPENDS_ON", "wheel-numpy"),
        ("wheel-antlr4-runtime", "GENERATED_FROM", "sdist-antlr4-runtime"),
        ("tool-setuptools-75.0-py3-none-any.whl", "BUILD_TOOL_OF", "wheel-antlr4-runtime"),
    }
    assert ("image", "CONTAINS", "sdist-antlr4-runtime") not in related(document)


@pytest.mark.parametrize("write", [cyclonedx.cyclonedx_document, spdx.spdx_document])
def test_sbom_documents_depend_only_on_their_content(write):
    lock = sbom_sample.lock()
    again = create_sbom(
        lock, sbom_sample.invented_digests(lock), Arch.X86_64, sbom_sample.package_metadata(lock)
    )
    assert write(again) == write(sample_sbom())
    # A changed licence yields another document with another serial number.
    other = SbomPackages(packages={})
    changed = create_sbom(lock, sbom_sample.invented_digests(lock), Arch.X86_64, other)
    field = "serialNumber" if write is cyclonedx.cyclonedx_document else "documentNamespace"
    assert json.loads(write(changed))[field] != json.loads(write(sample_sbom()))[field]
    assert write(sample_sbom(Arch.ARM64)) != write(sample_sbom())


@pytest.mark.parametrize("arch", sbom_sample.ARCHES)
def test_sbom_from_a_lock_bundle_equals_the_sbom_of_the_lock(arch: Arch):
    lock = sbom_sample.lock()
    recorded_packages = sbom_sample.package_metadata(lock)
    counted = packages.packages_of_lock(recorded_packages, lock)
    assert counted != recorded_packages
    assert create_sbom(lock, sbom_sample.invented_digests(lock), arch, counted) == sample_sbom(arch)


def test_component_identifiers_are_unique():
    names = ["deb/g++", "deb/g..", "deb/g.2b.", "wheel/a", "file/opt/a b", "file/opt/a-b"]
    assert len({spdx._id(name) for name in names}) == len(names)


def test_standalone_python_is_a_component_with_licence_and_layer():
    lock = standalone_matrix.lock()
    archive = standalone_matrix.archive()
    sbom_file = create_sbom(lock, sbom_sample.invented_digests(lock), Arch.X86_64, SbomPackages())
    part = next(each for each in sbom_file.components if each.kind is ComponentKind.INTERPRETER)
    purl = PackageURL.from_string(part.purl)
    assert (purl.type, purl.name, purl.version) == ("generic", "cpython", "3.12.11")
    assert purl.qualifiers == {
        "checksum": f"sha256:{archive.sha256}",
        "download_url": standalone_matrix.ARCHIVES[Arch.X86_64],
    }
    assert part.layer is not None
    assert (part.layer.name, part.licence.expression) == ("python", "PSF-2.0")
    assert part.id in sbom_file.needs["image"]
    document = json.loads(cyclonedx.cyclonedx_document(sbom_file))
    assert named(document, part.id)["type"] == "platform"
    assert named(document, part.id)["cpe"] == "cpe:2.3:a:python:python:3.12.11:*:*:*:*:*:*:*"
    packages_of = json.loads(spdx.spdx_document(sbom_file))["packages"]
    (package,) = (each for each in packages_of if each["name"] == "cpython")
    assert (package["primaryPackagePurpose"], package["licenseDeclared"]) == (
        "APPLICATION", "PSF-2.0"
    )  # fmt: skip
    types = {each["referenceType"]: each["referenceLocator"] for each in package["externalRefs"]}
    assert types == {"purl": part.purl, "cpe23Type": part.cpe}


def test_cpe_of_cpython_has_the_prerelease_in_its_update_field():
    assert document._cpython_cpe("3.15.0rc1") == ("cpe:2.3:a:python:python:3.15.0:rc1:*:*:*:*:*:*")
