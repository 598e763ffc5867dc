"""What commands share: options, settings and the client made of them, and how a command fails."""

import argparse
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import httpx

from kvstitch.client import Client, errors
from kvstitch.service.errors import InvalidRequest, KvstitchError
from kvstitch.service.settings import Settings, all_settings, load

DEFAULT_URL = "http://127.0.0.1:8000"
BUSY_TIMEOUT_S = 300.0  # how long a busy service is asked again
T = TypeVar("T")

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class CommandError(KvstitchError):
    """Ends a command: the service's own error, no service, or unusable input."""

    def __init__(self, message: str, *, code: str = "refused", field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.code = code


class WrongArgument(CommandError):
    """What was given on the command line cannot be meant: exit code 2."""


def add_client_options(parser: argparse.ArgumentParser) -> None:
    add, later = parser.add_argument, argparse.SUPPRESS
    add("--url", default=later, help=f"the service (default: KVSTITCH_URL or {DEFAULT_URL})")
    add("--api-key", default=later, help="default: KVSTITCH_API_KEY, which others cannot see in "
        "the process list")  # fmt: skip
    add("--json", action="store_true", default=later, help="JSON on stdout and nothing else")


def add_action(actions: Commands, name: str, command: object, help: str) -> argparse.ArgumentParser:
    made = actions.add_parser(name, help=help)
    made.set_defaults(command=command)
    add_client_options(made)
    return made


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _number(name: str, least: float, below: float, must: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        if not least <= (value := float(text)) < below:
            raise argparse.ArgumentTypeError(f"must be {must}")
        return value

    read.__name__ = name  # which argparse says where it is no number
    return read


seconds = _number("seconds", 0.05, 1e6, "at least 0.05")
minutes = _number("minutes", 1e-9, 1e6, "more than 0")
share = _number("share", 1e-9, 1, "between 0 and 1")


def parse_pairs(texts: Sequence[str] | None, option: str) -> dict[str, Any]:
    """Join all arguments of an option into one object."""
    found: dict[str, Any] = {}
    for text in texts or ():
        found |= _object(text, option) if text.lstrip().startswith("{") else _pair(text, option)
    return found


def _object(text: str, option: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongArgument(f"{option} {text} is not valid JSON: {error}") from None
    return value


def _pair(text: str, option: str) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if not (equals and name.strip()):
        raise WrongArgument(f"{option} {text}: write NAME=VALUE, or a JSON object")
    try:
        return {name.strip(): json.loads(value)}
    except (ValueError, RecursionError):
        return {name.strip(): value}


def settings_of(args: argparse.Namespace, *, without: Collection[str] = ()) -> Settings:
    """Return the settings: of the options that bear their names, environment and file."""
    return load(getattr(args, "config", None), **given_settings(args, without=without))


def given_settings(args: argparse.Namespace, *, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings that options give, None for those that were left out."""
    names = set(all_settings().model_fields).difference(without)
    return {name: value for name, value in vars(args).items() if name in names}


# Options that are not called as the setting that they set.
_SETTING_OF = {"--redis": "redis_url", "--redis-ttl": "redis_ttl_s"}


def add_setting_options(
    parser: argparse.ArgumentParser, helps: Mapping[str, str], *, default: object = None
) -> None:
    """Add an option for each setting."""
    for option, help in helps.items():
        name = _SETTING_OF.get(option, option[2:].replace("-", "_"))
        wanted = all_settings().model_fields[name].annotation
        kind = next((k for k in (int, float) if wanted in (k, k | None)), str)
        parser.add_argument(option, dest=name, type=kind, help=help, default=default)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the settings that `serve`, `worker` and `doctor` take."""
    add = parser.add_argument
    add("--config", metavar="FILE", help="settings as TOML (default: KVSTITCH_CONFIG, "
        "./kvstitch.toml, /etc/kvstitch/kvstitch.toml: the first that is there)")  # fmt: skip
    add("--model", help="model folder, .gguf file, Hugging Face id, or a name: see `kvstitch model "
        "list` (default: the demo model)")  # fmt: skip
    add("--lora", "--lora-modules", nargs="+", action=_Joined, metavar="NAME=FOLDER",
        help="LoRA adapters, folders as PEFT saves them; may be repeated")  # fmt: skip
    add("--lora-precompute", metavar="NAMES", help="adapters, by commas, with which documents are "
        "computed as they come in (default: none)")  # fmt: skip
    add("--model-cache", help="where folders made of .gguf files are kept")
    add("--data-dir", help="where documents, jobs and KV are kept")
    add("--database", help="PostgreSQL that gateways share, postgresql://user:password@host/name")
    add("--redis", dest="redis_url", help="shared KV tier, e.g. redis://127.0.0.1:6379/0, or "
        "redis+cluster://a:6379,b:6379")  # fmt: skip
    add("--redis-ttl", dest="redis_ttl_s", type=int, help="seconds; 0: until Redis evicts")
    add("--write-tiers", help="tiers besides memory that get computed KV, e.g. ssd,s3; default all")
    add("--host", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=int, help="port to listen on (default: 8000)")
    add("--codec", choices=("int2", "int4", "int8", "k8v4", "k8v8", "raw"), help="how KV is stored")
    add("--dtype", choices=("auto", "float32", "float16", "bfloat16"))
    add("--quantize", choices=("off", "int8", "int4"), help="weights in fewer bits")
    add("--device", help="auto, cpu, cuda or cuda:N")
    add("--memory-tier-mib", type=int, help="KV in memory; 0: none")
    add("--ssd-tier-gib", type=float, help="KV on disk; 0: none")
    add("--workers", type=int, help="worker processes, each with the model; default: 1")
    add("--worker-addresses", metavar="ADDRESSES", help="workers that run by themselves, instead "
        "of own ones: tcp://host:5700 by commas, dns://name:5700, or ray://")  # fmt: skip
    add("--threads", type=int, help="CPU threads of a worker")
    add("--tensor-parallel", type=int, help=argparse.SUPPRESS)  # it is refused
    add("--embedder", help="sentence-embedding model folder (default: all-MiniLM-L6-v2)")
    add("--chunk-tokens", type=int, help="tokens per chunk (default: the model folder's)")
    add("--top-k", type=int, help="passages per answer (default: the model folder's)")
    add("--prefix-mode", help="what a chunk sees when it is precomputed (default: the model "
        "folder's, else primer)")  # fmt: skip
    add("--max-running", type=int, help="sequences decoded together")
    add_options_of_plugins(parser)


def add_options_of_plugins(parser: argparse.ArgumentParser, *, default: object = None) -> None:
    """Add an option for each setting of a plugin that names one."""
    for name, field in all_settings().model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and (option := extra.get("option")):
            parser.add_argument(str(option), dest=name, help=field.description, default=default)


class _Joined(argparse.Action):
    """Several values, also of several options, joined by commas as settings have them."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, ",".join([*([before] if before else []), *(values or ())]))


@contextmanager
def client(args: argparse.Namespace, *, timeout_s: float = 600.0) -> Iterator[Client]:
    """Yield a client of the service at --url, with --api-key or KVSTITCH_API_KEY."""
    found = Client(args.url, api_key=args.api_key, timeout_s=timeout_s, max_retries=0)
    with found:
        yield found


def is_busy(error: errors.KvstitchError) -> bool:
    """Whether waiting helps: too busy, too fast, or the same batch is just being received."""
    if error.status == 429:
        return bool(error.field and error.field.endswith(("_per_minute", "_per_key")))
    return error.status in (409, 503)


def patiently(
    send: Callable[[], T],
    on_wait: Callable[[str], None] = lambda why: None,
    *,
    passes: Callable[[errors.KvstitchError], bool] = is_busy,
    patience_s: float = BUSY_TIMEOUT_S,
) -> T:
    """Return the result of a call that is repeated for a while if its error `passes`."""
    give_up_at = time.monotonic() + patience_s
    while True:
        try:
            return send()
        except errors.KvstitchError as error:
            wait_s = min(error.retry_after or 1.0, 30.0)
            if not passes(error) or time.monotonic() + wait_s > give_up_at:
                raise
            on_wait(message_of(error))
        time.sleep(wait_s)


def message_of(error: errors.KvstitchError) -> str:
    """Return what an error says, with the status that the service answered."""
    return error.message if error.status is None else f"{error.message} (HTTP {error.status})"


def as_command_error(error: errors.KvstitchError) -> CommandError:
    """Return the error of the client as the command line tells it."""
    if isinstance(error, errors.UnexpectedResponse):
        return CommandError(error.message)
    if isinstance(error, errors.ServiceError):
        # Without a code it is the client's own: what was given cannot be sent.
        given = error.code is None or error.status == InvalidRequest.status
        kind = WrongArgument if given else CommandError
        return kind(message_of(error), code=error.code or "refused", field=error.field)
    if isinstance(error.__cause__, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return WrongArgument(f"--url is not a URL: {error.__cause__}")
    hint = (
        ""
        if isinstance(error, errors.TimedOut)
        else " Start one with `kvstitch serve`, or give --url."
    )
    return CommandError(f"{error.message}{hint}", code="unreachable")
