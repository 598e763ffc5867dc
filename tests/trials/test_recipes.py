"""docs/recipes.md can be run: `make recipes` does, slowly; here only what its blocks say."""

import re
import subprocess

import pytest

from trials.recipes.__main__ import CHECKS, PAGE
from trials.recipes.page import Recipe, printed, recipes, shows

RECIPES = recipes(PAGE)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_commands_are_a_shells(recipe: Recipe) -> None:
    checked = subprocess.run(
        ["bash", "-n"], input=recipe.script(), capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    untried = recipe.commands("untried")
    assert not untried or "not tried" in PAGE.read_text(encoding="utf-8").lower()


def test_every_block_has_a_known_word_and_every_file_a_name() -> None:
    blocks = [block for recipe in RECIPES for block in recipe.blocks]
    words = {block.word for block in blocks if block.kind == "sh"}
    assert all(re.fullmatch(r"|installs|untried|server:(\d+|http://\S+)", word) for word in words)
    assert {name for recipe in RECIPES for name in recipe.files()} == {
        "nginx.conf", "Caddyfile", "prometheus.yml",
    }  # fmt: skip
    assert {recipe.title for recipe in RECIPES} >= set(CHECKS)
    assert RECIPES[0].programs() == {"nginx", "caddy"}


def test_output_is_told_apart_by_block() -> None:
    found = printed("@@ block 0\n@@ block 3\n401\n200\n")
    assert found == {0: "", 3: "401\n200\n"}
    assert shows("401\n…", found[3]) and not shows("200", found[3])
