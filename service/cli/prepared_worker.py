"""A worker that runs by itself, with what it is started from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from service.errors import InvalidSetting
from service.gateway.data_folder import FOLDER_MODE, own_secret
from service.settings import Settings
from service.settings.calibration import calibrated
from service.shared.fleet_secret import require_secret
from service.shared.worker_settings import WorkerSettings


@dataclass(frozen=True)
class PreparedWorker:
    """A worker whose model is on this machine."""

    settings: Settings = field(repr=False)
    folder: Path
    calibration: Path | None

    @classmethod
    def of(cls, settings: Settings, folder: Path) -> PreparedWorker:
        """Take the calibration of a model's folder, and make the data folder.

        Raises:
            InvalidSetting: One of them cannot be used.
        """
        try:
            settings.data_dir.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidSetting(
                f"data_dir {settings.data_dir} cannot be used: {error.strerror}"
            ) from error
        settings, calibration_file = calibrated(settings, folder)
        return cls(settings, folder, calibration_file)

    @property
    def secret(self) -> str:
        """The fleet's secret; "" where there is none, which only loopback addresses allow."""
        return self.settings.fleet_secret

    def at(self, address: str) -> WorkerSettings:
        """Return the process's settings for an address.

        Raises:
            InvalidSetting: Others could reach it, and there is no fleet secret.
        """
        require_secret(address, self.secret)
        return self.settings.worker(
            self.folder,
            address,
            shared=True,
            tenants_secret="" if self.secret else own_secret(self.settings.data_dir),
            calibration=self.calibration,
        )
