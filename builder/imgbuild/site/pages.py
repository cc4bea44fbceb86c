"""Renders the pages of a site from the templates in `data/site`.

The output of templates is escaped, because names, reasons and summaries are texts from a matrix, a
lock or a commit. Control and format characters, such as those that reverse text, are shown as
escapes.
"""

# A separate module: Jinja.
from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jinja2
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from imgbuild.audit.binaries import gpus
from imgbuild.cves.check import CveReport, Vulnerability
from imgbuild.diagnose import codes
from imgbuild.learn.recorded import RecordedRefusal
from imgbuild.show import table, test_cases
from imgbuild.show.lock_changes import VersionChange
from imgbuild.show.page import PageImage, image_gpus
from imgbuild.site import commands, gpu_names, limits, requirements, test_runs
from imgbuild.site.browser_data import wheel_name_part
from imgbuild.site.catalogue import STACKS
from imgbuild.site.grid import gpu_results, target_state
from imgbuild.site.history import DigestChange, SiteHistory
from imgbuild.site.model import SiteCatalogue, SiteTarget
from imgbuild.smoke.records import CASES, run_summary
from imgbuild.system import files
from imgbuild.system.amounts import size_text
from imgbuild.system.control_characters import escape_control
from imgbuild.values import Arch, Bytes, Digest

TEMPLATES = files.data("site")
SCRIPTS = (
    "versions.js",
    "declared.js",
    "machine.js",
    "elements.js",
    "together.js",
    "compare.js",
    "failures.js",
    "pages.js",
)  # one file in the site, in this order
NAVIGATION = (
    ("index.html", "Images"),
    ("start.html", "Start"),
    ("matrix.html", "Matrix"),
    ("compare.html", "Compare"),
    ("tests.html", "Tests"),
    ("machine.html", "My machine"),
    ("requirements.html", "My requirements"),
    ("code.html", "My code"),
    ("together.html", "Conflicts"),
    ("failed.html", "My job failed"),
    ("changes.html", "Changes"),
    ("security.html", "Security"),
    ("terms.html", "Terms"),
)
COLUMNS = (
    ("torch", "torch"),
    ("vllm", "vLLM"),
    ("trl", "TRL"),
    ("verl", "verl"),
    ("transformers", "transformers"),
)
HEADINGS = (
    *("CUDA", "Driver from", "Python", "As of"),
    *(label for _, label in COLUMNS),
    *("Also", "Download", "Tested"),
)
RECENT = 20  # changes on the page of all changes
SHOWN_ITEMS = 10  # packages of a change; the others are folded
LISTED_ITEMS = 3  # vulnerabilities of an image
COMMENT = re.compile(r"^\s*/\*.*?\*/\s*$", re.DOTALL | re.MULTILINE)
OPEN_LINE = re.compile(r"^((?:(?! // ).)*[{,;(\[])\n", re.MULTILINE)  # continues in the next line
CSS_SPACE = re.compile(r"\s*([{};,])\s*|(?<=\w): ")
SEVERE_RATINGS = ("critical", "high")
OPTIONAL_TAGS = re.compile(r"</(?:li|dt|dd|tr|td|th|thead|tbody|option|html)>|</?(?:head|body)>\n")
# Where HTML allows to omit the end tag of a paragraph, and where a line break is not shown.
_BLOCKS = r"(?:details|div|dl|form|h[1-6]|nav|ol|p|pre|section|table|ul)\b"
PARAGRAPH_END = re.compile(rf"</p>(?=\s*<(?:{_BLOCKS}|/(?:details|div|main|section)>))")
LINE_BREAK = re.compile(
    rf"\s*\n\s*(?=</?(?:{_BLOCKS}|(?:dd|dt|li|main|option|summary|tbody|td|th|thead|tr)\b))"
)
TAG = re.compile(r"(<[a-z][^<>]*>)")
QUOTED_ATTRIBUTE = re.compile(r"(?<==)\"([\w.#:/-]*\w)\"(?=[ >])")
REFERENCE = re.compile(r" \(docs/[\w/.-]+\.md\)")


