"""Implements `imgbuild site`, which writes the targets of the matrix as static pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from imgbuild.cli._help import create_command
from imgbuild.cli._options import OUTPUT_PATH, REGISTRY_PLACE
from imgbuild.cli._output import format_count, print_result, size_text
from imgbuild.cli._targets import MatrixFile
from imgbuild.cli._verb import create_verb, option
from imgbuild.errors import InputError
from imgbuild.pipeline.opened import open_project
from imgbuild.registry import image_reference
from imgbuild.registry.image_reference import Repository
from imgbuild.site import catalogue, history, write
from imgbuild.system.console import console

SOURCE = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._~/-]*)?")


Output = Annotated[
    Path | None,
    OUTPUT_PATH(
        "The folder must be missing, be empty, or contain a site written by imgbuild. "
        "Default: build/site."
    ),
]
Registry = Annotated[
    str | None,
    REGISTRY_PLACE(
        "The pages show commands to pull images from this repository. Default: `registry` in "
        "the matrix."
    ),
]
Past = Annotated[
    Path | None,
    option(
        "--history-file",
        "The history.json of a site generated earlier, used if the git history is incomplete or "
        "absent.",
        metavar="FILE",
        often=True,
    ),
]
Cves = Annotated[
    Path | None,
    option(
        "--cves",
        "Show the vulnerabilities in this file, which is the output of `imgbuild cves --all "
        "--json`.",
        metavar="FILE",
        often=True,
    ),
]
Documents = Annotated[
    bool,
    option(
        "--documents", "Also write locks and SBOMs, and link to them from the pages.", often=True
    ),
]
Title = Annotated[
    str,
    option(
        "--title",
        "The title of the site. Default: the name of the repository in --registry.",
        metavar="TEXT",
    ),
]
Source = Annotated[
    str,
    option(
        "--source",
        "The URL of the source repository, for links on the pages.",
        metavar="URL",
    ),
]


@create_verb
def site(
    output: Output = None,
    matrix: MatrixFile = None,
    registry: Registry = None,
    past: Past = None,
    cves: Cves = None,
    documents: Documents = False,
    title: Title = "",
    source: Source = "",
) -> None:
    """Generate a static website for the targets in the matrix.

    Each target has a page with its versions, digests, layers, tests by GPU, differences from
    similar targets, vulnerabilities, history, and commands to copy. Other pages show the whole
    matrix as a diagram and as a table with filters, and have forms for finding targets for a
    machine or a requirements.txt, comparing two images, and explaining why versions cannot be
    combined. The forms run in the browser, and the pages need no server. In a git checkout, the
    history comes from images/TARGET/digests.json.

    The output folder is replaced. HTML in --title and in texts from the matrix is escaped.

    Examples:

        imgbuild site --output site

        imgbuild site --output site --registry ghcr.io/OWNER/REPOSITORY --documents

        imgbuild site --cves cves.json
    """
    if source and not SOURCE.fullmatch(source):
        message = f"--source {source!r} is not a web page URL"
        raise InputError(message, hint="specify a URL such as https://github.com/OWNER/REPOSITORY")
    project = open_project(matrix, [])
    place = output.absolute() if output is not None else project.output_path("build/site")
    write.require_replaceable(place)
    sources = catalogue.open_sources(project)
    repository = _repository(registry or sources.matrix.registry)
    collected = history.collect_history(history.checkout_project(project))
    if past is not None:
        collected = history.merge_histories(collected, history.read_history(past))
    reports = catalogue.read_reports(cves) if cves is not None else ()
    with console.step("writing the site"):
        site_catalogue = catalogue.read_catalogue(
            sources,
            repository,
            collected,
            reports,
            title=title,
            source=source,
            reporter=console,
        )
        result = write.write_site(sources, site_catalogue, collected, place, documents=documents)
    numbers = (format_count(result.pages, "page"), format_count(result.targets, "target"))
    print_result(result, [f"{result.output}: {', '.join(numbers)}, {size_text(result.bytes)}"])


def _repository(text: str | None) -> Repository | None:
    """Parse the value of `--registry`. Raises InputError if it is not a repository."""
    if not text:
        return None
    try:
        return image_reference.parse_repository(text)
    except InputError as error:
        message = f"--registry {text!r}: {error.message}"
        raise InputError(
            message, hint="specify a repository such as ghcr.io/OWNER/REPOSITORY"
        ) from error


COMMAND = create_command(site)
