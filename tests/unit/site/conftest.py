"""Provides the catalogue of this repository, read once."""

from __future__ import annotations

import pytest

from imgbuild.matrix import project_paths
from imgbuild.registry.image_reference import Repository
from imgbuild.site import catalogue
from imgbuild.site.catalogue import SiteSources
from imgbuild.site.model import SiteCatalogue
from tests.support.site_history import HISTORY


@pytest.fixture(scope="session")
def sources() -> SiteSources:
    return catalogue.open_sources(project_paths.catalogue_project())


@pytest.fixture(scope="session")
def example_site(sources: SiteSources) -> SiteCatalogue:
    """The catalogue with a registry and a short history."""
    repository = Repository("registry.example", "owner/images")
    return catalogue.read_catalogue(sources, repository, HISTORY)
