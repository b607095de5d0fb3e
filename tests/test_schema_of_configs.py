"""Tests that every config and overlay matches the output of `lit-project schema`, and that editors find the schema."""

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator
from jsonschema.exceptions import best_match

from lit_engine.tools.schema import FILE
from lit_project.__main__ import main

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml")) + sorted((ROOT / "configs" / "overlays").glob("*.yaml"))


@pytest.mark.slow
def test_every_config_and_overlay_is_valid(tmp_path):
    file = tmp_path / "schema.json"
    assert main(["schema", f"--output={file}"]) == 0
    validator = Draft7Validator(json.loads(file.read_text()))
    assert len(CONFIGS) > 30
    for path in CONFIGS:
        error = best_match(validator.iter_errors(yaml.safe_load(path.read_text())))
        assert error is None, f"{path}: {error.json_path}: {error.message}"


def test_editor_settings_point_to_the_schema_file():
    schemas = json.loads((ROOT / ".vscode" / "settings.json").read_text())["yaml.schemas"]
    assert list(schemas) == [FILE.as_posix()]
    covered = {path for glob in schemas[FILE.as_posix()] for path in ROOT.glob(glob)}
    assert covered >= set(CONFIGS)
    assert f"/{FILE.as_posix()}" in (ROOT / ".gitignore").read_text().splitlines()
