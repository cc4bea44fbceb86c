"""Provides hooks and fixtures for all tests.

- A test in `tests/unit` has an empty cache and a time limit of 60 seconds. It may start only worker
  processes of imgbuild and connect only to this machine.
- Other tests have no such limits. The marks `network` and `disk` are checked here before a test
  starts; tests check engines themselves with `tests.support.needs`.
- `tests.support.schedule` distributes the tests over several processes.
"""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support import needs, schedule

# Another process may keep the machine busy, so no test has a deadline. Examples differ in each run.
EXAMPLES = 100 if needs.is_long_run() else 20
hypothesis.settings.register_profile("imgbuild", deadline=None, max_examples=EXAMPLES)
hypothesis.settings.load_profile("imgbuild")

# A shell's background job ignores interrupts, and nohup the end of a terminal; so would every
# process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

UNIT = Path(__file__).parent / "unit"
UNIT_SECONDS = 60
REMEDY = "move it to tests/integration"
LINES, WIDTH = 40, 400  # of a failure that is printed at once; the summary has all of it
LONG = "IMGBUILD_LONG=1 make test"
REPEATED = 6  # files with failures; where there are more, the machine's load is not the cause
LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "")
PROCESSES = ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn")
NETWORK = ("socket.connect", "socket.sendto", "socket.sendmsg")
LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname")
WORKERS = "imgbuild.system.workers"  # which verbs start to build and to read
COLLECTED: pytest.StashKey[Path] = pytest.StashKey()
ROOM: pytest.StashKey[set[tuple[Path, tuple[float, ...]]]] = pytest.StashKey()


class TouchedMachineError(AssertionError):
    """Raised if a unit test starts a process or uses the network."""


class Guard:
    """An audit hook for processes and sockets, which stays because Python cannot remove it."""

    def __init__(self) -> None:
        self.closed = False

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.closed:
            return
        if event in PROCESSES and WORKERS not in str(arguments[1]):
            message = f"a unit test started a process: {arguments[:2]}; {REMEDY}"
            raise TouchedMachineError(message)
        if event in NETWORK and not _is_local(arguments[1]):
            message = f"a unit test reached the network: {arguments[1]}; {REMEDY}"
            raise TouchedMachineError(message)
        if event in LOOKUPS and not _is_local(arguments[0]):
            message = f"a unit test looked up a host: {arguments[0]!r}; {REMEDY}"
            raise TouchedMachineError(message)


def _is_local(address: object) -> bool:
    """Whether a socket address, a host name or the path of a Unix socket is on this machine."""
    host = address[0] if isinstance(address, tuple) else address
    text = host.decode() if isinstance(host, bytes) else str(host or "")
    return text in LOCAL or text.startswith(("/", "\0"))


GUARD = Guard()
sys.addaudithook(GUARD)


