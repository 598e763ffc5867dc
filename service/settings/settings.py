"""The settings of the service: read once at the entry point, and frozen.

Every field is an environment variable with the prefix `KVSTITCH_` (`KVSTITCH_DATA_DIR`,
`KVSTITCH_REDIS_URL`, …) and a name in `kvstitch.toml` (loading.py). Options of the command line
come before the environment, this before the file, and the file before the defaults.
"""

import os
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.plugins import tiers
from kvstitch.service.settings.answering import ModelSettings, RetrievalSettings
from kvstitch.service.settings.fields import named_folders, parts
from kvstitch.service.settings.serving import AccessSettings, LimitSettings, ProcessSettings
from kvstitch.service.settings.storage import EncryptionSettings, PlaceSettings, TierSettings
from kvstitch.service.shared import fleet_secret
from kvstitch.service.shared.worker_settings import MIB, WorkerSettings

PREFIX = "KVSTITCH_"
FILE: ContextVar[PydanticBaseSettingsSource | None] = ContextVar("FILE", default=None)
"""The file while `load` makes settings of it; whoever makes settings without `load` reads none."""


class Settings(
    ModelSettings,
    PlaceSettings,
    AccessSettings,
    EncryptionSettings,
    ProcessSettings,
    TierSettings,
    RetrievalSettings,
    LimitSettings,
    BaseSettings,
):
    """All settings of one service. Make it with `load`, which explains wrong values."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources, the first before the others."""
        file = FILE.get()
        return (init_settings, env_settings, *([] if file is None else [file]))

    @property
    def kv_dir(self) -> Path:
        return self.data_dir / "kv"

    @property
    def loras(self) -> dict[str, Path]:
        """Folders of the LoRA adapters by their names."""
        return named_folders(self.lora)

    @property
    def precomputed_loras(self) -> list[str]:
        """The adapters with which documents are computed as they come in."""
        return parts(self.lora_precompute)

    @property
    def has_slower_tiers(self) -> bool:
        """Whether KV is kept anywhere but in workers' memory."""
        own = self.ssd_tier_gib or self.redis_url
        return bool(own) or any(tier.is_set(self) for tier in tiers().values())

    @property
    def model_name(self) -> str:
        """The model's name in answers: as it was given, or that of its folder or file."""
        if not self.model:
            return "kvstitch-demo"
        path = Path(self.model).expanduser()
        if path.suffix.lower() == ".gguf":
            return path.stem
        return path.resolve().name if path.is_dir() else self.model

    def worker(
        self,
        model_folder: Path,
        address: str,
        *,
        number: int = 0,
        tenants_secret: str = "",
        calibration: Path | None = None,
        shared: bool = False,
    ) -> WorkerSettings:
        """Return the worker's part of the settings.

        Args:
            model_folder: The model that it is to load.
            address: Where it is to listen.
            number: Which of the workers it is, from 0.
            tenants_secret: Keys the chunks of named tenants, where no setting does.
            calibration: The file that `kvstitch tune` wrote for the model.
            shared: It runs by itself, for several gateways.

        Raises:
            InvalidSetting: A plugin's tier is to be written that is not set.
        """
        if self.fleet_secret:
            tenants_secret = fleet_secret.tenants_secret(self.fleet_secret)
        plugin_tiers = [name for name, tier in tiers().items() if tier.is_set(self)]
        for name in (tiers().keys() - plugin_tiers) & set(self.write_tiers.split(",")):
            raise InvalidSetting(f"write_tiers names {name!r}, a tier that is not set")
        same_names = WorkerSettings.__dataclass_fields__.keys() & type(self).model_fields.keys()
        values: dict[str, Any] = {name: getattr(self, name) for name in same_names}
        values |= {
            "plugins": self.of_plugins(),
            "plugin_tiers": plugin_tiers,
            "model": str(model_folder),
            "model_name": self.model_name,
            "address": address,
            "number": number,
            "shared": shared,
            "calibration": str(calibration.resolve()) if calibration else "",
            "loras": {name: str(folder.resolve()) for name, folder in self.loras.items()},
            "methods_dir": str(self.methods_dir.resolve()) if self.methods_dir else "",
            "kv_dir": str(self.kv_dir) if self.ssd_tier_gib else "",
            "memory_tier_bytes": self.memory_tier_mib * MIB // self.workers,
            "ssd_tier_bytes": int(self.ssd_tier_gib * 1024 * MIB),
            "device": self.device_of(number),
            "threads": self.threads or self._share_of_cores(),
            # The gateway limits requests; the worker must accept all that it admits, at once.
            "max_waiting": self.max_running + self.max_waiting,
            "tenants_secret": self.tenant_secret or tenants_secret,
        }
        return WorkerSettings(**values)

    def of_plugins(self) -> dict[str, Any]:
        """Return the values of the settings that plugins declare, as JSON has them."""
        names = type(self).model_fields.keys() - Settings.model_fields.keys()
        return self.model_dump(mode="json", include=set(names))

    def device_of(self, number: int) -> str:
        """Return the device of a worker; workers take those that are named in turns."""
        devices = [name.strip() for name in self.device.split(",")]
        return devices[number % len(devices)]

    def _share_of_cores(self) -> int:
        """Return the threads of each of several workers; 0, torch's choice, for only one."""
        return 0 if self.workers == 1 else max(1, len(os.sched_getaffinity(0)) // self.workers)
