from __future__ import annotations

from tests.support import schedule


def test_whole_images_are_made_by_one_process() -> None:
    targets = [
        schedule.group(f"tests/integration/test_builders_targets.py::test_x[{target}]")
        for target in ("cu124-vllm", "cu130-vllm")
    ]
    assert targets == [schedule.IMAGES] * 2
    assert schedule.group("tests/integration/test_main_job.py::test_y") == schedule.IMAGES


def test_other_tests_stay_with_their_file_and_unit_tests_go_anywhere() -> None:
    file = "tests/integration/test_builders.py"
    assert schedule.group(f"{file}::test_x[docker]") == file
    one = "tests/unit/helpers/test_turns.py::test_x"
    assert schedule.group(one) == one


def test_what_a_file_asks_for_is_read_from_it() -> None:
    assert schedule.room("tests/integration/test_builders_targets.py") >= schedule.WHOLE_IMAGE
    assert schedule.patience("tests/integration/test_combinations.py") > 900
    assert (
        schedule.room("tests/unit/helpers/test_turns.py")
        == schedule.patience("tests/unit/helpers/test_turns.py")
        == 0
    )
