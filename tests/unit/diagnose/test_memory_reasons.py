"""Tests the causes that the sizes in a message about GPU memory show."""

from __future__ import annotations

from imgbuild.diagnose.memory_reasons import memory_reason
from tests.support.rows import each_row

NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total"
    " capacity of {total} of which {free} is free. Including non-PyTorch memory, this process has"
    " {own} memory in use."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate {asked} (GPU 0; {total} total capacity;"
    " {own} already allocated; {free} free; {own} reserved in total by PyTorch)"
)


@each_row(
    ("message", "sizes", "cause"),
    [
        (NEW, ("48.00 GiB", "79.10 GiB", "60.00 GiB", "19.00 GiB"), "one tensor of 48 GiB"),
        (OLD, ("20.00 GiB", "23.69 GiB", "2.00 GiB", "21.00 GiB"), "one tensor of 20 GiB"),
        (NEW, ("512.00 MiB", "79.10 GiB", "80.00 MiB", "9.00 GiB"), "other processes use about 69"),
        (NEW, ("512.00 MiB", "79.10 GiB", "80.00 MiB", "78.00 GiB"), None),
        (NEW, ("2.00 GiB", "79.10 GiB", "1.50 GiB", "70.00 GiB"), None),
        ("CUDA out of memory. Tried to allocate {asked}.", ("2.00 GiB", "", "", ""), None),
    ],
)
def test_sizes_show_why_a_gpu_has_no_memory(
    message: str, sizes: tuple[str, str, str, str], cause: str | None
) -> None:
    asked, total, free, own = sizes
    reason = memory_reason(message.format(asked=asked, total=total, free=free, own=own))
    if cause is None:
        assert reason is None
    else:
        assert reason is not None
        assert reason.code == "IMG1364"
        assert reason.cause.startswith(cause)
