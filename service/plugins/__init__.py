"""The seam between the core and what comes beside it: kinds of things that plugins add.

A plugin is a module with functions that are marked with `hookimpl` and named as in hookspecs.py. It
is found by its entry point in the group "kvstitch", or named in KVSTITCH_PLUGINS. The core asks
`hooks()`; it imports no plugin, and a plugin's module imports what is heavy where it is used.
"""

from kvstitch.service.plugins.hookspecs import hookimpl as hookimpl
from kvstitch.service.plugins.kinds import Adapters as Adapters
from kvstitch.service.plugins.kinds import FileFormat as FileFormat
from kvstitch.service.plugins.kinds import GatewayPart as GatewayPart
from kvstitch.service.plugins.kinds import IdentityProvider as IdentityProvider
from kvstitch.service.plugins.kinds import ModelSource as ModelSource
from kvstitch.service.plugins.kinds import PictureReader as PictureReader
from kvstitch.service.plugins.kinds import Tables as Tables
from kvstitch.service.plugins.kinds import TierKind as TierKind
from kvstitch.service.plugins.kinds import Verb as Verb
from kvstitch.service.plugins.manager import VARIABLE as VARIABLE
from kvstitch.service.plugins.manager import adapters as adapters
from kvstitch.service.plugins.manager import hooks as hooks
from kvstitch.service.plugins.manager import load_object as load_object
from kvstitch.service.plugins.manager import registered as registered
from kvstitch.service.plugins.manager import tiers as tiers