class PrintFailures:
    """Prints each failure immediately, because a killed run prints no summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.terminal.ensure_newline()
            self.terminal.write_sep("-", f"{report.nodeid} failed ({report.when})", red=True)
            for line in report.longreprtext.splitlines()[-LINES:]:
                self.terminal.write_line(line[:WIDTH])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--renew-golden",
        action="store_true",
        help="write the golden files anew; runs only the tests that compare with them",
    )
    parser.addoption(
        "--repeat-failed",
        action="store_true",
        help=f"run the files with failures of the last run again, at most {REPEATED}",
    )


@pytest.hookimpl(trylast=True)  # pytest registers its terminal reporter first
def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROOM] = set()
    if (worker := getattr(config, "workerinput", None)) is not None:
        config.stash[COLLECTED] = Path(worker["collected"])
    else:
        config.stash[COLLECTED] = Path(tempfile.mkdtemp(prefix="imgbuild-tests-")) / "collected"
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:  # xdist's workers have none
        config.pluginmanager.register(PrintFailures(terminal))


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(config.stash[COLLECTED].parent)


def pytest_report_header() -> str | None:
    return None if needs.is_long_run() else f"long tests are omitted; {LONG} runs them"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["collected"] = str(node.config.stash[COLLECTED])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> schedule.Scheduler:
    return schedule.Scheduler(config, log, config.stash[COLLECTED])


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = (
        [] if needs.is_long_run() else [item for item in items if item.get_closest_marker("long")]
    )
    if config.getoption("--renew-golden"):
        left_out = [item for item in items if "golden" not in getattr(item, "fixturenames", ())]
    if config.getoption("--repeat-failed"):
        files = _failed_files(config)
        left_out += [item for item in items if item.nodeid.split("::")[0] not in files]
    config.hook.pytest_deselected(items=left_out)
    dropped = set(left_out)
    items[:] = [item for item in items if item not in dropped]
    for path, tests in itertools.groupby(items, key=lambda item: item.path):
        if path.is_relative_to(UNIT):
            for item in tests:
                if item.get_closest_marker("timeout") is None:
                    item.add_marker(pytest.mark.timeout(UNIT_SECONDS))
    schedule.sort_tests(items)
    schedule.write_groups(config.stash[COLLECTED], items, len(left_out))


def _failed_files(config: pytest.Config) -> set[str]:
    """The files with failed tests in the last run, which are run again completely."""
    assert config.cache is not None
    files = {test.split("::")[0] for test in config.cache.get("cache/lastfailed", {})}
    if len(files) > REPEATED:
        message = f"{len(files)} files have failures; at most {REPEATED} are run again"
        raise pytest.UsageError(message)
    return files


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if isinstance(collector, pytest.Directory) and report.result is not None:
        report.result = schedule.rotate_nodes(collector.config, report.result)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude the collected tests from garbage collection, because they exist until the end.

    With the default threshold of 700 objects, garbage collection takes 6 % of the time of unit
    tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000)
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.path.is_relative_to(schedule.INTEGRATION):
        needs.wait_for_engines()
    if item.get_closest_marker("network"):
        needs.require_network()
    for mark in item.iter_markers("disk"):
        room = (item.path, mark.args)
        if room not in item.config.stash[ROOM]:  # once per file: its first test fills the disk
            needs.require_disk_space(*mark.args)
            item.config.stash[ROOM].add(room)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn every skip into a failure if skipping is not allowed (IMGBUILD_NO_SKIP=1).

    With IMGBUILD_SMALL_DISK=1, tests may still be skipped for lack of disk space.
    """
    report = yield
    allowed = needs.small_disk() and no_room(report)
    if report.skipped and not hasattr(report, "wasxfail") and needs.is_strict() and not allowed:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: skipping is not allowed here: {report.longreprtext}"
    return report


# Variables of the user's environment that imgbuild reads and that unit tests must not use.
VARIABLES = (
    "NO_COLOR", "FORCE_COLOR", "SOURCE_DATE_EPOCH", "IMGBUILD_MIRROR", "IMGBUILD_CACHE_SIZE",
)  # fmt: skip


def no_room(report: pytest.TestReport | pytest.CollectReport) -> bool:
    """Whether a test was skipped because the disk is too full."""
    return _reason(report).endswith(needs.ROOM)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason for a skip. Empty for other outcomes."""
    longrepr = report.longrepr
    return longrepr[2].removeprefix("Skipped: ") if isinstance(longrepr, tuple) else ""


@pytest.hookimpl(wrapper=True, tryfirst=True)  # prints after pytest's own summary
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None]:
    """Print the number of tests that did not run, and how to run them."""
    yield
    remedies = Counter(
        needs.remedy(_reason(report)) for report in terminalreporter.stats.get("skipped", [])
    )
    if not config.getoption("--renew-golden"):
        remedies[LONG] += schedule.read_groups(config.stash[COLLECTED])["left_out"]
    parts = [f"{count} ({remedy})" for remedy, count in remedies.items() if count]
    if parts:
        terminalreporter.write_line(f"tests that did not run: {', '.join(parts)}", yellow=True)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compares a text with a committed file, or writes the file with --renew-golden."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--renew-golden"):
            path.write_text(text, encoding="utf-8")
        remedy = "if the change is intended: make golden, and read the diff"
        assert path.read_text(encoding="utf-8") == text, remedy

    return compare


@pytest.fixture(autouse=True)
def _alone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Forbid processes and network access in a unit test, and provide an empty cache."""
    if not request.path.is_relative_to(UNIT):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMGBUILD_CACHE", str(tmp_path_factory.getbasetemp() / f"cache-{os.getpid()}"))
        # The user's configuration (mirrors, certificates) and records must not count.
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config"))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        patch.setattr(os, "fsync", lambda _: None)  # no test simulates a power failure
        GUARD.closed = "IMGBUILD_FUZZ" not in os.environ  # it forks for each reader
        try:
            yield
        finally:
            GUARD.closed = False
