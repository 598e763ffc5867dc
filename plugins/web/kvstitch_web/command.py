"""`kvstitch web`: pages are documents, called by their URL; URLs come from a file or a sitemap."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urldefrag, urlsplit
from xml.etree import ElementTree

from kvstitch.service.cli.documents.ingest import add_document_options, send
from kvstitch.service.cli.documents.sending import Ingest
from kvstitch.service.cli.documents.sources import (
    OTHER_KIND,
    DocumentToSend,
    Read,
    SkippedFile,
    UnsendableDocument,
)
from kvstitch.service.cli.options import CommandError, WrongArgument, parse_pairs, positive
from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.charsets import decode
from kvstitch.service.gateway.documents.parsing.file_kinds import kind_of_media_type
from kvstitch_web.fetch import Fetched, Fetcher, FetchLimits, NotFetched

REPEATED = "named before"
TOO_MANY = "beyond --max-urls"
MAX_BYTES = 32 << 20
MAX_SECONDS = 60.0
_NAMELESS = ("", "application/octet-stream", "text/plain")  # types that say nothing
_UNSENDABLE = '"\\'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Fetch pages and ingest them; each is called by its URL."
    add = parser.add_argument
    add("--urls", metavar="FILE", help="fetch these: a URL per line")
    add("--sitemap", metavar="URL", help="fetch the pages of a sitemap")
    add("--allow-host", action="append", metavar="HOST", help="fetch from there (a sitemap's own "
        "host is allowed); may be repeated")  # fmt: skip
    add("--max-urls", type=positive, default=1000, help="pages to fetch (default: 1000)")
    add("--allow-private-addresses", action="store_true", help="fetch also from loopback, private "
        "and link-local addresses")  # fmt: skip
    add_document_options(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Ingest all pages; 1 if any of them is not stored."""
    if args.urls is None and args.sitemap is None:
        raise WrongArgument("say what to fetch: --urls FILE or --sitemap URL")
    ingest = Ingest(args, parse_pairs(args.metadata, "--metadata"), total=0)
    return send(args, ingest, fetch_all(args))


def fetch_all(args: argparse.Namespace) -> Iterator[Read]:
    """Yield every page of --urls and --sitemap, or why there is none."""
    limits = FetchLimits(_hosts(args), MAX_BYTES, MAX_SECONDS, args.allow_private_addresses)
    with Fetcher(limits) as fetcher:
        count = 0
        for url, again in without_repetitions(_urls(args, fetcher)):
            if again or count >= args.max_urls:
                yield SkippedFile(url, REPEATED if again else TOO_MANY)
                continue
            count += 1
            yield _document(url, fetcher)


def _urls(args: argparse.Namespace, fetcher: Fetcher) -> Iterator[str]:
    if args.urls is not None:
        yield from of_file(args.urls)
    if args.sitemap is not None:
        yield from of_sitemap(args.sitemap, fetcher)


def _hosts(args: argparse.Namespace) -> frozenset[str]:
    """Return the hosts that are named, and the sitemap's own."""
    hosts = {host.lower() for host in args.allow_host or []}
    if args.sitemap is not None:
        try:
            hosts.add(urlsplit(args.sitemap).hostname or "")
        except ValueError as error:
            raise WrongArgument(f"{args.sitemap} is not a URL: {error}") from error
    if not hosts:
        raise WrongArgument("--urls needs --allow-host HOST, for each host that may be asked")
    return frozenset(hosts)


def _document(url: str, fetcher: Fetcher) -> Read:
    if any(char in _UNSENDABLE for char in url) or not url.isprintable():
        return UnsendableDocument(url, "it has quotes or control characters", "no URL")
    try:
        page = fetcher.get(url)
        media_type, content = page.media_type, _in_utf8(page)
    except NotFetched as error:
        return UnsendableDocument(url, str(error), error.reason)
    if media_type in _NAMELESS:
        media_type = "text/plain"
    elif media_type not in kind_of_media_type():
        return SkippedFile(url, OTHER_KIND, media_type)
    return DocumentToSend(url, media_type, content)


def _in_utf8(page: Fetched) -> bytes:
    """Return the content; of text in another charset that the server names, converted."""
    if not page.media_type.startswith("text/") or page.charset in ("", "utf-8", "utf8"):
        return page.content
    try:
        # The mark at the beginning says that it is UTF-8, whatever the page says of itself.
        return decode(page.content, page.charset).text.encode("utf-8-sig")
    except InvalidRequest as error:
        raise NotFetched("not in the charset that its server names", error.message) from error


MAX_SITEMAPS = 50  # that one sitemap may name
_LOC = "{*}*/{*}loc"  # in any namespace


def of_file(name: str) -> list[str]:
    """Return one URL per line; blank lines and those that begin with # say nothing."""
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongArgument(f"{name} cannot be read: {error}") from error
    return [text for line in lines if (text := line.strip()) and not text.startswith("#")]


def of_sitemap(url: str, fetcher: Fetcher) -> Iterator[str]:
    """Yield the URLs of a sitemap, and of those that it names."""
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
    """Yield (URL without its fragment, whether it came before)."""
    seen: set[str] = set()
    for url in urls:
        bare = urldefrag(url).url
        yield bare, bare in seen
        seen.add(bare)
