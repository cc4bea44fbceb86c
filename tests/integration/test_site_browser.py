"""Tests the content, forms, copy buttons and accessibility of the site in Debian's Chromium.

The pages show this repository; `test_site_answers.py` tests the results of forms.
"""

from __future__ import annotations

import functools
import html.parser
import http.server
import json
import os
import subprocess
import threading
import urllib.parse
from pathlib import Path

import pytest
import yaml

from tests.support import prepared_program
from tests.support.browser import Browser, axe
from tests.support.site_window import ROOT, open_form, open_page, site, window

__all__ = ["site", "window"]  # fixtures
VIEWS = ((360, False), (800, True), (1200, False), (1600, False))  # width, dark
SAMPLE = (
    "targets/cu130-verl0.9.html", "index.html", "matrix.html", "machine.html", "together.html",
    "tests.html", "compare.html", "terms.html", "requirements.html",
    "changes.html", "targets/cu130-flashinfer.html", "debian/debian-12-tools.html",
    "kubernetes.html", "failed.html", "start.html", "code.html", "limits.html", "security.html",
)  # fmt: skip
# With forms and tables; most other pages have only text.
FORMS = ("index.html", "matrix.html", "machine.html", "failed.html", "targets/cu124-vllm.html")


# -- every page


@pytest.mark.parametrize("page", SAMPLE)
def test_pages_fit_each_screen_width_without_errors(site: Path, window: Browser, page: str) -> None:
    window.log()
    open_page(window, site / page)
    for width, dark in VIEWS:
        window.view(width, dark=dark)
        assert window.run("return document.documentElement.scrollWidth") <= width
        colour = window.run("return getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, colour[4:-1].split(","))) < 300) == dark
    assert window.log() == []


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page in FORMS else pytest.mark.long)
        for page in (*SAMPLE[1:], "targets/cu124-vllm.html")
    ],
)
def test_axe_reports_no_accessibility_problems(site: Path, window: Browser, page: str) -> None:
    source = axe()
    for width, dark in ((360, False), (1600, True)) if page in SAMPLE[:3] else ((1600, True),):
        window.view(width, dark=dark)
        open_page(window, site / page)
        window.run("document.querySelectorAll('details').forEach(each => each.open = true)")
        window.run(source)
        violations = window.run(
            "return axe.run().then(found => found.violations.map("
            "each => each.id + ': ' + each.nodes.map(node => node.html).join(' ')))"
        )
        assert violations == []


def test_axe_reports_an_injected_accessibility_problem(site: Path, window: Browser) -> None:
    """This test ensures that the previous test can fail."""
    open_form(window, site, "index.html")
    window.run("document.querySelector('form label').replaceWith(document.createElement('select'))")
    window.run(axe())
    found = window.run("return axe.run().then(found => found.violations.map(each => each.id))")
    assert "select-name" in found


