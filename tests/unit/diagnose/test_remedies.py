"""Tests cures that are derived from the advice or the kind of a message."""

from __future__ import annotations

import io

from imgbuild.diagnose import remedies, rules
from imgbuild.diagnose.diagnosis import diagnose_log
from imgbuild.diagnose.finding import LogFinding
from tests.support.rows import each_row

TRACE = """\
Traceback (most recent call last):
  File "/workspace/job/train.py", line 9, in <module>
    engine.start(options)
  File "/opt/venv/lib/python3.11/site-packages/acme/engine/core.py", line 70, in start
    {code}
{exception}
"""


def first(exception: str, code: str = "check(value)") -> LogFinding:
    text = TRACE.format(code=code, exception=exception)
    return diagnose_log(io.BytesIO(text.encode()), "log").findings[0]


@each_row(
    ("message", "advice"),
    [
        ("Slots are odd. Consider raising acme_slots to 4.", "Consider raising acme_slots to 4"),
        ("The cache is stale, please remove /tmp/acme", "please remove /tmp/acme"),
        ("No fan found.\n  HINT: set ACME_FAN=0 first", "HINT: set ACME_FAN=0 first"),
        ("Failed. Please open an issue at the tracker.", ""),
        ("Failed. Please file a bug. Use a wider slot!", "Use a wider slot"),
        ("Users were counted. Settings are fine.", ""),
        ("Please check the fan. Set fan=1 to stop it.", "Set fan=1 to stop it"),
        ("You can't use a fan with two pumps", ""),
        ("The fan is absent => run `pip install fan`", "run `pip install fan`"),
        ("Stopped: run 'left' does not exist", ""),
        ("No plan. To learn more, set CUDNN_LOGERR_DBG=1 and wait", ""),
    ],
)
def test_advice_in_message_is_used(message: str, advice: str) -> None:
    assert remedies.message_advice(message) == advice


@each_row(
    ("message", "words"),
    [
        (
            "ValueError: slots (6) must be divisible by fans (4)",
            "change slots 6 to a multiple of fans (4)",
        ),
        ("ValueError: fan mode 'x' is bad, must be one of ['off', 'on']", "use one of off, on"),
        ("ValueError: fan and pump cannot be used together", "set only one of fan and pump"),
        ("NotImplementedError: pumps are not supported", "a release of acme that supports it"),
        ("ValueError: slot 9 exceeds the fan's 8", "lower the value"),
        ("RuntimeError: fan shape (2, 3) and slot shape (3, 2)", "compare the sizes"),
        ("RuntimeError: the pump was registered twice", "remove or rename the second"),
        ("OSError: the slot file is truncated", "download or write it again"),
        ("AcmeError: pump 'left' was not found", "correct the name or path"),
        ("ValueError: fan_speed must be specified", "set fan_speed"),
        ("TypeError: expected a slot but got a fan", "the type in the message"),
        ("ValueError: a_fan and b_fan must be the same if both spin", "the same value"),
        (
            "ValueError: slots * rows must equal fans, got 6 and 4",
            "so that slots * rows equals fans",
        ),
        ("ValueError: You cannot set both `fan_a` and `fan_b`", "only one of fan_a and fan_b"),
        ("ValueError: expected both fan_a and fan_b, got fan_a", "set both fan_a and fan_b"),
        ("ValueError: fan must be at least 2, got 1", "so that fan is at least 2"),
        ("ValueError: fan_mode must be 'on' or 'off', got 'x'", "set fan_mode to 'on' or 'off' in"),
        ("ValueError: `fan` must be `True` if `pump` is `True`", "set `fan` to `True`"),
        ("RuntimeError: acme-pump version must be >= 2.1", "pip install 'acme-pump>=2.1'"),
        ("ValueError: When using pumps, you must enable `fan_on`", "enable fan_on"),
        ("ValueError: the fan is only supported with two pumps", "needs this: with two pumps"),
        ("ValueError: Unknown fan mode: fast", "correct fast, the fan mode"),
        ("AcmeError: slots % PUMP_BLOCK_SIZE == 0. FP8 needs that", "pad the tokens"),
        (
            "AcmeError: Transformer-Engine v1.5.0 must be >= 1.6.0 to spin",
            "Transformer-Engine>=1.6.0",
        ),
        ("AcmeError: cuDNN Error: No execution plans support the graph", "NVTE_FUSED_ATTN=0"),
        ("AcmeError: FlashAttention maximum version 2.5.8 is supported", "flash-attn 2.5.8 built"),
        ("AcmeError: compute capability 8.9 or higher required for FP8", "switch FP8 off"),
        ("AcmeError: Invalid pump arguments: Kind.left, None", "the variable that is None"),
        ("AcmeError: cuBLAS Error: an unsupported value or parameter", "multiples of 16"),
        ("AcmeError: cuBLAS Error: the function failed to launch on it", "CUDA_LAUNCH_BLOCKING=1"),
        ("AcmeError: CublasLt version 12.1.3 or higher required", "LD_LIBRARY_PATH"),
        ("AcmeError: pump not aligned to 2 * cp_size", "context_parallel_size 1"),
        ("AcmeError: size mismatch, got input (7), mat (7x8), vec (0)", "GatheredParameters"),
        ("AssertionError: args.pump_rows is not None", "--pump_rows with hyphens"),
        ("AcmeError: enough samples to at least yield one packed sequence", "packing=False"),
        ("AcmeError: slots must be positive, but got batch_size=0", "raise the batch size"),
        ("AcmeError: rows is under development", "use a newer acme"),
        ("AssertionError: with pumps, sequence parallelism must be used", "--sequence-parallel"),
        ("AcmeError: the pump tensor must have contiguous last dimension", "x.contiguous()"),
        (
            "AcmeError: Failed to create placement group 'x' because name 'p' already exists",
            "what ended the first attempt",
        ),
        (
            "RuntimeError: [enforce fail at address.cc:42] ss1.ss_family == ss2.ss_family. 2 vs 10",
            "GLOO_SOCKET_IFNAME",
        ),
        ("KeyError: 'Non-existent config key: pump'", "compare the data and options"),
        ("AcmeError: numpy has ScalarType: Got unsupported ScalarType BFloat16", "float()"),
    ],
)
def test_known_kinds_of_messages_have_specific_cures(message: str, words: str) -> None:
    finding = first(message)
    assert finding.code == "IMG921"
    assert words in finding.cure


