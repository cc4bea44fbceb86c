"""tools/facts.py refuses to let facts into a wheel that its code would not use."""

import facts
from imgbuild.audit.packages import published
from imgbuild.audit.packages.published import PublishedWheel, write_facts


def test_facts_of_other_code_do_not_get_into_a_wheel(tmp_path, monkeypatch, capsys):
    path = tmp_path / "wheels.zip"
    monkeypatch.setattr("sys.argv", ["facts.py", "--check", "--output", str(path)])
    assert facts.main() == 0  # a checkout without them
    write_facts(path, {"0" * 64: PublishedWheel(package="demo", kinds={"x": b"\1"}, modules={})})
    assert facts.main() == 0
    monkeypatch.setattr(published, "reader_digest", lambda: b"other code")
    assert facts.main() == 4
    assert f"{path}: out of date" in capsys.readouterr().err
