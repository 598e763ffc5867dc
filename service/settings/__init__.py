"""The settings of the service."""

from kvstitch.service.settings.fields import default_data_dir, default_model_cache, demo_model
from kvstitch.service.settings.loading import all_settings, load, unknown_variables
from kvstitch.service.settings.settings import PREFIX, Settings

__all__ = [
    "PREFIX",
    "Settings",
    "all_settings",
    "default_data_dir",
    "default_model_cache",
    "demo_model",
    "load",
    "unknown_variables",
]
