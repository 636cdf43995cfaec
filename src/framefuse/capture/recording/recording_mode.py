"""The torch function mode by which a recording sees the calls of torch, and its place among the program's modes."""

from __future__ import annotations

import sys
from types import FunctionType, MethodWrapperType

import torch
from torch.overrides import TorchFunctionMode, handle_torch_function
from torch.utils._device import _device_constructors

from framefuse.capture.facts.questions import Question, answered
from framefuse.capture.program.equivalents import OVERRIDDEN
from framefuse.capture.recording.call_names import call_name
from framefuse.capture.recording.mode_stack import modes_above, replace
from framefuse.capture.recording.queries import ANSWERS
from framefuse.capture.recording.recorder import Recorder
from framefuse.ir.classes import PLAIN_TENSORS
from framefuse.ir.default_device import device_of_mode
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords, Value

ENABLED = Question(torch._C._is_torch_function_enabled)  # whether classes are asked, by whoever calls what is compiled


class RecordingMode(TorchFunctionMode):
    """Hands each outermost torch call to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.device = device_of_mode()

    def __exit__(self, *exception: object) -> None:
        """Leaves the stack from wherever it stands: the program may be in modes that it entered later."""
        above = modes_above(self)
        if above is not None:
            replace((self, *above), above)

    def __torch_function__(
        self, func: Function, types: tuple[type, ...], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Value:
        recorder, given, kwargs = self.recorder, kwargs, kwargs or {}
        recorder.note_mode_call(args, kwargs)
        if not recorder.alive or recorder.paused:
            return func(*args, **kwargs)
        # Python functions of torch name its own classes as well.
        if any(kind not in PLAIN_TENSORS for kind in types) and torch._C._is_torch_function_enabled():
            return self._overridden(func, types, args, given)
        if recorder.transformed is not None:
            return recorder.transformed.call(func, args, kwargs)
        if self.device is not None and kwargs.get("device") is None and func in _device_constructors():
            kwargs = {**kwargs, "device": self.device}
        given_by_name = func
        if type(func) is FunctionType:
            if not _of_torch(func.__globals__):
                func = _asked(func, recorder.called)
        elif type(func) is MethodWrapperType and type(func.__self__) is property:
            func = _replaced(func.__self__).__get__
        if self.device is not None and func is not given_by_name:
            recorder.kill("torch-mode", "A default device, around a function of torch that the program has set anew,")
            return func(*args, **kwargs)
        name = call_name(func)
        answer = ANSWERS.get(name)
        if answer is not None:
            return answer(recorder, func, name, args, kwargs)
        return recorder.run(func, name, args, kwargs)

    def _overridden(self, func: Function, types: tuple[type, ...], args: Arguments, kwargs: Keywords | None) -> Value:
        """Runs what classes among the arguments say in Python of a call, under this mode as the program's code is."""
        machine = self.recorder.machine
        assert machine is not None
        answered(self.recorder.sources, ENABLED)
        given = [*args, *(kwargs or {}).values()]
        given += [part for value in given if is_a(value, (tuple, list)) for part in value]
        holders = [next((value for value in given if type(value) is kind), kind) for kind in types]
        with self:
            value = machine.call_nested(OVERRIDDEN, (func, holders, types, args, kwargs))
        if value is not NotImplemented:
            return value
        self.recorder.kill("tensor-kind", "What no __torch_function__ implements")
        return func(*args, **(kwargs or {}))  # torch's own error


def _of_torch(names: dict[str, Value]) -> bool:
    module = names.get("__name__")
    return is_a(module, str) and module.partition(".")[0] == "torch"


def _asked(func: Function, called: Function | None) -> Function:
    """The function of torch that asks this mode, often the one that the program called. It gives what its own name
    stands for, which is a function of the program where that has put one around it.
    """
    if sys._getframe(2).f_code is not handle_torch_function.__code__:  # a method of C asks
        own: Function = _replaced(func)
        return own
    asking = sys._getframe(3)  # behind handle_torch_function, the mode and its caller here
    code = asking.f_code
    if called is not None and called.__code__ is code:
        return called
    if code is func.__code__ or not _of_torch(asking.f_globals) or code.co_freevars:
        return func
    return FunctionType(code, asking.f_globals, code.co_name)


def _replaced(attribute: Value) -> Value:
    """The method or property of C that stands under the name under which the program set this one on tensors."""
    names = [name for name, value in vars(torch.Tensor).items() if value is attribute]
    return next((own for own in map(vars(torch._C.TensorBase).get, names) if own is not None), attribute)
