"""Which methods and which LoRA adapter answer a request.

A client's choice is checked against what the worker offers.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvstitch.service.errors import BoundToAdapter, InvalidRequest, NotCalibrated, UnknownMethod
from kvstitch.service.gateway.auth.access import Principal
from kvstitch.service.gateway.schemas.generate import Choices, MethodChoice
from kvstitch.service.messages.replies import OfferedMethod, Ready
from kvstitch.service.messages.requests import Method
from kvstitch.service.prompt import PromptFormat
from kvstitch.service.settings import Settings
from kvstitch.service.settings.calibration import BUILT_IN_FUSION, STATEFUL_FUSION, Calibration
from kvstitch.service.shared.parameters import check

logger = logging.getLogger(__name__)

AUTO = "auto"
FULL_PREFILL = "vanilla"
NAMES = ("exact", "balanced", "fastest")
"""What methods are called where nobody need know the papers."""
_FASTEST = "pie"
_PRIMED = ("primer", "neighbours")
_PROFILES = {"exact": FULL_PREFILL, "fast": "pie"}  # the third, balanced, is the default method
DEFAULT_QUALITY = 0.99

CALIBRATED = "kvstitch tune"
SET = "setting"
BUILT_IN = "built-in"


class DefaultMethods:
    """The service's defaults: built in, as they were set (`given`), or found by `kvstitch tune`."""

    def __init__(self, given: Settings, calibration: Calibration | None, fmt: PromptFormat) -> None:
        self._given = given
        self._calibration = calibration
        self._prefix_mode = fmt.prefix_mode
        self._told = False

    def chosen(self, request: Choices, ready: Ready) -> tuple[Method, Method | None]:
        """Return the fusion and the eviction method of a request, with all their parameters; raises
        NotCalibrated, UnknownMethod, or InvalidRequest of what does not go together."""
        for name in ("fusion", "eviction"):
            if request.profile is not None and getattr(request, name) is not None:
                raise InvalidRequest(
                    f"profile already chooses the methods: leave out {name}, or profile",
                    field="profile",
                )
        choice = self._fusion_choice(request.profile, request.fusion, ready)
        fusion = chosen_method("fusion", choice, ready.fusion)
        if request.eviction is None:
            return fusion, None
        eviction = chosen_method("eviction", request.eviction, ready.eviction)
        if fusion.name in {info.name for info in ready.fusion if info.sparse}:
            raise InvalidRequest(
                f"fusion.method {fusion.name} already holds only part of the documents' KV: leave "
                "eviction out",
                field="eviction.method",
            )
        return fusion, eviction

    def _fusion_choice(
        self, profile: str | None, asked: MethodChoice | None, ready: Ready
    ) -> MethodChoice:
        # Of all combinations that were measured, no method is closer to full prefill than PIE for
        # no row, and than the default for its share of rows; and evicting half of the KV, even of
        # a full prefill, costs more than computing no row behind primers (docs/methods.md).
        if profile in _PROFILES:
            return MethodChoice(method=_PROFILES[profile])
        if asked is None:
            return MethodChoice.model_validate(self._fusion(ready.fusion))
        if asked.method in NAMES:
            named = self._named(ready.fusion)[asked.method]
            return MethodChoice.model_validate({**named, **asked.parameters})
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
            measured=[m for m in self._calibration.measured if _exists(m.fusion, ready.fusion)],
        )
        codec = ready.model.codec
        found = known.cheapest(quality, prefix_mode=self._prefix_mode, codec=codec)
        return MethodChoice.model_validate(found or {"method": FULL_PREFILL})

    def _named(self, offered: Sequence[OfferedMethod]) -> dict[str, dict[str, Any]]:
        # Of 100 prompts on 1.5B and 300 on 0.5B PIE behind primers has as many right answers as
        # question_scout at 5 % (66 and 69; 37 and 37 %), in a third of its time; without them it
        # loses half of full prefill's, and nothing cheaper than the default was measured there
        # (docs/results.md).
        usual = self._fusion(offered)
        fastest = {"method": _FASTEST} if self._prefix_mode in _PRIMED else usual
        return dict(zip(NAMES, ({"method": FULL_PREFILL}, usual, fastest), strict=True))

    def named(self, ready: Ready) -> dict[str, dict[str, Any]]:
        """Return what each of NAMES stands for, with all parameters."""
        chosen = {
            name: chosen_method("fusion", MethodChoice.model_validate(fusion), ready.fusion)
            for name, fusion in self._named(ready.fusion).items()
        }
        return {name: {"method": m.name, **m.parameters} for name, m in chosen.items()}

    def describe(self, ready: Ready) -> dict[str, Any]:
        """Return the defaults, and where each comes from, for GET /v1/methods."""
        offered = ready.fusion
        values = {
            "fusion": self._fusion(offered),
            "eviction": None,
            "prefix_mode": self._prefix_mode,
            "codec": ready.model.codec,
        }
        return {
            **values,
            "from": {name: self._origin(name, offered) for name in values},
            "auto": self._calibration is not None and bool(self._calibration.measured),
        }

    def _fusion(self, offered: Sequence[OfferedMethod]) -> dict[str, Any]:
        """Return the tuned method, or the built-in one where this release lacks what was tuned."""
        if self._calibration is None:
            return _built_in(offered)
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
        return _built_in(offered)

    def _origin(self, name: str, offered: Sequence[OfferedMethod]) -> str:
        if name == "fusion" and self._calibration is not None:
            tuned = self._calibration.defaults["fusion"]
            return CALIBRATED if _exists(tuned, offered) else BUILT_IN
        if name in self._given.model_fields_set and getattr(self._given, name) is not None:
            return SET
        if self._calibration is not None and name in self._calibration.defaults:
            return CALIBRATED
        return "prompt format" if name == "prefix_mode" else BUILT_IN