def site_pages(catalogue: SiteCatalogue, history: SiteHistory) -> Iterator[tuple[str, bytes]]:
    """Yield the contents of all pages, the style sheet and the script by path."""
    environment = _environment()
    common: dict[str, Any] = {
        "site": catalogue,
        "nav": NAVIGATION,
        "choices": _choices(catalogue),
        "refusals": _refusals_by_heading(catalogue.refusals),
        "states": {
            cell.state for row in catalogue.grid.rows for cells in row.cells for cell in cells
        },
    }
    locked = [target for target in catalogue.targets if target.lock]

    def _page(path: str, template: str, **more: object) -> tuple[str, bytes]:
        root = "../" * path.count("/")
        text = environment.get_template(template).render(**common, root=root, here=path, **more)
        return path, escape_control(_drop_optional_tags(text)).encode()

    current = [target for target in locked if not target.row.retired]
    checked = max((str(report.date) for each in locked for report in each.advisories), default="")
    yield _page(
        "index.html",
        "index.html",
        columns=COLUMNS,
        headings=HEADINGS,
        checked=checked,
        current=current,
        retired=[target for target in locked if target.row.retired],
        unlocked=[target for target in catalogue.targets if not target.lock],
    )
    for name in ("matrix", "machine", "requirements", "compare", "terms"):
        yield _page(f"{name}.html", f"{name}.html")
    yield _page("start.html", "start.html", example=current[0] if current else None)
    name = current[0].name if current else "IMAGE"
    yield _page("code.html", "code.html", name=name, frameworks=_frameworks(current))
    lacking, sections = limits.catalogue_limits(catalogue), limits.limit_sections()
    yield _page("limits.html", "limits.html", limits=lacking, checked=checked, sections=sections)
    yield _page("security.html", "security.html", current=current, checked=checked)
    jobs = _jobs(current)
    yield _page("kubernetes.html", "kubernetes.html", jobs=jobs)
    required = requirements.requirements_between(catalogue.requires)
    yield _page("together.html", "together.html", required=required)
    yield _page("failed.html", "failed.html", number=len(codes.all_failures()))
    groups = test_runs.lines_by_gpu(locked)
    failed = [line for _, lines in groups for line in lines if not line.run.good]
    failed.sort(key=lambda line: line.retired)
    yield _page("tests.html", "tests.html", groups=groups, failed=failed)
    older = max(0, sum(map(len, history.targets.values())) - RECENT)
    days = _recent_changes(catalogue, history)
    yield _page("changes.html", "changes.html", days=days, recent=RECENT, older=older)
    for target in catalogue.targets:
        number = next((n for n, names in enumerate(jobs.values(), 1) if target.name in names), 0)
        of = {"target": target, "job": number, "newer": _successor(target, locked)}
        yield _page(f"targets/{target.name}.html", "target.html", **of)
    for page, same in itertools.groupby(catalogue.debian, key=lambda each: each.page):
        lists = [*same]
        shared = set.intersection(*({*each.packages} for each in lists))
        yield _page(f"debian/{page}.html", "debian.html", lists=lists, shared=sorted(shared))
    for path, names in (("site.css", ("site.css",)), ("site.js", SCRIPTS)):
        yield path, b"".join(map(_dense_script, names))


def _successor(target: SiteTarget, locked: Sequence[SiteTarget]) -> tuple[str, Arch] | None:
    """Return the first other image in the reason for a retirement, and an architecture of both."""
    others = {each.name: each for each in locked if each.name != target.name}
    words = (word.rstrip(".") for word in re.findall(r"[\w.-]+", target.row.retired))
    named = next((word for word in words if word in others), None)
    if named is None:
        return None
    arches = [image.arch for image in target.page.images]
    shared = (each.arch for each in others[named].page.images if each.arch in arches)
    return next(((named, arch) for arch in shared), None)


def _frameworks(targets: Sequence[SiteTarget]) -> list[tuple[str, list[str], list[str]]]:
    """Return the targets of each framework, without and with accepted findings of the audit."""
    shown = []
    for stack in STACKS:
        having = [each for each in targets if stack in each.stacks]
        clean, accepted = (
            [each.name for each in having if bool(each.waivers) == known] for known in (False, True)
        )
        shown += [(stack, clean, accepted)] if having else []
    return shown


