"""The pages of a site: HTML from the templates in `data/site`, style, script (separate: Jinja).

The templates are imgbuild's own; what they write is escaped, since names, reasons and summaries
are texts of a matrix, a lock or a commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jinja2
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment

from imgbuild.audit.binaries import gpus
from imgbuild.cves.check import CveReport, Vulnerability
from imgbuild.show import table
from imgbuild.show.page import PageImage
from imgbuild.site import browser_data, gpu_names, requirements, test_runs
from imgbuild.site.catalogue import STACKS
from imgbuild.site.grid import gpu_names as names_of_run
from imgbuild.site.grid import state_of
from imgbuild.site.history import DigestChange, SiteHistory
from imgbuild.site.lock_changes import VersionChange
from imgbuild.site.model import RecordedRefusal, SiteCatalogue, SiteTarget
from imgbuild.smoke.records import words
from imgbuild.system import files
from imgbuild.system.amounts import size_text
from imgbuild.values import Bytes, Digest

TEMPLATES = files.data("site")
SCRIPTS = (
    "versions.js",
    "machine.js",
    "elements.js",
    "pages.js",
)  # one file in the site, in this order
NAVIGATION = (
    ("index.html", "Images"),
    ("matrix.html", "Matrix"),
    ("tests.html", "Tests"),
    ("machine.html", "My machine"),
    ("requirements.html", "My requirements"),
    ("together.html", "Why not"),
    ("changes.html", "Changes"),
)
COLUMNS = (
    ("torch", "torch"),
    ("vllm", "vLLM"),
    ("trl", "TRL"),
    ("verl", "verl"),
    ("transformers", "transformers"),
)
RECENT = 40  # changes on the page of all changes
SHOWN = 24  # packages of a change
LISTED = 60  # vulnerabilities of an image
SEVERE = ("critical", "high")


def pages(catalogue: SiteCatalogue, history: SiteHistory) -> Iterator[tuple[str, bytes]]:
    """Path and content of every page, the style sheet and the script."""
    environment = _environment()
    common: dict[str, Any] = {
        "site": catalogue,
        "nav": NAVIGATION,
        "choices": _choices(catalogue),
        "refusals": _by_source(catalogue.refusals),
    }
    locked = [target for target in catalogue.targets if target.lock]

    def _page(path: str, template: str, **more: object) -> tuple[str, bytes]:
        root = "../" * path.count("/")
        text = environment.get_template(template).render(**common, root=root, here=path, **more)
        return path, text.encode()

    yield _page(
        "index.html",
        "index.html",
        columns=COLUMNS,
        current=[target for target in locked if not target.row.retired],
        retired=[target for target in locked if target.row.retired],
        unlocked=[target for target in catalogue.targets if not target.lock],
    )
    for name in ("matrix", "machine", "requirements"):
        yield _page(f"{name}.html", f"{name}.html")
    required = requirements.between(catalogue.requires)
    yield _page("together.html", "together.html", required=required)
    shown = [target for target in locked if not target.row.retired]
    yield _page("tests.html", "tests.html", groups=test_runs.by_gpu(shown))
    yield _page("changes.html", "changes.html", changes=_recent(catalogue, history))
    for target in catalogue.targets:
        yield _page(f"targets/{target.name}.html", "target.html", target=target)
    for debian in catalogue.debian:
        yield _page(f"debian/{debian.page}.html", "debian.html", list=debian)
    yield "site.css", (TEMPLATES / "site.css").read_bytes()
    yield "site.js", b"".join((TEMPLATES / name).read_bytes() for name in SCRIPTS)


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    return environment


def _by_source(refusals: Iterable[RecordedRefusal]) -> list[tuple[str, list[RecordedRefusal]]]:
    """The refusals under the headings of a page."""
    headings = {
        "refused update": "Newer versions that were tried and refused",
        "learned constraint": "Constraints learned from the code",
        "known incompatibility": "Known incompatibilities",
        "accepted finding": "Findings that are accepted for an image",
        "matrix": "Decisions in the matrix",
    }
    groups: dict[str, list[RecordedRefusal]] = {source: [] for source in headings}
    for refusal in refusals:
        groups[refusal.source].append(refusal)
    return [(headings[source], entries) for source, entries in groups.items() if entries]


def _recent(catalogue: SiteCatalogue, history: SiteHistory) -> list[tuple[str, DigestChange, str]]:
    """The latest changes with the name of their target and the link to its page."""
    present = {target.name for target in catalogue.targets}
    changes = [
        (name, change, f"targets/{name}.html" if name in present else "")
        for name, entries in history.targets.items()
        for change in entries
    ]
    return sorted(changes, key=lambda entry: (entry[1].date, entry[0]), reverse=True)[:RECENT]


def _choices(catalogue: SiteCatalogue) -> dict[str, Any]:
    """The choices of filters: only values that an image has."""
    targets = [target for target in catalogue.targets if target.lock]
    data = gpus.load()
    tested = {name for target in targets for name in _tested_on(target)}
    models = gpu_names.choices()
    return {
        "stacks": [stack for stack in STACKS if any(stack in each.stacks for each in targets)],
        "cuda": sorted({target.row.cuda for target in targets}, key=gpus.numbers),
        "arches": sorted({str(arch) for target in targets for arch in target.row.arch}),
        "pythons": sorted({target.row.python for target in targets}, key=gpus.numbers),
        "tested": sorted(tested),
        "branches": browser_data.whole_branches(),
        "runs": _runs_by_gpu(targets),
        "gpus": [(f"{each['capability']} {each['arch']}".strip(), each["name"]) for each in models],
        "machines": [(json.dumps(each), each["name"]) for each in models],
        "models": gpu_names.table()["models"],
        "releases": [
            {
                "cuda": release.cuda,
                "oldest": data.oldest(release.cuda),
                "own": data.own(release.cuda),
            }
            for release in data.releases
        ],
    }


def _runs_by_gpu(targets: Sequence[SiteTarget]) -> list[dict[str, Any]]:
    """For each kind of GPU the current images that run on it, by their oldest driver."""
    images = [
        (image, target.name)
        for target in targets
        if not target.row.retired
        for image in target.page.images
        if image.driver
    ]
    rows: dict[str, dict[str, Any]] = {}
    for model in gpu_names.choices():
        able: dict[str, dict[str, None]] = {}
        for image, name in images:
            if model["capability"] in (*image.gpu, *image.gpu_ptx) and model["arch"] in (
                "",
                image.arch,
            ):
                able.setdefault(image.driver, {})[name] = None
        drivers = [(driver, [*able[driver]]) for driver in sorted(able, key=gpus.numbers)]
        same = rows.setdefault(repr(drivers), {"gpus": [], "drivers": drivers})
        same["gpus"].append(f"{model['name']} ({model['capability']})")
    return [*rows.values()]


# -- filters


def _images_json(target: SiteTarget) -> str:
    """For the filters: architecture, oldest driver and compute capabilities of each image."""
    return json.dumps(
        [
            [image.arch, image.driver, " ".join(dict.fromkeys((*image.gpu, *image.gpu_ptx)))]
            for image in target.page.images
        ],
        separators=(",", ":"),
    )


def _bytes_to_pull(target: SiteTarget) -> Bytes:
    """For the order of the table: what a pull of the first architecture downloads."""
    return target.page.images[0].size if target.page.images else 0


def _version(target: SiteTarget, package: str) -> str:
    """The version of a package that the page of a target shows first, "" if it has none."""
    return dict(target.versions).get(package, "")


def _driver(target: SiteTarget) -> str:
    drivers = dict.fromkeys(image.driver for image in target.page.images if image.driver)
    return " / ".join(drivers) or "not known"


def _gpus(capabilities: Sequence[str]) -> str:
    """The GPUs of compute capabilities by name."""
    named = [
        f"{entry.names} ({entry.capability})"
        for entry in gpus.load().gpus
        if entry.capability in capabilities
    ]
    return ", ".join(named)


def _tested_on(target: SiteTarget) -> list[str]:
    """The GPUs that the current images passed a tier on."""
    runs = [run for image in target.page.images for run in image.runs if run.good]
    return sorted({name for run in runs for name in names_of_run(run)})


def _run_chips(images: Sequence[PageImage]) -> list[dict[str, str]]:
    """The highest tier that passed on each kind of GPU, failures, else the tiers without GPUs."""
    chips: dict[str, dict[str, str]] = {}
    for image in images:
        suffix = f" {image.arch}" if len(images) > 1 else ""
        for run in image.runs:
            names = names_of_run(run)
            number = f"{len(run.gpu)} x " if len(run.gpu) > 1 else ""
            label = f"{number}{' '.join(names)}" if names else run.tier
            key = f"{label}{suffix}" if run.good else f"{run.tier} failed{suffix}"
            state = "failed" if not run.good else "gpu" if names else "cpu"
            chips[key] = {"label": key, "state": state, "words": words(run)}
    return [chip for chip in chips.values() if chip["state"] != "cpu"] or [*chips.values()]


def _cve_rows(report: CveReport) -> list[Vulnerability]:
    """The severe and the accepted ones, at most LISTED."""
    rows = [each for each in report.vulnerabilities if each.severity in SEVERE or each.accepted]
    return rows[:LISTED]


def _cve_counts(report: CveReport) -> str:
    counts: dict[str, int] = {}
    for each in report.vulnerabilities:
        counts[each.severity] = counts.get(each.severity, 0) + 1
    return ", ".join(f"{number} {name}" for name, number in counts.items()) or "none known"


def _short(digest: Digest) -> str:
    return f"sha256:{table.short(digest)}"


def _state_words(target: SiteTarget) -> str:
    return f"It is {state_of(target)[1]}."


def _first_changes(changes: Sequence[VersionChange]) -> Sequence[VersionChange]:
    return changes[:SHOWN]


def _more_changes(changes: Sequence[VersionChange]) -> int:
    return max(0, len(changes) - SHOWN)


def _also(target: SiteTarget) -> str:
    """The pins that have no column."""
    own = {package for package, _ in COLUMNS}
    pins = {name: version for name, version in target.row.pins.items() if name not in own}
    return table.also_pinned(msgspec.structs.replace(target.row, pins=pins))


FILTERS: Mapping[str, Callable[..., object]] = {
    "also": _also,
    "cve_counts": _cve_counts,
    "cve_rows": _cve_rows,
    "driver": _driver,
    "first_changes": _first_changes,
    "gpus": _gpus,
    "images_json": _images_json,
    "more_changes": _more_changes,
    "pull": _bytes_to_pull,
    "runs": _run_chips,
    "short": _short,
    "version": _version,
    "size": size_text,
    "state_words": _state_words,
    "other_digests": test_runs.other_digests,
    "test_lines": test_runs.lines,
    "tested_on": _tested_on,
}
