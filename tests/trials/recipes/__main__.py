"""Runs docs/recipes.md: each recipe in a folder, a home and a network of its own, so that folders
and ports are those of the page, whatever else runs here."""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from importlib.metadata import version
from pathlib import Path

from tests.trials.recipes.page import MARK, Recipe, printed, recipes, shows

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "recipes.md"
INSTALLED = ROOT / "build" / "recipes"
# What is looked at besides what the page's commands print.
CHECKS = {
    "A key, and TLS in front": "python -m tests.trials.recipes.proxied 8443 9443",
    "Two teams, and Open WebUI": "python -m tests.trials.recipes.open_webui",
}
ALONE = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
USED = {"bash", "curl", "ip", "jq", "openssl", "sqlite3", "unshare"}


def install(recipe: Recipe) -> None:
    """Into build/recipes, where the next run finds it; with torch as it is here."""
    INSTALLED.mkdir(parents=True, exist_ok=True)
    (pinned := INSTALLED / "constraints.txt").write_text(
        f"torch=={version('torch')}\n", encoding="utf-8"
    )
    for commands in recipe.commands("installs"):
        mark = INSTALLED / f"{zlib.crc32(commands.encode()):x}.installed"
        if not mark.exists():
            print("  installing, which takes minutes", flush=True)
            names = os.environ | {"PIP_CONSTRAINT": str(pinned), "PIP_QUIET": "2"}
            subprocess.run(["bash", "-ec", commands], cwd=INSTALLED, env=names, check=True)
            mark.touch()


def lay(recipe: Recipe, folder: Path) -> None:
    """The checkout's files and what was installed, by links, and the page's files."""
    for source in (*ROOT.iterdir(), *INSTALLED.glob("*/")):
        if source.name not in (".git", "build", "data"):
            (folder / source.name).symlink_to(source)
    (folder / "home").mkdir()
    for name, text in recipe.files().items():
        (folder / name).write_text(text, encoding="utf-8")


def run(script: str, folder: Path) -> str:
    """What a script prints; none of its processes is left."""
    names = {name: value for name, value in os.environ.items() if not name.startswith("KVSTITCH_")}
    names["PATH"] = f"{Path(sys.executable).parent}:{names['PATH']}"
    names |= {"HOME": str(folder / "home"), "XDG_CACHE_HOME": str(Path.home() / ".cache")}
    with subprocess.Popen(
        [*ALONE, "bash", "-c", f"ip link set lo up\n{script}\n"], cwd=folder, env=names, text=True,
        stdout=subprocess.PIPE, stderr=(folder / "stderr").open("w"), start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=1800)
        finally:
            for number, pause_s in ((signal.SIGTERM, 3), (signal.SIGKILL, 0)):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                    time.sleep(pause_s)
    errors = (folder / "stderr").read_text(encoding="utf-8")[-3000:]
    assert process.returncode == 0, f"exit code {process.returncode} after\n{output}{errors}"
    return output


def attempt(recipe: Recipe, folder: Path) -> str:
    """What the check says."""
    install(recipe)
    lay(recipe, folder)
    check = f"echo '{MARK} {len(recipe.blocks)}'\n{CHECKS.get(recipe.title, '')}"
    found = printed(run(f"{recipe.script()}\n{check}", folder))
    for number, block in enumerate(recipe.blocks):
        if block.kind == "text":
            assert shows(block.text, found[number - 1]), f"{found[number - 1]} is not {block.text}"
    return found[len(recipe.blocks)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trials.recipes", description=__doc__)
    parser.add_argument("--only", default="", help="part of a title")
    options = parser.parse_args()
    failed = False
    for recipe in [one for one in recipes(PAGE) if options.only in one.title]:
        missing = sorted(name for name in USED | recipe.programs() if not shutil.which(name))
        print(recipe.title, *(f"\n  NOT TRIED: {name} is missing" for name in missing))
        print(*(f"  NOT TRIED: {text}" for text in recipe.commands("untried")), sep="", end="")
        if missing or MARK not in recipe.script():
            continue
        folder = Path(tempfile.mkdtemp(prefix="kvstitch-recipe-"))
        started = time.monotonic()
        try:
            said = attempt(recipe, folder)
            print(f"{said}  passed in {time.monotonic() - started:.0f} s", flush=True)
            shutil.rmtree(folder)
        except (AssertionError, subprocess.SubprocessError) as error:
            failed = True
            print(f"  FAILED in {folder}: {error}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