def _jobs(targets: Iterable[SiteTarget]) -> dict[str, list[str]]:
    """Return each distinct Kubernetes Job, with its targets."""
    jobs: dict[str, list[str]] = {}
    for target in targets:
        if target.lock and target.digests:
            jobs.setdefault(commands.job_text(target.lock), []).append(target.name)
    return jobs


def _drop_optional_tags(text: str) -> str:
    """Remove optional parts of HTML: end tags, quotes, escapes, and line breaks between blocks.

    Text between tags remains the same, because "<" is escaped in it.
    """
    short = LINE_BREAK.sub("", PARAGRAPH_END.sub("", OPTIONAL_TAGS.sub("", text)))
    parts = TAG.split(short)
    parts[::2] = [part.replace("&gt;", ">").replace("&#39;", "'") for part in parts[::2]]
    parts[1::2] = [QUOTED_ATTRIBUTE.sub(r"\1", tag) for tag in parts[1::2]]
    return "".join(parts)


def _dense_script(name: str) -> bytes:
    """Remove comments, indentation and line ends from a script, and spaces from a style sheet."""
    text = COMMENT.sub("", (TEMPLATES / name).read_text(encoding="utf-8"))
    if name.endswith(".css"):
        return CSS_SPACE.sub(lambda match: match[1] or ":", text).encode()
    lines = (line.strip() for line in text.splitlines())
    dense = "".join(f"{line}\n" for line in lines if line and not line.startswith("//"))
    return OPEN_LINE.sub(r"\1", dense).encode()


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    names = test_cases.case_names()
    tiers = [(tier, text, names[tier]) for tier, text in CASES.items()]
    environment.globals |= {"tiers": tiers, "shown_changes": SHOWN_ITEMS}
    return environment


def _refusals_by_heading(
    refusals: Iterable[RecordedRefusal],
) -> list[tuple[str, list[RecordedRefusal]]]:
    """Group refusals by heading."""
    headings = {
        "refused update": "Newer versions that were tried and rejected",
        "learned constraint": "Constraints learned from the code",
        "known incompatibility": "Known incompatibilities",
        "accepted finding": "Findings that are accepted for an image",
        "matrix": "Decisions in the matrix",
    }
    groups: dict[str, list[RecordedRefusal]] = {source: [] for source in headings}
    for refusal in refusals:
        groups[refusal.source].append(refusal)
    return [(headings[source], entries) for source, entries in groups.items() if entries]


def _recent_changes(
    catalogue: SiteCatalogue, history: SiteHistory
) -> list[tuple[str, list[tuple[str, DigestChange, str]]]]:
    """Return the days with the latest changes, with names of targets and links to pages."""
    present = {target.name for target in catalogue.targets}
    changes = [
        (name, change, f"targets/{name}.html" if name in present else "")
        for name, entries in history.targets.items()
        for change in entries
    ]
    changes.sort(key=lambda entry: (entry[1].date, entry[0]), reverse=True)
    days = itertools.groupby(changes[:RECENT], key=lambda entry: entry[1].date[:10])
    return [(day, [*entries]) for day, entries in days]


def _choices(catalogue: SiteCatalogue) -> dict[str, Any]:
    """Return the choices of filters, which are values of images."""
    targets = [target for target in catalogue.targets if target.lock]
    data = gpus.load_drivers()
    tested = {
        name
        for target in targets
        for image in target.page.images
        for name in gpu_results(image.runs).passed
    }
    models = gpu_names.gpu_name_table()["models"]
    return {
        "stacks": [stack for stack in STACKS if any(stack in each.stacks for each in targets)],
        "cuda": sorted({target.row.cuda for target in targets}, key=gpus.version_numbers),
        "arches": sorted({str(arch) for target in targets for arch in target.row.arch}),
        "pythons": sorted(
            {each.row.python for each in catalogue.targets}, key=gpus.version_numbers
        ),
        "images": [
            (target.name, str(image.arch), bool(target.row.retired))
            for target in targets
            for image in target.page.images
        ],
        "tested": sorted(tested, key=lambda name: (name[0].isdigit(), name)),
        "runs": _runs_by_gpu(targets, models),
        "gpus": [(each["capability"], each["arch"], each["name"].split(", ")) for each in models],
        "models": models,
        "releases": [
            {
                "cuda": release.cuda,
                "oldest": data.oldest_driver(release.cuda),
                "own": data.release_driver(release.cuda),
            }
            for release in data.releases
        ],
    }


