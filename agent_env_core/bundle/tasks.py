"""Task files: the rules of their steps, and references rewritten to ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent_env_core.bundle.config import ConfigFault, Problems, parse_json
from agent_env_core.bundle.names import quote, show
from agent_env_core.bundle.references import Lost, Names, Reference, StepDeclaration, an, slots, waits
from agent_env_core.errors import PluginError, describe

StepTypes = Callable[[str], StepDeclaration | None]
RETRY_FROM = ("retry_from_step_id", "go_to_step_id")


class Declarations:
    """What is known of each step type; asked once a type."""

    def __init__(self, step_types: StepTypes) -> None:
        self._ask = step_types
        self._known: dict[str, StepDeclaration | Lost] = {}

    def find(self, step_type: str) -> StepDeclaration | Lost:
        """The declaration, or why there is none that can be used."""
        if step_type not in self._known:
            self._known[step_type] = self._look_up(step_type)
        return self._known[step_type]

    def _look_up(self, step_type: str) -> StepDeclaration | Lost:
        try:
            found = self._ask(step_type)
        except PluginError as exc:
            return Lost(exc.message, exc.fix)
        except Exception as exc:
            # A plugin's code: whatever it raises is a problem of the task that needs it, not a crash of the reader.
            return Lost(f"the step type {quote(step_type)} can't be used: {describe(exc)}", "")
        if found is None:
            return Lost(f"there is no step type {quote(step_type)}", "correct it, or install the plugin that brings it")
        if found.unsupported:
            return Lost(f"the step type {quote(step_type)} {found.unsupported}", "")
        return found


@dataclass
class TaskReader:
    """Reads the tasks of one bundle.

    Attributes:
        names: What a reference can name.
        declarations: What is known of step types.
    """

    names: Names
    declarations: Declarations

    def read(self, data: bytes, place: str, task_id: str, problems: Problems) -> tuple[dict[str, Any], ...]:
        """A task's steps, checked, with references as ids.

        Args:
            data: The file.
            place: How problems name it.
            task_id: The task's id, which the names of outputs follow.
            problems: Where to note what is wrong with this task.
        """
        try:
            steps = parse_json(data)
        except ConfigFault as exc:
            problems.add(place, str(exc))
            return ()
        if not isinstance(steps, list):
            problems.add(place, f"must be an array of steps, not {_json_type(steps)}", "wrap the steps in [ ]")
            return ()
        _TaskFile(self, place, task_id, steps, problems).check()
        return tuple(step for step in steps if isinstance(step, dict))


class _TaskFile:
    """One task file while it is checked; its steps are rewritten in place."""

    def __init__(self, reader: TaskReader, place: str, task_id: str, steps: list[Any], problems: Problems) -> None:
        self.reader = reader
        self.problems = problems
        self.place = place
        self.task_id = task_id
        self.steps = steps
        self.position: dict[str, int] = {}
        self.needs: list[set[int] | None] = []  # direct dependencies by position; None is all earlier steps
        self.outputs: dict[str, tuple[int, Reference]] = {}  # name -> writing step, and what it writes there

    def check(self) -> None:
        declared: list[StepDeclaration | None] = []
        for at, step in enumerate(self.steps):
            declared.append(self._frame(at, step))
        for at, declaration in enumerate(declared):
            if declaration:
                self._collect_outputs(at, declaration)
        for at, declaration in enumerate(declared):
            if declaration:
                self._step(at, self.steps[at], declaration)

    def _where(self, at: int) -> str:
        step_id = self.steps[at].get("id") if isinstance(self.steps[at], dict) else None
        return f"{self.place}:{show(step_id)}" if isinstance(step_id, str) and step_id else f"{self.place}:[{at}]"

    def _add(self, at: int, message: str, fix: str = "") -> None:
        self.problems.add(self._where(at), message, fix)

    # -- what every step has

    def _frame(self, at: int, step: Any) -> StepDeclaration | None:
        """Checks a step's common fields; returns what its type declares, or None where that can't be said."""
        self.needs.append(None)
        if not isinstance(step, dict):
            self._add(at, f"must be an object, not {_json_type(step)}")
            return None
        self._dependencies(at, step)  # before its own id is known: a step comes after earlier ones only
        self._id(at, step)
        if not isinstance(step.get("fail_task_on_error", True), bool):
            self._add(at, f"fail_task_on_error must be true or false, not {quote(step['fail_task_on_error'])}")
        if step.get("retry_config") is not None:
            self._retry(at, step["retry_config"])
        kind = step.get("type")
        if not isinstance(kind, str) or not kind:
            told = "has no type" if kind is None else f"type must be a text, not {quote(kind)}"
            self._add(at, told, "name its step type")
            return None
        found = self.reader.declarations.find(kind)
        if isinstance(found, Lost):
            self._add(at, *found)
            return None
        return found

    def _id(self, at: int, step: dict[str, Any]) -> None:
        step_id = step.get("id")
        if not isinstance(step_id, str) or not step_id:
            told = "has no id" if step_id is None else f"id must be a non-empty text, not {quote(step_id)}"
            self._add(at, told, "scores and dependencies name a step by its id")
        elif (first := self.position.setdefault(step_id, at)) != at:
            message = f"the id {quote(step_id)} is used twice, by [{first}] and [{at}]"
            self._add(at, message, "rename one of them")

    def _dependencies(self, at: int, step: dict[str, Any]) -> None:
        given = step.get("depends_on")
        if given is None:
            return
        if not isinstance(given, list):
            fix = f"write [{json.dumps(given)}]" if isinstance(given, str) else ""
            self._add(at, f"depends_on must be a list of step ids, not {quote(given)}", fix)
            return
        needs = self.needs[at] = set()
        for item in given:
            name = item.get("task_step_id") if isinstance(item, dict) else item
            if not isinstance(name, str):
                self._add(at, f'depends_on holds {quote(item)}, which is neither a step id nor {{"task_step_id": …}}')
            elif name in self.position:
                needs.add(self.position[name])
            else:
                self._add(at, *self._bad_dependency(at, name))

    def _bad_dependency(self, at: int, name: str) -> tuple[str, str]:
        later = [i for i, step in enumerate(self.steps) if isinstance(step, dict) and step.get("id") == name]
        if at in later:
            return f"depends_on names {quote(name)}, the step itself", "remove it"
        if later:
            return f"depends_on names {quote(name)}, a later step", "move that step up"
        return f"depends_on names {quote(name)}, and no step has that id", ""

    def _retry(self, at: int, given: Any) -> None:
        if not isinstance(given, dict):
            self._add(at, f"retry_config must be an object, not {quote(given)}")
            return
        times = given.get("max_retries", 1)
        if isinstance(times, bool) or not isinstance(times, int) or times < 0:
            self._add(at, f"retry_config.max_retries must be a whole number of 0 or more, not {quote(times)}")
        start = next((given[key] for key in RETRY_FROM if key in given), None)
        if not isinstance(start, str):
            self._add(at, f"retry_config.{RETRY_FROM[0]} must be a step id, not {quote(start)}")
        elif start not in self.position:
            self._add(at, f"retry_config.{RETRY_FROM[0]} names {quote(start)}, which is no step up to this one")
        elif self.position[start] != at and not self._after(at, self.position[start]):
            self._add(at, f"retry_config.{RETRY_FROM[0]} names {quote(start)}, which this step doesn't depend on")

    def _after(self, later: int, earlier: int) -> bool:
        """Whether one step depends on another, directly or through others."""
        waiting, seen = [later], {later}
        while waiting:
            at = waiting.pop()
            needs = self.needs[at]
            if earlier < at and (needs is None or earlier in needs):
                return True
            more = (set(range(at)) if needs is None else needs) - seen
            seen |= more
            waiting.extend(more)
        return False

    # -- references

    def _collect_outputs(self, at: int, declaration: StepDeclaration) -> None:
        for reference in declaration.references or ():
            if not reference.output:
                continue
            for holder, key in slots(self.steps[at], reference):
                name = holder[key]
                if name in self.outputs:
                    writer = self.steps[self.outputs[name][0]].get("id")
                    self._add(at, f"{reference.field}: the output {quote(name)} is written by step {quote(writer)} too")
                self.outputs.setdefault(name, (at, reference))

    def _step(self, at: int, step: dict[str, Any], declaration: StepDeclaration) -> None:
        if declaration.references is None:
            self._undeclared(at, step)
        for reference in declaration.references or ():
            for holder, key in slots(step, reference):
                if reference.output:
                    holder[key] = f"{self.task_id}/{holder[key]}"
                else:
                    self._resolve(at, reference, holder, key)
        if declaration.check:
            try:
                faults = declaration.check(step)
            except Exception as exc:  # a plugin's code, as in Declarations
                faults = [f"its check failed: {describe(exc)}"]
            for fault in faults:
                self._add(at, fault)

    def _resolve(self, at: int, reference: Reference, holder: Any, key: Any) -> None:
        value = holder[key]
        pin = holder.get(reference.pin) if reference.pin and isinstance(holder, dict) else None
        writer, written = self.outputs.get(value, (at, reference))
        if writer != at and written.kind == reference.kind:
            self._read_output(at, reference, holder, key, pin)
            return
        if waits(value):  # what it names is known once a seed fills it
            self._bad_pin(at, reference, pin)
            return
        target = self.reader.names.resolve(reference.kind, value, self._where(at), self.problems, reference.field)
        if target is None:
            self._bad_pin(at, reference, pin)
            return
        if reference.artifact_type and target.type not in ("", reference.artifact_type):
            message = f"{reference.field}: {value!r} is of type {target.type}, and {reference.artifact_type} is needed"
            self._add(at, message)
        if pin is not None and target.pinned:
            self._bad_pin(at, reference, pin)
        elif pin is not None:
            message = f"{reference.pin} pins a version of {value!r}, which belongs to {target.home}"
            self._add(at, message, f"leave {reference.pin} out")
        holder[key] = target.id

    def _bad_pin(self, at: int, reference: Reference, pin: Any) -> None:
        if pin is not None and (isinstance(pin, bool) or not isinstance(pin, int) or pin < 1):
            self._add(at, f"{reference.pin} must be a whole number of 1 or more, not {quote(pin)}")

    def _read_output(self, at: int, reference: Reference, holder: Any, key: Any, pin: Any) -> None:
        value = holder[key]
        writer, written = self.outputs[value]
        if not self._after(at, writer):
            said = f"{reference.field}: {quote(value)} is written by step {quote(self.steps[writer].get('id'))}"
            self._add(at, f"{said}, which this step doesn't depend on", "name it in depends_on, or move it up")
        if None not in (wanted := reference.artifact_type, made := written.artifact_type) and made != wanted:
            self._add(at, f"{reference.field}: {quote(value)} is written as {made}, and {wanted} is needed")
        if pin is not None:
            message = f"{reference.pin} pins a version of {quote(value)}, which this task writes"
            self._add(at, message, f"leave {reference.pin} out")
        holder[key] = f"{self.task_id}/{value}"

    def _undeclared(self, at: int, step: dict[str, Any]) -> None:
        for key, value in step.items():
            if key in ("id", "type") or not isinstance(value, str):
                continue
            if kind := self.reader.names.any_named(value):
                # It may well be meant as a reference, and nobody says so: left as it is it would name nothing.
                message = f"{key}: {quote(value)} names {an(kind)} of this bundle"
                fix = f"the step type {step['type']!r} declares no references, so write the full id"
                self._add(at, message, fix)


def _json_type(value: Any) -> str:
    """What a JSON value is, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a true or false"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    return "a text" if isinstance(value, str) else "a number"
