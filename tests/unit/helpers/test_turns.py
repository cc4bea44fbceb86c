from __future__ import annotations

from tests import turns


def test_whole_images_are_made_by_one_process() -> None:
    targets = [
        turns.group(f"tests/integration/test_builders_targets.py::test_x[{target}]")
        for target in ("cu124-vllm", "cu130-vllm")
    ]
    assert targets == [turns.IMAGES] * 2
    assert turns.group("tests/integration/test_main_job.py::test_y") == turns.IMAGES


def test_other_tests_stay_with_their_file_and_unit_tests_go_anywhere() -> None:
    file = "tests/integration/test_builders.py"
    assert turns.group(f"{file}::test_x[docker]") == file
    one = "tests/unit/helpers/test_turns.py::test_x"
    assert turns.group(one) == one


def test_what_a_file_asks_for_is_read_from_it() -> None:
    assert turns.room("tests/integration/test_builders_targets.py") >= turns.WHOLE_IMAGE
    assert turns.patience("tests/integration/test_combinations.py") > 900
    assert (
        turns.room("tests/unit/helpers/test_turns.py")
        == turns.patience("tests/unit/helpers/test_turns.py")
        == 0
    )