class Links(html.parser.HTMLParser):
    """The links and the IDs of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.values: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += [value for key in ("href", "src") if (value := values.get(key))]
        self.ids |= {value for key in ("id",) if (value := values.get(key))}
        self.values |= {value for key in ("value",) if (value := values.get(key))}


def test_states_in_the_matrix_differ_and_empty_cells_are_visible(
    site: Path, window: Browser
) -> None:
    for dark in (False, True):
        window.view(1200, dark=dark)
        open_page(window, site / "matrix.html")
        for kind in ("chip", "cell"):
            looks = window.run(
                "return ['gpu', 'failed', 'untested', 'unlocked', 'retired'].map(state => {"
                " const style = getComputedStyle("
                "  document.querySelector(`.${arguments[0]}.${state}`));"
                " return [style.backgroundColor, style.borderTopStyle].join() })",
                kind,
            )
            assert len({*looks}) == len(looks), looks
        text, page = window.run(
            "return [getComputedStyle(document.querySelector('.empty')).color,"
            " getComputedStyle(document.body).backgroundColor]"
        )
        assert contrast(text, page) >= 4.5


def contrast(*colours: str) -> float:
    """The contrast of two colours such as "rgb(1, 2, 3)", as defined in WCAG 2."""
    dark, light = sorted(
        sum(
            weight * (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
            for weight, value in zip(
                (0.2126, 0.7152, 0.0722),
                (int(each) / 255 for each in colour[4:-1].split(",")),
                strict=True,
            )
        )
        for colour in colours
    )
    return (light + 0.05) / (dark + 0.05)


def test_links_of_the_site_are_valid(site: Path) -> None:
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            place, _, fragment = link.partition("#")
            target = (path.parent / place).resolve() if place else path
            if link.startswith("data:"):
                continue
            filled = urllib.parse.parse_qsl(fragment)  # values of the form of that page
            known = {*pages[target].ids, *pages[target].values} if target in pages else set()
            wanted = {value for _, value in filled} or {fragment} - {""}
            if not target.is_file() or not wanted <= known:
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []
    assert sum(len(page.links) for page in pages.values()) > 500


# -- without a script


def test_pages_work_without_javascript(site: Path, window: Browser) -> None:
    window.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        open_form(window, site, "index.html")
        assert window.texts("form") == window.texts("button") == []
        assert "cu130-verl0.9" in window.texts("#current tbody th a")
        open_form(window, site, "machine.html")
        assert "The comparison needs a script" in window.texts("noscript")[0]
        assert "580.65.06" in window.texts("td")
        rows = {text for text in window.texts(".by-gpu tr") if "A100" in text}
        assert any("525.60.13" in row and "cu124-vllm0.8.5" in row for row in rows)
        open_form(window, site, "together.html")
        window.devtools("Emulation.setScriptExecutionDisabled", value=False)
        required = window.run("return document.querySelector('.required').textContent")
        assert "torch==2.7.0" in required
        window.devtools("Emulation.setScriptExecutionDisabled", value=True)
        open_form(window, site, "tests.html")
        rows = {text for text in window.texts(".tests tr") if text.startswith("cu130-ray")}
        assert any("passed" in row and "H100" in row for row in rows)
    finally:
        window.devtools("Emulation.setScriptExecutionDisabled", value=False)


# -- the table


@pytest.mark.parametrize(
    ("fields", "has", "lacks"),
    [
        ({"driver": "535", "gpu": "A100"}, "cu128-vllm", "cu130-vllm"),
        ({"gpu": "GH200"}, "cu130-ray", "cu128-vllm"),
        ({"driver": "abc", "stack": "verl"}, "cu130-verl0.9", "cu124-vllm"),
        ({"packages": "verl, vllm>=0.11", "arch": "arm64"}, "cu130-verl0.9", "cu128-verl0.6"),
        ({"tested": "H100"}, "cu130-ray", "cu130-vllm"),
        ({"tested": "H100", "arch": "x86_64"}, "cu130-ray", "cu130-vllm"),
        ({"packages": "transformers>=5.20"}, "cu130-vllm0.33.0", "cu130-verl0.9"),
        ({"packages": "llguidance, tilelang"}, "cu130-verl0.9", "cu124-vllm"),
        ({"packages": "vllm, cuda 12.6"}, "cu126-vllm", "cu128-vllm"),
        ({"packages": "torch==2.8.0+cu128"}, "cu128-verl0.6", "cu126-vllm"),
        ({"stack": "sglang"}, "cu130-sglang0.5.23", "cu130-vllm"),
        ({"cuda": "12.6"}, "cu126-vllm", "cu128-vllm"),
        ({"until": "2025-10-31"}, "cu124-vllm", "cu130-vllm"),
        ({"python": "3.13"}, "cu130-vllm0.33.0", "cu130-vllm"),
        ({"driver": "580.64"}, "cu128-vllm", "cu130-vllm"),
        ({"driver": "580.65.06"}, "cu130-vllm", "nothing"),
    ],
)
def test_filters_of_the_catalogue_hide_rows(
    site: Path, window: Browser, fields: dict[str, str], has: str, lacks: str
) -> None:
    open_form(window, site, "index.html", **fields)
    names = window.texts("#current tbody th a")
    assert has in names
    assert lacks not in names
    assert window.texts("#count")[0].startswith(f"{len(names)} of ")


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        ({"driver": "abc"}, "#count", "“abc” is not a driver"),
        ({"driver": "12.4"}, "#count", "12.4 looks like a CUDA release"),
        ({"packages": "foo bar"}, "#count", "Not understood: foo bar"),
        (
            {"packages": "vllm, cudaa 12.4"},
            "#count",
            "No image has a package with this name: cudaa",
        ),
        ({"python": "3.12"}, "#rows", "without an image: cu130-vllm0.33.0-py312"),
        ({"gpu": "GH200", "tested": "H100"}, "#none", "No image matches"),
    ],
)
def test_catalogue_filters_without_a_result_show_the_reason(
    site: Path, window: Browser, fields: dict[str, str], place: str, words: str
) -> None:
    open_form(window, site, "index.html", **fields)
    assert words in window.texts(place)[0]
    if place == "#rows":
        open_form(window, site, "index.html", **fields, arch="arm64")  # planned for x86_64 alone
        assert window.texts(place) == []


def test_cleared_catalogue_filter_shows_all_rows(site: Path, window: Browser) -> None:
    open_form(window, site, "index.html")
    every = window.texts("#current tbody th a")
    window.type("[name=packages]", "no-such-package")
    assert window.texts("#current tbody th a") == []
    assert window.texts("#none") != []
    assert "packages=no-such-package" in window.run("return location.hash")
    window.type("[name=packages]", "")
    assert window.texts("#current tbody th a") == every
    assert window.run("return location.hash") == ""


def test_catalogue_can_be_sorted_by_download_size(site: Path, window: Browser) -> None:
    open_form(window, site, "index.html")
    every = window.texts("#current tbody th a")
    open_form(window, site, "index.html", order="size", packages="trl")
    sizes = window.run(
        "return [...document.querySelectorAll('#current tbody tr:not([hidden]) a')]"
        ".map(link => window.imgbuildData.images.find(image =>"
        " window.imgbuildData.targets[image.target].name === link.textContent).size)"
    )
    assert sizes == sorted(sizes)
    open_form(window, site, "index.html", order="size")
    assert window.texts("#count")[0] == f"{len(every)} images"
    open_form(window, site, "index.html")
    assert window.texts("#current tbody th a") == every


def test_copy_buttons_copy_the_shown_commands(site: Path, window: Browser) -> None:
    open_form(window, site, "targets/cu124-vllm.html")
    copied = window.run(
        """
        let text = '';
        document.execCommand = () => { text = document.activeElement.value; return true; };
        Object.defineProperty(navigator, 'clipboard', {value: undefined, configurable: true});
        const button = document.querySelector('.code:has([data-copy=Docker]) button');
        button.click();
        return new Promise(done => setTimeout(() => done([text, button.textContent]), 0));
        """
    )
    digest = json.loads((ROOT / "images/cu124-vllm/digests.json").read_text())["digest"]
    assert copied[0].startswith(f"docker pull registry.example/owner/images@{digest}\n")
    assert copied[1] == "Copied"
    window.run("document.querySelectorAll('details').forEach(each => each.open = true)")
    buttons = window.run("return document.querySelectorAll('button.copy').length")
    assert buttons == len(window.texts("[data-copy]"))


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("ray STORE", "IMG1002 Ray cannot allocate its object store"),
        (
            (
                'Traceback\n  File "x.py"\ntorch.OutOfMemoryError: CUDA out of memory. Tried to'
                " allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"
            ),
            "IMG520 The GPU ran out of memory",
        ),
        ("CUDA error: no kernel image is available", "IMG504 The wheels have no code for this GPU"),
        ("TypeError: f() got an unexpected keyword argument 'x'", "IMG904 An argument that"),
        ("xyzzy-qwxz", ""),
    ],
)
def test_error_text_finds_known_failures(
    site: Path, window: Browser, text: str, first: str
) -> None:
    open_form(window, site, "failed.html")
    window.type("[name=words]", text)
    window.run(
        "const answer = document.getElementById('answer'); return new Promise(done => {"
        " const wait = () => answer.children.length ? done() : setTimeout(wait, 20); wait(); })"
    )
    found = window.texts("#answer li")
    assert found[0].startswith(first) if first else found == []
    links = window.run("return [...document.querySelectorAll('#answer a')].map(each => each.href)")
    assert [link.rpartition("=")[2] for link in links] == [f"{line.split()[0]}:" for line in found]
    assert "IMG904: An argument" in (site / "failures.txt").read_text("utf-8-sig")
    assert window.run("return location.hash") == ""


def test_served_page_shows_cause_and_new_name_of_a_failure(site: Path, window: Browser) -> None:
    """A page that is opened as a file cannot read the causes, and links to them."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        window.log()
        open_page(window, f"http://127.0.0.1:{server.server_port}/failed.html")
        window.type("[name=words]", "T.__init__() got an unexpected keyword argument 'tokenizer'")
        window.run(
            "const answer = document.getElementById('answer'); return new Promise(done => {"
            " const wait = () => answer.querySelector('li p') ? done() : setTimeout(wait, 20);"
            " wait(); })"
        )
        told = window.texts("#answer li p")
        window.type(
            "[name=words]", "cannot import name 'GuidedDecodingParams' from 'vllm.sampling_params'"
        )
        window.run(
            "const answer = document.getElementById('answer'); return new Promise(done => {"
            " const wait = () => answer.textContent.includes('Images with') ? done()"
            " : setTimeout(wait, 20); wait(); })"
        )
        server.shutdown()
    (images,) = [
        words for words in window.texts("#answer li p") if words.startswith("Images with vllm")
    ]
    assert "cu128-vllm0.10.2" in images
    assert "cu130" not in images
    assert told[0].startswith("A call passes a keyword that the function or class does not accept")
    assert told[1:] == ["New names: tokenizer is processing_class in transformers, trl."]
    assert window.log() == []