def _runs_by_gpu(
    targets: Sequence[SiteTarget], models: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """For each type of GPU, the current images that run on it, sorted by oldest driver."""
    images = [
        (image, target.name)
        for target in targets
        if not target.row.retired
        for image in target.page.images
        if image.driver
    ]
    rows: dict[str, dict[str, Any]] = {}
    for model in models:
        able: dict[str, dict[str, list[Arch]]] = {}
        for image, name in images:
            if model["capability"] in (*image.gpu, *image.gpu_ptx) and model["arch"] in (
                "",
                image.arch,
            ):
                able.setdefault(image.driver, {}).setdefault(name, []).append(image.arch)
        drivers = [
            (
                driver,
                [
                    (name, _other_arch(arches, model["arch"]))
                    for name, arches in able[driver].items()
                ],
            )
            for driver in sorted(able, key=gpus.version_numbers)
        ]
        same = rows.setdefault(repr(drivers), {"gpus": [], "drivers": drivers})
        same["gpus"].append(f"{model['name']} ({model['capability']})")
    return [*rows.values()]


def _other_arch(arches: Sequence[Arch], bound: str) -> str:
    """The architecture to show next to an image, unless the GPU is `bound` to a processor."""
    return "" if bound or Arch.X86_64 in arches else ", ".join(arches)


# -- filters


def _version(target: SiteTarget, package: str) -> str:
    """Return the first version of a package on the page of a target, or ""."""
    return dict(target.versions).get(package, "")


def _driver(target: SiteTarget) -> str:
    drivers = dict.fromkeys(image.driver for image in target.page.images if image.driver)
    return " / ".join(drivers) or "not known"


def _run_chips(images: Sequence[PageImage]) -> list[dict[str, str]]:
    """Describe the tested types of GPU, failures and missing tests for each architecture."""
    chips: dict[str, dict[str, str]] = {}
    for image in images:
        good = [run for run in image.runs if run.good]
        results = gpu_results(image.runs)
        for state, named in (("failed", results.failed), ("gpu", results.passed)):
            for name, runs in named.items():
                label, words = f"{image.arch}: {name}", "; ".join(map(run_summary, runs))
                chips[label] = {"label": label, "state": state, "words": words}
        if not any(run.gpu for run in image.runs):
            tiers = ", ".join(run.tier for run in good)
            label = f"{image.arch}: {'no GPU' if good else 'not tested'}"
            state = "cpu" if good else ""
            chips[label] = {"label": label, "state": state, "words": f"passed: {tiers or 'none'}"}
    return [*chips.values()]


def _main_first(changes: Iterable[VersionChange]) -> list[VersionChange]:
    """Move the main packages to the front. The order is otherwise unchanged."""
    return sorted(changes, key=lambda change: change.package not in table.NAMED_PACKAGES)


def _cve_rows(report: CveReport) -> list[Vulnerability]:
    """Return the severe and the accepted vulnerabilities, at most LISTED_ITEMS."""
    rows = [
        each for each in report.vulnerabilities if each.severity in SEVERE_RATINGS or each.accepted
    ]
    return rows[:LISTED_ITEMS]


def _same_reports(reports: Sequence[CveReport]) -> list[tuple[str, CveReport]]:
    """Return the reports of a target, with their architectures. Equal reports are combined."""
    alike: dict[tuple[object, ...], list[CveReport]] = {}
    for report in reports:
        rows = [(each.id, each.package, each.version) for each in report.vulnerabilities]
        alike.setdefault((report.date, report.sources, *rows), []).append(report)
    return [(" and ".join(each.arch for each in same), same[0]) for same in alike.values()]


def _cve_counts(report: CveReport) -> str:
    counts: dict[str, int] = {}
    for each in report.vulnerabilities:
        counts[each.severity] = counts.get(each.severity, 0) + 1
    return ", ".join(f"{number} {name}" for name, number in counts.items()) or "none known"


def _short_digest(digest: Digest) -> str:
    return f"sha256:{table.short_digest(digest)}"


def _prose(text: str, source: str) -> Markup:
    """Convert a text of the matrix. References to pages become links if `source` is set."""
    if not source:
        return escape(REFERENCE.sub("", text))
    pieces = re.split(r"(docs/[\w/.-]+\.md)", text)
    linked = (
        Markup('<a href="{}/blob/HEAD/{}">{}</a>').format(source, piece, piece)
        if number % 2
        else escape(piece)
        for number, piece in enumerate(pieces)
    )
    return Markup().join(linked)


def _command_markup(text: str) -> Markup:
    """Mark the values in a command that readers choose (see `commands`)."""
    count = Markup("<b class=g>8</b>")
    place = Markup("<b class=r>REGISTRY/REPOSITORY</b>")
    image = Markup("<b class=i>IMAGE</b>")
    plain = _restore_quotes(str(escape(text)))
    marks = ((commands.GPUS, count), (commands.REPOSITORY, place), (commands.IMAGE, image))
    for mark, element in marks:
        plain = plain.replace(mark, element)
    return plain


def _push_commands(target: SiteTarget) -> str:
    """Commands to push a target to the reader's own repository, and to pull it by digest."""
    push = f"imgbuild push {shlex.quote(target.name)} {commands.REPOSITORY}"
    return f"{push}\ndocker pull {commands.REPOSITORY}@{target.page.digest}"


def _markdown(text: str) -> Markup:
    """Convert Markdown to HTML, with headings one level lower. HTML and links remain text."""
    parser = MarkdownIt("zero").enable(["heading", "list", "code", "backticks"])
    tokens = parser.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 1, 6)}"
    # The parser passes no HTML of the text, and these rules make no attributes.
    html = parser.renderer.render(tokens, parser.options, {})
    return _restore_quotes(html.replace("<h3>Known issues<", '<h3 id="issues">Known issues<'))


