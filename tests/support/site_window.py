"""Opens the site of this repository in Chromium and reads its data."""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import prepared_program
from tests.support.browser import Browser, browser
from tests.support.site_scripts import read_packed

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this repository, with a registry."""
    output = tmp_path_factory.mktemp("site") / "site"
    words = (
        "site",
        "--output",
        str(output),
        "--registry",
        "registry.example/owner/images",
        "--json",
    )
    done = prepared_program.run_prepared(words, cwd=ROOT, env=os.environ)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert numbers["bytes"] < 1_000_000
    assert numbers["largest"] <= 100_000
    return output


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


# Shows `fields` in an open form, as a link to the same page does. False if it is another page.
SHOW = """
    const [page, fields] = arguments, given = new URLSearchParams();
    if (window.openedForm !== page) return false;
    for (const field of document.querySelectorAll('form [name]')) {
        const options = [...field.options ?? []];
        const first = options.find(each => each.defaultSelected) ?? options[0];
        given.set(field.name, fields[field.name] ?? (first ? first.value : field.defaultValue));
    }
    if (location.hash === `#${given}`) return true;
    return new Promise(done => {
        addEventListener('hashchange', () => setTimeout(() => done(true), 0), { once: true });
        location.hash = given;
    });
"""


def open_form(window: Browser, place: Path, page: str, **fields: str) -> None:
    """Open a page with a filled form, like a link to a result.

    The page is not loaded again if it is already open because of a call with fields.
    """
    window.view(1600)
    address = (place / page).as_uri()
    if not fields:
        open_page(window, address)
    elif not window.run(SHOW, address, fields):
        open_page(window, f"{address}#{urllib.parse.urlencode(fields)}")
        window.run("window.openedForm = arguments[0]", address)


def open_page(window: Browser, page: Path | str) -> None:
    """Open a page, and wait until its scripts have read their data."""
    window.open(page)
    if window.run("return Boolean(window.imgbuildStarted)"):  # not without JavaScript
        window.run("return window.imgbuildStarted.then(() => null)")


def browser_data(place: Path) -> dict[str, Any]:
    """The data for browsers, with expanded sets of images and requirements."""
    return dict(read_packed((place / "data.js").read_bytes()))
