"""Which fusion method answers a request that names none, or leaves the choice to the service."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from service.errors import InvalidRequest, NotCalibrated
from service.gateway.schemas.generate import MethodChoice, Profile
from service.messages.replies import MethodInfo
from service.prompt import PromptFormat
from service.settings import Settings
from service.settings.calibration import BUILT_IN_FUSION, Calibration

logger = logging.getLogger(__name__)

AUTO = "auto"
FULL_PREFILL = "vanilla"
NOTHING_RECOMPUTED = "pie"
DEFAULT_QUALITY = 0.99

CALIBRATED = "kvstitch tune"
SET = "setting"
BUILT_IN = "built-in"


class DefaultMethods:
    """The service's defaults: built in, or found by `kvstitch tune`.

    Args:
        given: the settings as they were set, without what a calibration adds.
        calibration: what `kvstitch tune` found; None: it was not run for this model.
        fmt: the prompt format that is served.
    """

    def __init__(self, given: Settings, calibration: Calibration | None, fmt: PromptFormat) -> None:
        self._given = given
        self._calibration = calibration
        self._prefix_mode = fmt.prefix_mode
        self._told = False

    def choice(
        self, asked: MethodChoice | None, *, codec: str, offered: Sequence[MethodInfo]
    ) -> MethodChoice:
        """The method that a request gets.

        Args:
            asked: What the request says; None: nothing.
            codec: That the worker stores chunks with.
            offered: The worker's fusion methods.

        Raises:
            NotCalibrated: It says `auto`, and nothing was measured.
            InvalidRequest: It says `auto` with something wrong beside it.
        """
        if asked is None:
            return MethodChoice.model_validate(self._fusion(offered))
        if asked.method != AUTO:
            return asked
        quality = _quality(asked.parameters)
        if self._calibration is None or not self._calibration.measured:
            raise NotCalibrated(
                "fusion.method auto chooses among what was measured for this model, and nothing "
                "was: run `kvstitch tune --model … --documents …` for it, or name a method",
                field="fusion.method",
            )
        known = replace(
            self._calibration,
            measured=[m for m in self._calibration.measured if _exists(m.fusion, offered)],
        )
        found = known.cheapest(quality, prefix_mode=self._prefix_mode, codec=codec)
        return MethodChoice.model_validate(found or {"method": FULL_PREFILL})

    def of_profile(self, profile: Profile, offered: Sequence[MethodInfo]) -> MethodChoice:
        """The method of a profile.

        Of all combinations that were measured, no method is closer to full prefill than PIE for no
        row, and than the default for its share of rows; and evicting half of the KV, even of a full
        prefill, costs more than computing no row behind primers (docs/method.md).
        """
        if profile == "balanced":
            return MethodChoice.model_validate(self._fusion(offered))
        return MethodChoice(method=FULL_PREFILL if profile == "exact" else NOTHING_RECOMPUTED)

    def describe(self, *, codec: str, offered: Sequence[MethodInfo]) -> dict[str, Any]:
        """The defaults, and where each comes from, for GET /v1/methods."""
        values = {
            "fusion": self._fusion(offered),
            "eviction": None,
            "prefix_mode": self._prefix_mode,
            "codec": codec,
        }
        return {
            **values,
            "from": {name: self._origin(name, offered) for name in values},
            "auto": self._calibration is not None and bool(self._calibration.measured),
        }

    def _fusion(self, offered: Sequence[MethodInfo]) -> dict[str, Any]:
        """What was tuned, unless an older release did so with what is gone by now."""
        if self._calibration is None:
            return dict(BUILT_IN_FUSION)
        tuned = dict(self._calibration.defaults["fusion"])
        if _exists(tuned, offered):
            return tuned
        if not self._told:
            self._told = True
            logger.warning(
                "%s recommends %s, which this release does not have; the built-in default is used: "
                "run `kvstitch tune` again",
                self._calibration.path,
                tuned,
            )
        return dict(BUILT_IN_FUSION)

    def _origin(self, name: str, offered: Sequence[MethodInfo]) -> str:
        if name == "fusion" and self._calibration is not None:
            tuned = self._calibration.defaults["fusion"]
            return CALIBRATED if _exists(tuned, offered) else BUILT_IN
        if name in self._given.model_fields_set and getattr(self._given, name) is not None:
            return SET
        if self._calibration is not None and name in self._calibration.defaults:
            return CALIBRATED
        return "prompt format" if name == "prefix_mode" else BUILT_IN


def _exists(fusion: Mapping[str, Any], offered: Sequence[MethodInfo]) -> bool:
    """Whether the worker has this method with these parameters."""
    named = set(fusion) - {"method"}
    return any(info.name == fusion["method"] and named <= set(info.parameters) for info in offered)


def _quality(parameters: dict[str, Any]) -> float:
    unknown = sorted(set(parameters) - {"quality"})
    if unknown:
        raise InvalidRequest(
            f"fusion.{unknown[0]} is not a parameter of auto; its parameter is: quality",
            field=f"fusion.{unknown[0]}",
        )
    value = parameters.get("quality", DEFAULT_QUALITY)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:
        raise InvalidRequest(
            f"fusion.quality must be a number from 0 to 1, not {value!r}", field="fusion.quality"
        )
    return float(value)
