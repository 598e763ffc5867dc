"""The hooks, one for each kind of thing that a plugin can add.

A plugin implements those that it needs, as functions of the same name that are marked with
`hookimpl`; arguments it does not need may be left out. Each is called once per process, when such
a thing is first asked for, so a hook declares and does not work. kinds.py says what is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pluggy

from kvstitch.service.plugins.kinds import (
    Adapters,
    FileFormat,
    GatewayPart,
    IdentityProvider,
    ModelSource,
    PictureReader,
    Tables,
    TierKind,
    Verb,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

GROUP: Final = "kvstitch"
hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


# A spec has no body: pluggy calls what plugins implement.
# mypy: disable-error-code="empty-body"


@hookspec
def settings() -> type[BaseModel]:
    """Return a pydantic model whose fields become settings, in all places where settings stand.

    Settings of a service are then an instance of it, too. A field with `repr=False` is a secret;
    with `json_schema_extra={"reloadable": True}` it is taken over by a running service, and with
    `{"option": "--name"}` commands that serve have this option.
    """


@hookspec
def command_line_verbs() -> Sequence[Verb]:
    """Return commands of `kvstitch`."""


@hookspec
def file_formats() -> Sequence[FileFormat]:
    """Return kinds of documents that can be ingested."""


@hookspec(firstresult=True)
def picture_reader() -> PictureReader | None:
    """Return what reads pictures and scanned pages; None: it cannot work here."""


@hookspec
def fusion_methods() -> Mapping[str, str]:
    """Return fusion methods: "module:class" of a FusionMethod by name."""


@hookspec
def eviction_methods() -> Mapping[str, str]:
    """Return eviction methods: "module:class" of an EvictionMethod by name."""


@hookspec(firstresult=True)
def device_kernels(device: Any) -> Any:
    """Return what a worker computes on a `torch.device` by kernels of its own, a `DeviceKernels`
    (service/worker/kernels/device_kernels.py); None where the plugin has none for it."""


@hookspec(firstresult=True)
def hand_over(settings: Any) -> Any:
    """Return what takes KV from a worker with these `WorkerSettings` to another engine, a
    `HandOver` (service/worker/sequences/hand_over.py); None where the worker decodes."""


@hookspec(firstresult=True)
def answering_worker(settings: Any, model_folder: Path, worker: Any) -> Any:
    """Return what a gateway speaks to in place of its worker, another `Worker` around it; None
    where the worker answers by itself."""


@hookspec
def worker_sources() -> Mapping[str, str]:
    """Return where workers that run by themselves are found, by the scheme of worker_addresses.

    "module:function" takes the setting's value and returns what yields the addresses of all
    workers, now and whenever they have changed (`Source` in service/gateway/fleet/discovery.py).
    """


@hookspec
def kv_tiers() -> Sequence[TierKind]:
    """Return tiers of the KV store."""


@hookspec(firstresult=True)
def tracing(endpoint: str, process: str) -> Any:
    """Return a `Tracing` (service/shared/tracing.py), not started, that sends the spans of a
    "gateway" or "worker" to the collector at this URL."""


@hookspec(firstresult=True)
def model_source(settings: Any) -> ModelSource | None:
    """Return what makes a folder of the model that the settings name, None where that is a folder,
    a model of the Hugging Face hub or another plugin's. It opens no file."""


@hookspec(firstresult=True)
def vector_index(settings: Any, database: Any) -> Any:
    """Return the index that passages are found by, a `VectorSearch` of the retriever, None where
    the settings ask for none of the plugin's. `database`: the catalog's in PostgreSQL, None where
    it is a file."""


@hookspec(firstresult=True)
def adapters() -> Adapters | None:
    """Return what reads LoRA adapters."""


@hookspec
def database_tables() -> Tables:
    """Return tables that gateways which share PostgreSQL have in it, and that are moved there."""


@hookspec(firstresult=True)
def identity_provider(settings: Any) -> IdentityProvider | None:
    """Return what says who sends a token, None where the settings ask for none. Raises
    InvalidSetting: they cannot be used."""


@hookspec(firstresult=True)
def rate_counters(settings: Any, secret: Callable[[], str], metrics: Any) -> Any:
    """Return what counts rates for all gateways together, the `RateCounters` of quotas.py; None
    where the settings ask for none. `secret` blocks, and hides names of tenants and keys."""


@hookspec
def gateway_part(gateway: Any) -> GatewayPart | None:
    """Return what is added to a gateway, None where its settings ask for nothing.

    Called when the gateway has been built, before it opens anything.
    """


@hookspec
def operator_acted(settings: Any, action: str, tenant: str, details: Mapping[str, Any]) -> None:
    """Somebody has changed something by the command line, where no gateway sees it; may raise."""
