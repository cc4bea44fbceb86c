"""Tests of imgbuild. `unit/` touches nothing; `integration/` says by marks what it needs."""
