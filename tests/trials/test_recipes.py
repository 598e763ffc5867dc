"""docs/recipes.md can be run: `make recipes` does, slowly; here only what its blocks say."""

import re
import subprocess

from tests.trials.recipes.__main__ import CHECKS, PAGE
from tests.trials.recipes.page import printed, recipes, shows


def test_commands_are_a_shells_and_words_are_known() -> None:
    found = {recipe.title: recipe for recipe in recipes(PAGE)}
    assert set(CHECKS) < set(found)
    for recipe in found.values():
        subprocess.run(["bash", "-n"], input=recipe.script(), text=True, check=True)
        words = [block.word for block in recipe.blocks if block.kind == "sh"]
        assert all(re.fullmatch(r"|installs|untried|server:(\d+|http\S+)", word) for word in words)
    tls = found["A key, and TLS in front"]
    assert set(tls.files()) == {"nginx.conf", "Caddyfile"}
    assert tls.programs() == {"nginx", "caddy"}


def test_output_is_told_apart_by_block() -> None:
    found = printed("@@ block 0\n@@ block 3\n401\n200\n")
    assert found == {0: "", 3: "401\n200\n"}
    assert shows("401\n…", found[3]) and not shows("200", found[3])
