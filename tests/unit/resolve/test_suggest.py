"""Tests suggesting targets of the matrix."""

import msgspec

from imgbuild.resolve import conflict, suggest
from imgbuild.values import Arch
from tests.support import samples


def test_target_that_meets_most_requests_is_the_nearest():
    matrix = samples.matrix(pins={"torch": "2.6.0", "vllm": "0.8"})
    target = matrix.targets["small"]
    other = msgspec.structs.replace(target, pins={"torch": "2.7.0", "vllm": "0.9"}, cuda="12.6")
    far = msgspec.structs.replace(other, indexes={"torch": "pytorch"})
    matrix = msgspec.structs.replace(matrix, targets={"small": target, "far": far, "other": other})
    requests = [conflict.user_demand("vllm", "==0.9"), conflict.user_demand("torch", "==2.6.0")]
    assert suggest.nearest_targets(matrix, requests, "12.6", Arch.X86_64) == (
        "the target other on x86_64: CUDA 12.6, torch 2.7.0, vllm 0.9",
    )
    (unlocked,) = suggest.nearest_targets(
        matrix, requests, "12.6", Arch.X86_64, locked=frozenset({"small"})
    )
    assert unlocked.startswith("the target other (planned, not locked) on x86_64: CUDA 12.6")
    assert suggest.nearest_targets(matrix, requests, "12.6", Arch.ARM64) == ()
    assert (
        suggest.nearest_targets(matrix, [conflict.user_demand("absent", "")], "12.6", Arch.X86_64)
        == ()
    )
    many = {f"package-{number}": "1.0" for number in range(10)}
    matrix = msgspec.structs.replace(
        matrix, targets={"many": msgspec.structs.replace(target, pins=many)}
    )
    (suggestion,) = suggest.nearest_targets(
        matrix, [conflict.user_demand("package-1", "")], None, Arch.X86_64
    )
    assert suggestion.endswith("package-7 1.0, 2 more")
