"""What every browser test works with: systems, browsers, fake devices. See README.md here."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.browser import media_files, sites
from tests.browser.browsers import BrowserPool
from tests.browser.problems import Problems
from tests.browser.visits import LIMIT_MS, Visits, folder_name
from tests.source_tree import ROOT
from tests.system.running import RunningSystem
from tests.system.test_browser_clients import node

SiteMaker = Callable[..., RunningSystem]

expect.set_options(timeout=LIMIT_MS)


@pytest.fixture(scope="session", autouse=True)
def built_pages() -> None:
    """Build the pages, unless they are: browsers get what a set-up would give them."""
    subprocess.run([node(), ROOT / "scripts" / "build_pages.mjs"], check=True)


# For the package, not the session: Playwright keeps an event loop running on this thread, and the
# tests of other folders want to run their own.
@pytest.fixture(scope="package")
def browsers() -> Iterator[BrowserPool]:
    """Chromium."""
    with sync_playwright() as playwright:
        pool = BrowserPool(playwright)
        try:
            yield pool
        finally:
            pool.close()


@pytest.fixture(scope="session")
def media(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What fake microphone and camera give: the files "speech" and "film"."""
    folder = tmp_path_factory.mktemp("media")
    return {
        "speech": media_files.write_speech(folder / "speech.wav", media_files.speech_16k()),
        "film": media_files.write_film(folder / "film.y4m"),
    }


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    """The real stack on the embedded model; several conversations at once."""
    with sites.real_site(tmp_path_factory.mktemp("site")) as running:
        yield running
        assert running.stop() == 0
        running.assert_nothing_left()


@pytest.fixture(scope="session")
def recording(site: RunningSystem) -> str:
    """Id of a finished recording of `site`: sound, pictures, a few units."""
    return sites.record_omni(site)


@pytest.fixture(scope="session")
def shared_sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sites.SharedSites]:
    """The systems of `shared_site`."""
    shared = sites.SharedSites(lambda: tmp_path_factory.mktemp("shared_site"))
    try:
        yield shared
    finally:
        shared.close()


@pytest.fixture
def shared_site(shared_sites: sites.SharedSites) -> SiteMaker:
    """Return a system of a configuration that other tests use too; arguments as of `make_site`.

    A test may end its programs, and leaves its settings, switches, voices and intake as they were.
    """
    return shared_sites.get


@pytest.fixture
def fake_site(shared_site: SiteMaker) -> RunningSystem:
    """Two workers of one conversation each, with the fake backend: for queues and faults."""
    return shared_site()


@pytest.fixture
def make_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteMaker]:
    """Start a system with the fake backend for one test; arguments as of `sites.fake_site`."""
    started: list[RunningSystem] = []

    def make(**given: object) -> RunningSystem:
        system = sites.fake_site(tmp_path_factory.mktemp("made_site"), **given)  # type: ignore[arg-type]
        started.append(system)
        return system.__enter__()

    try:
        yield make
    finally:
        for system in started:
            system.__exit__(None, None, None)


@pytest.fixture
def visit(
    request: pytest.FixtureRequest, browsers: BrowserPool, media: dict[str, Path]
) -> Iterator[Visits]:
    """Open pages: `visit("/omni", look=Look("zh", 360, "dark"), devices=Devices())`."""

    def default_site() -> RunningSystem:
        system: RunningSystem = request.getfixturevalue("site")
        return system

    visits = Visits(browsers, default_site, media)
    try:
        yield visits
    finally:
        visits.close()


@pytest.fixture
def problems(visit: Visits) -> Problems:
    """Announce what may go wrong in the browser: `problems.allow("HTTP 503 .*/api/queue")`."""
    return visit.problems


@pytest.fixture
def page(visit: Visits) -> Page:
    """A blank page of the real stack, English, light, 1280 px wide; `page.goto("/omni")`."""
    return visit("")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Have a test fail when something went wrong in the browser."""
    yield
    visits = _visits_of(item)
    if visits:
        visits.assert_no_problems()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep pictures and traces of a failed test while its pages are still open."""
    report = yield
    visits = _visits_of(item)
    if report.failed and visits:
        factory = item.config._tmp_path_factory  # type: ignore[attr-defined]
        folder = factory.getbasetemp() / f"failed_{folder_name(item.name)}"
        report.sections.append(("browser", visits.keep(folder)))
        unexpected = "\n".join(visits.problems.unexpected)
        if unexpected and call.when == "call":
            report.sections.append(("browser problems", unexpected))
    return report


def _visits_of(item: pytest.Item) -> Visits | None:
    found = getattr(item, "funcargs", {}).get("visit")
    return found if isinstance(found, Visits) else None