def _built_in(offered: Sequence[OfferedMethod]) -> dict[str, Any]:
    """Return the built-in default, of models that keep a state where the model cannot run it."""
    unavailable = {info.name for info in offered if info.unavailable}
    usable = BUILT_IN_FUSION["method"] not in unavailable
    return dict(BUILT_IN_FUSION if usable else STATEFUL_FUSION)


def _exists(fusion: Mapping[str, Any], offered: Sequence[OfferedMethod]) -> bool:
    """Return whether the worker has this method with these parameters."""
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


def chosen_method(kind: str, choice: MethodChoice, offered: Sequence[OfferedMethod]) -> Method:
    """Return the chosen method with all its parameters, defaults filled in."""
    info = next((info for info in offered if info.name == choice.method), None)
    if info is None:
        known = ", ".join(sorted(info.name for info in offered))
        raise UnknownMethod(
            f"{kind}.method {choice.method!r} is not known; known methods: {known}",
            field=f"{kind}.method",
        )
    if info.unavailable:
        raise InvalidRequest(info.unavailable, field=f"{kind}.method")
    return Method(info.name, check(info.parameters, choice.parameters, where=kind))


def chosen_adapter(asked: str | None, principal: Principal, ready: Ready) -> str:
    """Return the adapter's name; "" for the base model."""
    bound = principal.adapter
    if bound and asked not in (None, bound):
        raise BoundToAdapter(
            f"{principal.credential} is bound to the adapter {bound!r}: leave adapter out, "
            "or use another key",
            field="adapter",
        )
    name = asked if asked is not None else bound
    if name and name not in {each.name for each in ready.adapters}:
        names = ", ".join(sorted(each.name for each in ready.adapters)) or "none"
        of_key = f" (that of {principal.credential})" if bound else ""
        raise InvalidRequest(
            f"there is no adapter {name!r}{of_key}: this service has {names}", field="adapter"
        )
    return name