def test_machines_of_two_architectures_are_compared_one_by_one(site: Path, window: Browser) -> None:
    open_form(window, site, "machine.html", machine="RTX 5090, GH200, driver 580.95.05")
    both = window.texts(".verdict + p a")
    read = window.texts(".machine-read")
    assert [words.partition(" (")[0] for words in read] == ["Compared: RTX 5090", "Compared: GH200"]
    assert "cu130-vllm0.33.0" in both
    assert "cu128-vllm" not in both  # x86_64 alone
    fits = window.run(
        "return [...document.querySelectorAll('[data-state=fits]')]"
        ".map(each => each.dataset.target)"
    )
    assert {name for name in fits if fits.count(name) == 2} >= set(both)


# -- untrusted texts


def test_hostile_texts_on_pages_are_escaped_in_the_browser(window: Browser, tmp_path: Path) -> None:
    """Summaries, reasons and commit messages have HTML, quotes and scripts."""
    evil = "<script>window.pwned=1</script><img src=x onerror=window.pwned=1>\"'`{{ 7*7 }}</title>"
    project = tmp_path / "project"
    (project / "images").mkdir(parents=True)
    for name in ("cu124-vllm", "cu126-vllm"):
        subprocess.run(["cp", "-r", ROOT / "images" / name, project / "images"], check=True)
    matrix = yaml.safe_load((ROOT / "matrix.yaml").read_text())
    matrix["targets"] = {name: matrix["targets"][name] for name in ("cu124-vllm", "cu126-vllm")}
    matrix["layers"]["named"] = ["vllm", "trl"]
    matrix["targets"]["cu124-vllm"] |= {"summary": evil, "tested": evil, "exclude": {"arm64": evil}}
    matrix["targets"]["cu126-vllm"]["retired"] = evil
    matrix["accept_cves"] = [{"id": "CVE-1", "reason": evil, "expires": "2027-01-01"}]
    (project / "matrix.yaml").write_text(json.dumps(matrix, default=str))
    output = tmp_path / "out"
    words = ("site", "--output", str(output), "--title", evil, "--matrix", str(project))
    done = prepared_program.run_prepared(words, cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    window.view(360)
    for page in output.rglob("*.html"):
        open_page(window, page)
        assert window.run("return [window.pwned === undefined, document.images.length]") == [
            True,
            0,
        ]
        assert evil in window.run("return document.querySelector('header .name').textContent")
        assert "{{ 7*7 }}" in page.read_text()
        assert window.run("return document.documentElement.scrollWidth") <= 360
    open_page(window, output / "index.html")
    assert evil in " ".join(window.texts("#current .summary"))
    open_form(window, output, "requirements.html", requirements=evil)
    assert window.run("return [window.pwned === undefined, document.images.length]") == [True, 0]
    assert [line for line in window.log() if "pwned" in line] == []


def test_content_security_policy_blocks_injected_scripts(site: Path, window: Browser) -> None:
    open_form(window, site, "index.html")
    added = (
        "const added = document.createElement('script'); added.textContent = 'window.pwned = 1';"
    )
    window.run(f"{added} document.body.append(added)")
    window.run("document.body.setAttribute('onclick', 'window.pwned = 2'); document.body.click()")
    assert window.run("return window.pwned === undefined")
    assert any("Content Security Policy" in line for line in window.log())


# -- the first sentence of an answer


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "vllm 0.33, cuda 12.4",
            (
                "vllm 0.33.0 requires torch==2.14.0, which is built for CUDA 13.0"
                " (it requires cuda-toolkit==13.0.3), not for CUDA 12.4"
            ),
        ),
        (
            "cuda 13.0, torch 2.8.0",
            (
                "torch 2.8.0 of the images is built for CUDA 12.8 (it requires"
                " nvidia-cuda-runtime-cu12==12.8.90), not for CUDA 13.0"
            ),
        ),
        (
            "sglang 0.5.23, vllm 0.33",
            "sglang 0.5.23 requires torch==2.14.1; vllm 0.33.0 requires torch==2.14.0",
        ),
        (
            "verl 0.9.1, vllm 0.33",
            (
                "verl 0.9.1 requires transformers!=5.6.0,<5.11,>=5.5.3; vllm 0.33.0 requires"
                " transformers<5.21.0,>=5.16.1"
            ),
        ),
        (
            "flash-attn, vllm 0.33",
            (
                "flash-attn is in no image: it is published only as source with CUDA code on the"
                " index, but images contain only wheels"
            ),
        ),
        ("torch 2.6, torchvision 0.22", "torchvision 0.22.0 requires torch==2.7.0"),
        ("cuda 12.9, torch 2.8", ""),  # a planned image, with a build of another index
        ("vllm>=0.8, torch 2.9", ""),
        ("deepspeed 0.19.3, vllm 0.8.5", ""),
    ],
)
def test_answer_about_a_conflict_begins_with_the_decisive_reason(
    site: Path, window: Browser, text: str, reason: str
) -> None:
    open_form(window, site, "together.html", versions=text)
    because = f", because {reason}" if reason else ""
    assert window.texts(".verdict") == [f"No image has these versions together{because}."]
    stops = [line for line in window.texts("#answer li") if "; the image has " in line]
    torch_lines = [line for line in stops if "torch==" in line]
    assert all("requires torch==" in line for line in torch_lines)


