"""What all tests share. Life of a test:

- `tests/unit`: no process, no network but this machine's own, a cache of its own, 60 seconds.
- anything else is free; `network` and `disk` marks are checked here, before the test starts, and
  engines by the test itself, through `tests.support.needs`.
- several processes share the work (`make test`): a file of integration tests stays with one of
  them, and so do all tests that need room for a whole image, which are the first to start. Files
  with a test that asks for much time come next, so that no process ends long before another.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support import needs, schedule

# No test is judged by its time: another process may keep the machine busy.
hypothesis.settings.register_profile("imgbuild", deadline=None)
hypothesis.settings.load_profile("imgbuild")

# A shell's background job ignores interrupts, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

UNIT = Path(__file__).parent / "unit"
INTEGRATION = Path(__file__).parent / "integration"
UNIT_SECONDS = 60
REMEDY = "move it to tests/integration"
LINES, WIDTH = 40, 400  # of a failure, told when it happens; the summary has all
LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "")
PROCESSES = ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn")
NETWORK = ("socket.connect", "socket.sendto", "socket.sendmsg")
LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname")
ROOM: pytest.StashKey[set[tuple[Path, tuple[float, ...]]]] = pytest.StashKey()


class Touched(AssertionError):
    """A unit test reached for the world outside it."""


class Guard:
    """An audit hook, since it sees every way to a process or a socket; hooks cannot be removed."""

    def __init__(self) -> None:
        self.closed = False

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.closed:
            return
        if event in PROCESSES:
            message = f"a unit test started a process: {arguments[:2]}; {REMEDY}"
            raise Touched(message)
        if event in NETWORK and not _is_local(arguments[1]):
            message = f"a unit test reached for the network: {arguments[1]}; {REMEDY}"
            raise Touched(message)
        if event in LOOKUPS and not _is_local(arguments[0]):
            message = f"a unit test looked up a host: {arguments[0]!r}; {REMEDY}"
            raise Touched(message)


def _is_local(address: object) -> bool:
    """Whether a socket address, a host name or a Unix socket's path stays on this machine."""
    host = address[0] if isinstance(address, tuple) else address
    text = host.decode() if isinstance(host, bytes) else str(host or "")
    return text in LOCAL or text.startswith(("/", "\0"))


GUARD = Guard()
sys.addaudithook(GUARD)


class AtOnce:
    """Tells a failure when it happens: a run that is killed has no summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.terminal.ensure_newline()
            self.terminal.write_sep("-", f"{report.nodeid} failed ({report.when})", red=True)
            for line in report.longreprtext.splitlines()[-LINES:]:
                self.terminal.write_line(line[:WIDTH])


@pytest.hookimpl(trylast=True)  # the terminal's own comes first
def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROOM] = set()
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:  # a process that others share the work with has none
        config.pluginmanager.register(AtOnce(terminal))


def pytest_report_header() -> str | None:
    return None if needs.long() else "long tests: left out; IMGBUILD_LONG=1 runs them"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> schedule.Turns:
    return schedule.Turns(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not needs.long():
        config.hook.pytest_deselected(items=[one for one in items if _is_long(one)])
        items[:] = [one for one in items if not _is_long(one)]
    for item in items:
        if item.path.is_relative_to(UNIT) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(UNIT_SECONDS))
    items.sort(key=_turn)


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def _turn(item: pytest.Item) -> tuple[bool, bool, float]:
    """When its turn comes: after unit tests, whole images first, then what takes long."""
    if not item.path.is_relative_to(INTEGRATION):
        return False, False, 0
    path = item.path.relative_to(schedule.ROOT).as_posix()
    return True, schedule.room(path) < schedule.WHOLE_IMAGE, -schedule.patience(path)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("network"):
        needs.network()
    for mark in item.iter_markers("disk"):
        room = (item.path, mark.args)
        if room not in item.config.stash[ROOM]:  # the first test of a file fills it for the others
            needs.disk(*mark.args)
            item.config.stash[ROOM].add(room)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where skipping is not allowed, every skip is a failure, whoever asked for it.

    But for lack of room on a disk that is known to be small.
    """
    report = yield
    allowed = needs.small_disk() and no_room(report)
    if report.skipped and not hasattr(report, "wasxfail") and needs.strict() and not allowed:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: skipping is not allowed here: {report.longreprtext}"
    return report


# What the user's surroundings may say to imgbuild, and not to a unit test.
OTHERS = (
    "NO_COLOR", "FORCE_COLOR", "SOURCE_DATE_EPOCH", "IMGBUILD_MIRROR", "IMGBUILD_CACHE_SIZE",
)  # fmt: skip


def no_room(report: pytest.TestReport | pytest.CollectReport) -> bool:
    """Whether a disk was too full for a test that was skipped; its reason says so at its end."""
    told = report.longrepr
    return isinstance(told, tuple) and told[2].endswith(needs.ROOM)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A run that is green because tests found no room says how many."""
    skipped = terminalreporter.stats.get("skipped", [])
    if count := sum(map(no_room, skipped)):
        tests = "1 test" if count == 1 else f"{count} tests"
        terminalreporter.write_sep("=", f"{tests} found no room and did not run", yellow=True)


@pytest.fixture(autouse=True)
def _alone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Close the world to a unit test and give it a cache of its own."""
    if not request.path.is_relative_to(UNIT):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMGBUILD_CACHE", str(tmp_path_factory.getbasetemp() / f"cache-{os.getpid()}"))
        # The user's own mirror and certificates are nobody's here.
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config"))
        for name in OTHERS:
            patch.delenv(name, raising=False)
        GUARD.closed = True
        try:
            yield
        finally:
            GUARD.closed = False
