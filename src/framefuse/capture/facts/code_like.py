"""The types of what a program is made of, and of what never changes: facts hold such objects by their identity."""

from __future__ import annotations

import enum
import re
import types

import torch

from framefuse.ir.classes import OF_TYPING
from framefuse.ir.numpy_numbers import FUNCTIONS

CODE_LIKE = (
    type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.MethodDescriptorType, types.CodeType,
    types.GetSetDescriptorType, types.WrapperDescriptorType, types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
    property, classmethod, staticmethod, enum.Enum, types.GenericAlias, types.UnionType,
    re.Pattern, re.Match, torch._ops.OperatorBase, torch._ops.OpOverloadPacket, FUNCTIONS, *OF_TYPING,
)  # fmt: skip
