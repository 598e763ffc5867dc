"""JSON schemas as people's programs write them, turned into what llguidance can hold.

    annotations       left out: unknown formats, `nullable`, everything the standard does not know
    composition       `allOf`, and keywords beside `$ref`, `anyOf` and `oneOf`, merged
    other properties  none, in an object that lists properties and does not say
    narrower          `contains`: the first items are such; formats; numbers that a float can tell
    not held          named, so that the answer can be checked

docs/openai.md#schemas has the table of all keywords.
"""

from typing import Any
from urllib.parse import unquote

from kvstitch.service.grammars.keywords import KEPT, REWRITTEN, rewritten
from kvstitch.service.grammars.merging import Schema, as_list, distinct, merge, windows
from kvstitch.service.grammars.patterns import HELD, holdable

MAX_NODES = 20_000
MAX_DEPTH = 64
EXACT = 2**53 - 1
"""Larger whole numbers are not told apart by floats, which llguidance counts with."""

_ABOUT = {
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("minProperties", "maxProperties", "propertyNames"),
    ),
    "array": ("items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems"),
    "string": ("pattern", "minLength", "maxLength", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


def held(schema: Schema) -> tuple[Schema | bool, list[str]]:
    """Return what can be held of a schema, and what cannot. Raises what Python raises of one that
    is malformed."""
    walk = _Walk(schema)
    made = walk.schema(schema, "", 0)
    if walk.definitions and isinstance(made, dict):
        made = {**made, "$defs": walk.definitions}
    return made, list(dict.fromkeys(walk.unheld))


class _Walk:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._nodes = 0
        self._names: dict[str, str] = {}  # of definitions, by reference
        self.definitions: dict[str, Any] = {}
        self.unheld: list[str] = []

    def schema(self, node: Any, path: str, depth: int) -> Any:
        """Return a schema, with all that is in it, as it can be held."""
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise ValueError(
                f"it has more than {MAX_NODES} parts when it is merged, or more than {MAX_DEPTH} "
                "inside one another: send a smaller one"
            )
        if isinstance(node, bool):
            return node
        flat = self._flat(node, path)
        if flat is False:
            return False
        if set(flat) == {"$ref"}:
            return {"$ref": self._defined(flat["$ref"], path, depth)}
        for key in ("anyOf", "oneOf"):
            if key in flat:
                return self._alternatives(flat, key, path, depth)
        return self._plain(flat, path, depth)

    # -- composition -----------------------------------------------------------------------------

    def _flat(self, node: Any, path: str) -> Any:
        """Return a schema without `allOf`, and without `$ref` beside other keywords."""
        if isinstance(node, bool):
            return {} if node else False
        own = {key: value for key, value in node.items() if key in KEPT or key in REWRITTEN}
        parts: list[Any] = list(own.pop("allOf", ()))
        if "$ref" in own and (len(own) > 1 or parts):
            parts.insert(0, {"$ref": own.pop("$ref")})
        out: Any = self._conditions(self._numbers(own), path)
        for number, part in enumerate(parts):
            at = f"{path}/allOf/{number}"
            made = self._flat(part, at)
            if isinstance(made, dict) and set(made) == {"$ref"}:
                if len(parts) == 1 and not out:
                    return made
                made = self._flat(self._target(made["$ref"]), at)
                if isinstance(made, dict) and set(made) == {"$ref"}:
                    made = self._flat({"allOf": [made, {}]}, at)
            if made is False or out is False:
                return False
            # The first part's properties come first, then the schema's own.
            pair = (out, made) if number else (made, out)
            out = merge(*pair, self._note(at))
            if out.get("type") == [] or out.get("enum") == []:
                return False
        return out

    def _note(self, path: str) -> Any:
        return lambda what: self.unheld.append(f"{what} ({path or '/'})")

    def _target(self, reference: str) -> Any:
        """Return what a reference names. Raises LookupError: it is not within the schema."""
        document, _, pointer = reference.partition("#")
        if document:
            raise LookupError(reference)
        target: Any = self._root
        for part in unquote(pointer).split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            target = target[int(part) if isinstance(target, list) else part]
        return target

    def _defined(self, reference: str, path: str, depth: int) -> str:
        """Return the name of a reference's schema among ours."""
        name = self._names.get(reference)
        if name is None:
            target = self._target(reference)
            name = self._names[reference] = f"d{len(self._names)}"
            # Its depth is its own: a list of lists of itself has no end.
            self.definitions[name] = self.schema(target, reference, min(depth, MAX_DEPTH // 2))
            if self.definitions[name] == {"$ref": f"#/$defs/{name}"}:
                raise ValueError(f"{reference} refers to nothing but itself")
        return f"#/$defs/{name}"

    def _alternatives(self, flat: Schema, key: str, path: str, depth: int) -> Any:
        beside = {name: value for name, value in flat.items() if name != key}
        found = []
        for number, branch in enumerate(flat[key]):
            at = f"{path}/{key}/{number}"
            made = self.schema({"allOf": [beside, branch]} if beside else branch, at, depth + 1)
            if made is not False:
                found.append(made)
        if key == "oneOf":
            looked = [self._looked_up(each) for each in found]
            if not all(distinct(a, b) for n, a in enumerate(looked) for b in looked[:n]):
                self.unheld.append(f"oneOf ({path or '/'})")
        if not found:
            return False
        return found[0] if len(found) == 1 else {"anyOf": found}

    def _looked_up(self, made: Any) -> Any:
        for _ in range(MAX_DEPTH):
            if not (isinstance(made, dict) and set(made) == {"$ref"}):
                return made
            made = self.definitions.get(made["$ref"].removeprefix("#/$defs/"), {})
        return {}

    # -- keywords that become others -------------------------------------------------------------

    def _conditions(self, own: Schema, path: str) -> Any:
        """Express keywords that llguidance does not know by those that it does."""
        names = own.get("propertyNames")
        if isinstance(names, dict) and "$ref" in names:  # of a dictionary by an Enum
            own = {**own, "propertyNames": self._flat({"allOf": [names, {}]}, path)}
        out, extra = rewritten(own, self._note(path))
        if not extra:
            return out
        return self._flat({**out, "allOf": [*out.get("allOf", ()), *extra]}, path)

    def _numbers(self, own: Schema) -> Schema:
        """Write bounds as the latest draft does, within what floats can tell apart."""
        for bound, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if isinstance(own.get(strict), bool):
                exclusive = own.pop(strict)
                if exclusive and bound in own:
                    own[strict] = own.pop(bound)
            for name in (bound, strict):
                value = own.get(name)
                if isinstance(value, int | float) and abs(value) > EXACT:
                    useful = (value > 0) == (bound == "maximum")
                    own[name] = (EXACT if value > 0 else -EXACT) if useful else value
        return own

    # -- one kind of value -----------------------------------------------------------------------

    def _plain(self, flat: Schema, path: str, depth: int) -> Any:
        note = self._note(path)
        out = dict(flat)
        kinds = [kind for kind, names in _ABOUT.items() if any(name in out for name in names)]
        if "type" not in out and kinds and "enum" not in out and "const" not in out:
            out["type"] = kinds if len(kinds) > 1 else kinds[0]
        types = as_list(out.get("type", []))
        if "type" in out and not types:
            return False
        if types in (["integer"], ["number"]) and "enum" not in out and "const" not in out:
            for bound, most in (("minimum", -EXACT), ("maximum", EXACT)):
                if bound not in out and f"exclusiveM{bound[1:]}" not in out:
                    out[bound] = most
        self._strings(out, note)
        if "object" in types or not types:
            self._objects(out, path, depth)
        if isinstance(out.get("items"), list):
            out["prefixItems"] = out.pop("items")
            if "additionalItems" in out:
                out["items"] = out["additionalItems"]
        out.pop("additionalItems", None)
        if "prefixItems" in out:
            out["prefixItems"] = [
                self.schema(each, f"{path}/prefixItems/{n}", depth + 1)
                for n, each in enumerate(out["prefixItems"])
            ]
        if "items" in out:
            out["items"] = self.schema(out["items"], f"{path}/items", depth + 1)
        for value in [out["const"]] if "const" in out else out.get("enum", ()):
            if isinstance(value, int) and not isinstance(value, bool) and abs(value) > EXACT:
                note("const")
        return windows(out) if "object" in types else out

    def _strings(self, out: Schema, note: Any) -> None:
        expressions: list[str] = []
        for part in (out, *out.get("allOf", ())):
            if (known := HELD.get(part.pop("format", ""))) is not None:
                expressions.append(f"^({known})$")
            if "pattern" in part:
                found, exact = holdable(part.pop("pattern"))
                expressions += found
                if not exact:
                    note("pattern")
        rest = [part for part in out.pop("allOf", ()) if part]
        if expressions:
            out["pattern"], *more = expressions
            rest += [{"type": "string", "pattern": each} for each in more]
        if rest:
            out["allOf"] = rest

    def _objects(self, out: Schema, path: str, depth: int) -> None:
        closed = out.pop("unevaluatedProperties", None) is False
        listed = out.get("properties", {} if closed else None)
        if listed is not None and not any(
            name in out for name in ("additionalProperties", "patternProperties")
        ):
            listed = {**listed, **{n: {} for n in out.get("required", ()) if n not in listed}}
            out["additionalProperties"] = False
        if listed is not None:
            out["properties"] = {
                name: self.schema(value, f"{path}/properties/{name}", depth + 1)
                for name, value in listed.items()
            }
        if "patternProperties" in out:
            made: dict[str, Any] = {}
            for pattern, value in out["patternProperties"].items():
                expressions, exact = holdable(pattern)
                if exact and len(expressions) == 1:
                    made[pattern] = self.schema(value, f"{path}/patternProperties", depth + 1)
                else:
                    self.unheld.append(f"patternProperties ({path or '/'})")
            out["patternProperties"] = made
        if isinstance(out.get("additionalProperties"), dict):
            out["additionalProperties"] = self.schema(
                out["additionalProperties"], f"{path}/additionalProperties", depth + 1
            )
