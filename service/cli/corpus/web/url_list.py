"""URLs to ingest, from a file or from a sitemap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urldefrag
from xml.etree import ElementTree

from service.cli.corpus.web.fetch import Fetcher, NotFetched
from service.cli.service_client import CommandError, WrongArgument

MAX_SITEMAPS = 50  # that one sitemap may name
_LOC = "{*}*/{*}loc"  # in any namespace


def of_file(name: str) -> list[str]:
    """One URL per line; blank lines and those that begin with # say nothing.

    Raises:
        WrongArgument: It cannot be read.
    """
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongArgument(f"{name} cannot be read: {error}") from error
    return [text for line in lines if (text := line.strip()) and not text.startswith("#")]


def of_sitemap(url: str, fetcher: Fetcher) -> Iterator[str]:
    """Yields the URLs of a sitemap, and of those that it names.

    Raises:
        CommandError: One of them cannot be fetched, or is none.
    """
    waiting, seen = [url], 0
    while waiting:
        seen += 1
        if seen > MAX_SITEMAPS:
            raise CommandError(f"{url} names more than {MAX_SITEMAPS} sitemaps: give some of them")
        root = _parsed(waiting.pop(0), fetcher)
        found = [(loc.text or "").strip() for loc in root.iterfind(_LOC)]
        if root.tag.endswith("}sitemapindex") or root.tag == "sitemapindex":
            waiting += found
        else:
            yield from found


def _parsed(url: str, fetcher: Fetcher) -> ElementTree.Element:
    try:
        content = fetcher.get(url).content
    except NotFetched as error:
        raise CommandError(f"the sitemap {url} cannot be fetched: {error}") from error
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise CommandError(f"the sitemap {url} declares entities, which sitemaps do not")
    try:
        return ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise CommandError(f"{url} is no sitemap: {error}") from error


def without_repetitions(urls: Iterator[str] | list[str]) -> Iterator[tuple[str, bool]]:
    """Yields (URL without its fragment, whether it came before)."""
    seen: set[str] = set()
    for url in urls:
        bare = urldefrag(url).url
        yield bare, bare in seen
        seen.add(bare)
