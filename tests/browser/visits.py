"""Pages opened for a test, and what is kept of them when it fails."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import BrowserContext, Error, Page

from gateway_modules.web.security import ADMIN_HEADER
from tests.browser import devices as fake
from tests.browser.browsers import INSECURE_HOST, BrowserKind, BrowserPool
from tests.browser.devices import Devices
from tests.browser.looks import HEIGHTS_PX, LOCALES, Look
from tests.browser.problems import NETWORK_CHANGED, Problems
from tests.system.running import RunningSystem

IS_TRACED = os.environ.get("MINICPMO_TRACE") == "1"
LIMIT_MS = 120_000  # of one step; generous, for the machine may be busy
LAPTOP = Look()
WORKING = Devices()
# Drawing sixty times a second is up to half of what a page in a call computes.
FEW_FRAMES = """
    window.requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), 100);
    window.cancelAnimationFrame = clearTimeout;
"""
GRANTS = {"granted": ["microphone", "camera", "clipboard-read", "clipboard-write"]}


class Visits:
    """Opens pages; `visit` of a test is one of these.

    A call opens a page in a context of its own, so that nothing of another visit is remembered:

        page = visit("/audio_duplex", look=Look(width_px=360), devices=Devices(permission="denied"))
    """

    def __init__(
        self, pool: BrowserPool, default_site: Callable[[], RunningSystem], files: dict[str, Path]
    ) -> None:
        """Open nothing yet.

        Args:
            pool: the browsers.
            default_site: starts the system that is visited where a test names none.
            files: "speech" and "film" of the fake devices.
        """
        self.problems = Problems()
        self._pool = pool
        self._default_site = default_site
        self._files = files
        self._contexts: list[BrowserContext] = []
        self._kept = ""

    def __call__(
        self,
        path: str = "/",
        *,
        at: RunningSystem | None = None,
        look: Look = LAPTOP,
        devices: Devices = WORKING,
        storage: dict[str, str] | None = None,
        is_secure: bool = True,
        is_ready: bool = True,
        is_admin: bool = False,
    ) -> Page:
        """Open a page.

        Args:
            path: where; empty opens a blank page of a context that leads to the system.
            at: which system; None: the one with the real model.
            look: language, width, theme.
            devices: microphone and camera.
            storage: what the browser remembers from earlier, as `localStorage` has it.
            is_secure: False opens the page as if from another machine without TLS.
            is_ready: wait until the page can be used.
            is_admin: an administrator is logged in, as on the page of administration and where
                a test goes on from a blank page by itself.
        """
        context = self.context(at=at, look=look, devices=devices, is_secure=is_secure)
        is_desk = path == "" or path.startswith("/admin")
        if is_admin or is_desk:
            self._log_in(context, at or self._default_site())
        if IS_TRACED:
            context.tracing.start(screenshots=False, snapshots=True)
        if storage:
            context.add_init_script(_remembering(storage))
        page = context.new_page()
        if path:
            self._load(page, path)
            if is_ready:
                wait_until_ready(page)
        return page

    def context(
        self,
        *,
        at: RunningSystem | None = None,
        look: Look = LAPTOP,
        devices: Devices = WORKING,
        is_secure: bool = True,
    ) -> BrowserContext:
        """Make a context; its first page is not opened yet. Arguments as of a visit."""
        system = at or self._default_site()
        kind = BrowserKind(self._files["speech"], self._files["film"], devices.permission)
        url = system.url if is_secure else system.url.replace("127.0.0.1", INSECURE_HOST)
        context = self._pool.get(kind).new_context(
            base_url=url,
            viewport={"width": look.width_px, "height": HEIGHTS_PX.get(look.width_px, 800)},
            locale=LOCALES[look.lang],
            timezone_id="UTC",
            color_scheme=look.theme,
            reduced_motion="no-preference" if look.likes_motion else "reduce",
            bypass_csp=fake.needs_meter(devices),
            permissions=GRANTS.get(devices.permission, []) if is_secure else [],
        )
        context.set_default_timeout(LIMIT_MS)
        if look.draws_rarely:
            context.add_init_script(FEW_FRAMES)
        self._contexts.append(context)
        self.problems.watch(context)
        fake.install(context, devices)
        return context

    def _load(self, page: Page, path: str) -> None:
        """Load a page; again if tests of clusters have changed the network meanwhile."""
        try:
            page.goto(path)
        except Error as error:
            if NETWORK_CHANGED not in error.message:
                raise
        if self.problems.drop_network_changes():
            page.goto(path)

    def _log_in(self, context: BrowserContext, system: RunningSystem) -> None:
        """Show the token that the start made; one that a test chose is for the test to show."""
        if "admin_token" in system.plan.config.get("security", {}):
            return
        token = system.admin_headers[ADMIN_HEADER]
        context.request.post("/api/admin/login", data={"token": token})

    def assert_no_problems(self) -> None:
        """Nothing went wrong that the test did not announce."""
        unexpected = self.problems.unexpected
        assert not unexpected, "in the browser:\n" + "\n".join(unexpected)

    def keep(self, folder: Path) -> str:
        """Write a picture of every open page and the trace of every context.

        Returns:
            A sentence that says where they are.
        """
        if self._kept or not self._contexts:
            return self._kept
        folder.mkdir(parents=True, exist_ok=True)
        for number, context in enumerate(self._contexts):
            for index, page in enumerate(context.pages):
                try:
                    page.screenshot(path=folder / f"page_{number}_{index}.png", timeout=LIMIT_MS)
                except Error as error:
                    (folder / f"page_{number}_{index}.txt").write_text(str(error))
            if IS_TRACED:
                context.tracing.stop(path=folder / f"trace_{number}.zip")
        hint = "playwright show-trace FILE" if IS_TRACED else "MINICPMO_TRACE=1 keeps traces too"
        self._kept = f"pictures: {folder}  ({hint})"
        return self._kept

    def close(self) -> None:
        """Close every page."""
        for context in self._contexts:
            context.close()
        self._contexts.clear()


def wait_until_ready(page: Page) -> None:
    """Wait until the page says that it can be used."""
    page.wait_for_selector("html[data-ready=true]", state="attached")


def folder_name(node_name: str) -> str:
    """Return a test's name as a folder may be called."""
    return re.sub(r"[^\w-]+", "_", node_name)[:80].strip("_")


def _remembering(storage: dict[str, str]) -> str:
    # Once only: what the page itself remembers later must survive a reload.
    return f"""(() => {{
        if (location.origin === "null") return;  // a blank page remembers nothing
        if (sessionStorage.getItem("__test__")) return;
        sessionStorage.setItem("__test__", "remembered");
        for (const [key, value] of Object.entries({json.dumps(storage)})) {{
            localStorage.setItem(key, value);
        }}
    }})();"""