def _restore_quotes(escaped: str) -> Markup:
    """Restore escaped quotes in text, where they need no escapes outside of attributes."""
    text = re.sub("&#34;|&quot;", '"', escaped).replace("&#39;", "'")
    return Markup(text)  # noqa: S704 - escaped


def _megabytes(size: Bytes) -> str:
    """Format a size in MB without the unit, such as "542.9", or "-" for 0."""
    return f"{size / 1e6:,.1f}" if size else "-"


def _flash_attn_wheels(target: SiteTarget) -> list[tuple[Arch, str]]:
    """A part of the name of wheels that any user can add to the image, by architecture."""
    lock = target.lock
    if target.row.retired or not lock or not lock.settings.readme:
        return []
    arches = [arch for arch in sorted(lock.arch) if "flash-attn" not in lock.arch[arch].versions]
    return [(arch, part) for arch in arches if (part := wheel_name_part(target, arch))]


def _state_words(target: SiteTarget) -> str:
    return f"It is {target_state(target)[1]}."


def _also_packages(target: SiteTarget) -> list[str]:
    """Return the pins without a column, and other main packages."""
    columns = {package for package, _ in COLUMNS}
    pins = {name: version for name, version in target.row.pins.items() if name not in columns}
    pinned = table.other_pins(msgspec.structs.replace(target.row, pins=pins))
    others = (
        f"{package.name} {package.versions[0]}"
        for package in target.packages
        if package.name in target.stacks and package.name not in {*columns, *pins}
    )
    return [*filter(None, (*pinned.split(", "), *others))]


FILTERS: Mapping[str, Callable[..., object]] = {
    "also": _also_packages,
    "chosen": _command_markup,
    "main_first": _main_first,
    "markdown": _markdown,
    "prose": _prose,
    "push": _push_commands,
    "standing": test_runs.test_summary,
    "cve_counts": _cve_counts,
    "cve_rows": _cve_rows,
    "same_reports": _same_reports,
    "driver": _driver,
    "flash_attn_wheels": _flash_attn_wheels,
    "gpus": image_gpus,
    "mb": _megabytes,
    "runs": _run_chips,
    "short": _short_digest,
    "version": _version,
    "size": size_text,
    "state_words": _state_words,
    "other_digests": test_runs.other_digests,
    "skip_groups": test_cases.skip_groups,
    "test_lines": test_runs.test_lines,
}
