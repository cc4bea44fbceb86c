"""tools/facts.py: the committed facts are about every wheel of the targets that they are for."""

from __future__ import annotations

import facts
from imgbuild.cache.facts_file import FactsFile, write_facts


def test_a_file_without_the_wheels_of_a_target_is_out_of_date(tmp_path, monkeypatch, capsys):
    path = tmp_path / "published.zip"
    write_facts(path, {})
    assert len(FactsFile.open(path)) == 0
    monkeypatch.setattr("sys.argv", ["facts.py", "cu124-vllm", "--check", "--output", str(path)])
    assert facts.main() == 4
    assert f"{path} lacks cu124-vllm: torch-2.6.0" in capsys.readouterr().err
