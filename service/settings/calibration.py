"""`calibration.json`: what `kvstitch tune` has found out about a model on somebody's documents.

    {
      "model": "<fingerprint>",
      "defaults": {"fusion": {"method": …}, "eviction": null, "prefix_mode": …, "codec": …,
                   "gate_min_agreement": …, "gate_max_kl": …},
      "measured": [{"fusion": {…}, "eviction": null, "prefix_mode": …, "codec": …,
                    "operations": …, "agreement": {"mean": …, "low": …, "high": …}, …}, …],
      "evidence": {…},
      "head_scores": {…}, "stable_layers": […], "selection_layer": …
    }

`defaults` are the service's where neither the user nor the request says otherwise, and `measured`
is what `fusion: {"method": "auto"}` chooses from. The last line is the worker's (heads, layers);
it may stand alone in a model's folder. The file in the data folder comes first, then that in the
model's folder; one that was made for another model is not used.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.settings import Settings
from kvstitch.service.shared.model_fingerprint import CALIBRATION_FILE, fingerprint

OFF = "off"
"""A value of the setting `calibration`: none is used."""
SETTINGS = ("prefix_mode", "codec", "exact_below", "gate_min_agreement", "gate_max_kl")
"""Defaults that are settings of the service; the others are those of a request."""
BUILT_IN_FUSION = {"method": "question_scout", "ratio": 0.15}
STATEFUL_FUSION = {"method": "legolink"}
"""For models whose layers keep a state, through which chosen rows cannot pass."""

logger = logging.getLogger(__name__)


class Measured(BaseModel, frozen=True):
    """One configuration on the test part; its operations are relative to full prefill's."""

    fusion: dict[str, Any]
    prefix_mode: str
    codec: str
    operations: float
    # Lower end of the 95 % interval of the share of answer tokens that full prefill says too.
    agreement: Annotated[float, BeforeValidator(itemgetter("low"))]


@dataclass(frozen=True)
class Calibration:
    """The part of a calibration that decides for the service: the file's `defaults`, and what was
    measured without eviction, full prefill not among them."""

    path: Path
    defaults: Mapping[str, Any] = field(default_factory=dict)
    measured: Sequence[Measured] = ()

    def settings(self, given: Settings) -> Settings:
        """Return `given` with this calibration's defaults for what is not set explicitly."""
        missing = (self.defaults.keys() & set(SETTINGS)) - given.model_fields_set
        return given.model_copy(update={name: self.defaults[name] for name in missing})

    def cheapest(self, quality: float, *, prefix_mode: str, codec: str) -> dict[str, Any] | None:
        """Return the cheapest measured fusion that agrees with `quality`, None for full prefill;
        only what was measured with this prefix mode and codec counts."""
        same = [m for m in self.measured if (m.prefix_mode, m.codec) == (prefix_mode, codec)]
        good = [m for m in same if m.agreement >= quality]
        return dict(min(good, key=lambda m: m.operations).fusion) if good else None


def find(settings: Settings, model_folder: Path) -> Calibration | None:
    """Return the calibration that a service with these settings uses, None if there is none. Raises
    InvalidSetting: the file that `calibration` names cannot be used."""
    if settings.calibration == OFF:
        return None
    if settings.calibration:
        return _read(Path(settings.calibration).expanduser(), model_folder, settings.quantize)
    for folder in (settings.data_dir, model_folder):
        path = folder / CALIBRATION_FILE
        try:
            found = _read(path, model_folder, settings.quantize) if path.is_file() else None
        except InvalidSetting as error:
            logger.warning("not used: %s", error.message)
            continue
        if found is not None and found.defaults:
            return found
    return None


def calibrated(settings: Settings, model_folder: Path) -> tuple[Settings, Path | None]:
    """Return the settings that a service uses with its calibration, and the calibration's file."""
    found = find(settings, model_folder)
    return (settings, None) if found is None else (found.settings(settings), found.path)


def _read(path: Path, model_folder: Path, quantize: str) -> Calibration:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if "defaults" not in raw:
            return Calibration(path)
        made_for = raw["model"]
        measured = [Measured.model_validate(each) for each in raw["measured"]]
        found = Calibration(path, _defaults(raw["defaults"]), measured)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidSetting(
            f"calibration {path} cannot be read ({error!r}): make it again with `kvstitch tune`"
        ) from error
    if made_for != fingerprint(str(model_folder), quantize):
        raise InvalidSetting(
            f"calibration {path} was made for another model than {model_folder}: make one with "
            "`kvstitch tune`"
        )
    return found


def _defaults(raw: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(raw["fusion"]["method"], str):
        raise TypeError("defaults.fusion.method is not a name")
    # Settings made again from these values are validated as the user's are.
    Settings.model_validate({name: raw[name] for name in SETTINGS if name in raw})
    return dict(raw)