def test_advice_is_quoted_before_the_cure_of_its_kind() -> None:
    finding = first("ValueError: fans must be at least 9. Try a larger fan.")
    assert finding.cure.startswith(
        'follow the message: "Try a larger fan"; else change the options'
    )


def test_message_of_an_unknown_kind_gets_the_general_cure() -> None:
    finding = first("AcmeError: slots collide")
    assert finding.cure.startswith("check what the message names in the call at")


def test_placeholders_in_cures_are_valid() -> None:
    for remedy in remedies.load_remedies():
        names = {*remedy.pattern.groupindex, "package", "call"}
        assert set(rules.PLACEHOLDER.findall(remedy.cure + remedy.means)) <= names


def test_source_line_after_a_frame_is_not_the_message() -> None:
    code = 'raise ValueError(f"Some keys are not used by the HfArgumentParser: {sorted(rest)}")'
    finding = first(
        "ValueError: Some keys are not used by the HfArgumentParser: ['acme_slots']", code
    )
    assert "['acme_slots']" in finding.cause


@each_row(
    ("text", "cause", "cure"),
    [
        ("ModuleNotFoundError: No module named 'imp'", "Python 3.12 removed the module imp",
         "Python <3.12"),
        ("ImportError: cannot import name 'Mapping' from 'collections' (/usr/lib/x.py)",
         "Python 3.10 removed collections.Mapping", "Python <3.10"),
        ("AttributeError: module 'inspect' has no attribute 'getargspec'",
         "Python 3.11 removed inspect.getargspec", "Python <3.11"),
        ("ImportError: cannot import name 'TaskGroup' from 'asyncio' (/usr/lib/python3.10/x.py)",
         "asyncio.TaskGroup is in Python 3.11 and newer only", "Python >=3.11"),
    ],
)  # fmt: skip
def test_standard_library_names_in_messages_are_recognized(
    text: str, cause: str, cure: str
) -> None:
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert cause in finding.cause
    assert cure in finding.cure
