"""The settings of the service."""

from kvstitch.service.settings.fields import default_data_dir as default_data_dir
from kvstitch.service.settings.fields import default_model_cache as default_model_cache
from kvstitch.service.settings.fields import demo_model as demo_model
from kvstitch.service.settings.loading import all_settings as all_settings
from kvstitch.service.settings.loading import load as load
from kvstitch.service.settings.loading import unknown_variables as unknown_variables
from kvstitch.service.settings.settings import PREFIX as PREFIX
from kvstitch.service.settings.settings import Settings as Settings