# -- requirements, planned and retired images, machines


def test_requirements_that_exclude_each_other_are_named(site: Path, window: Browser) -> None:
    requirements = "torch==2.13.0\nvllm==0.33.0\ntransformers==4.57.6"
    open_form(window, site, "requirements.html", requirements=requirements)
    found = window.texts("#answer > ul li")
    assert "vllm 0.33.0 requires torch==2.14.0" in found
    assert sum("tokenizers" in line for line in found) == 1  # of both packages once
    open_form(window, site, "requirements.html", requirements="torch==2.14.0\nvllm==0.33.0")
    assert "exclude each other" not in window.texts("#answer")[0]


def test_planned_rows_match_the_packages_of_the_filter(site: Path, window: Browser) -> None:
    open_form(window, site, "index.html", cuda="13.0", packages="vllm>=0.30")
    planned = window.texts("#rows")[0]
    assert "cu130-vllm0.33.0-py312" in planned
    assert "cu130-flashinfer" not in planned


def test_page_of_a_retired_image_links_to_the_comparison_with_its_successor(
    site: Path, window: Browser
) -> None:
    window.open(site / "targets/cu130-vllm0.26.0.html")
    window.run("document.querySelector('.notice a[href*=compare]').click()")
    assert "From cu130-vllm0.26.0 to cu130-vllm0.31.0" in window.texts("#answer")[0]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Jetson AGX Orin", "(8.7), and code for other GPUs does not run on a Tegra"),
        ("NVIDIA Thor", "it has no code for NVIDIA Thor (11.0)"),
        ("P100", "it has no code for P100 (6.0)"),
    ],
)
def test_machine_form_gives_the_reason_that_excludes_an_unsupported_gpu(
    site: Path, window: Browser, name: str, reason: str
) -> None:
    open_form(window, site, "machine.html", machine=f"{name}, driver 580.95.05")
    assert "(compute capability" in window.texts(".machine-read")[0]
    states = "return [...document.querySelectorAll('[data-state]')].map(each => each.dataset.state)"
    assert {*window.run(states)} == {"no"}
    assert reason in window.run("return document.getElementById('answer').textContent")
