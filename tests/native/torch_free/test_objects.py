"""Object code is mapped with its addresses filled in; what is damaged in any way is refused. Needs no torch."""

import ctypes
import gc
import os
import platform
import random
import struct
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))

import loader

native, _ = loader.load()

X86, ARM = 62, 183
PROGBITS, SYMTAB, STRTAB, RELA, NOBITS = 1, 2, 3, 4, 8
WRITE, ALLOC, CODE, THREAD = 1, 2, 4, 0x400
HERE = {"x86_64": X86, "aarch64": ARM}.get(platform.machine()) if sys.platform == "linux" else None
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def names_of(names):
    """A table of strings, and where each begins."""
    table, places = b"\0", {}
    for name in names:
        places[name] = len(table)
        table += name.encode() + b"\0"
    return table, places


def elf(sections, symbols, relocations, machine):
    """An object of ``sections`` (name, type, flags, align, content), ``symbols`` (name, number of the section, value)
    and ``relocations`` (number of the section, offset, type, number of the symbol, addend).
    """
    strings, at = names_of([name for name, *_ in symbols])
    table = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", at[name], 0x12, 0, section, value, 0) for name, section, value in symbols
    )
    targets = sorted({target for target, *_ in relocations})
    parts = [("", 0, 0, 0, b"", 0, 0, 0), *((*section, 0, 0, 0) for section in sections)]
    number = len(parts)  # of the symbols' table
    parts.append((".symtab", SYMTAB, 0, 8, table, number + 1, 1, 24))
    parts.append((".strtab", STRTAB, 0, 1, strings, 0, 0, 0))
    for target in targets:
        data = b"".join(
            struct.pack("<QQq", offset, symbol << 32 | kind, addend)
            for place, offset, kind, symbol, addend in relocations
            if place == target
        )
        parts.append((".rela", RELA, 0, 8, data, number, target, 24))
    section_names, places = names_of([*dict.fromkeys(part[0] for part in parts), ".shstrtab"])
    parts.append((".shstrtab", STRTAB, 0, 1, section_names, 0, 0, 0))
    body, headers = b"", b""
    for name, kind, flags, align, content, link, info, entry in parts:
        size = len(content)
        headers += struct.pack(
            "<IIQQQQIIQQ", places[name], kind, flags, 0, 64 + len(body), size, link, info, align, entry
        )
        body += content if kind != NOBITS else b""
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack(
        "<HHIQQQIHHHHHH", 1, machine, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(parts), len(parts) - 1
    )
    return head + body + headers


def text(code, align=16):
    return (".text", PROGBITS, ALLOC | CODE, align, bytes.fromhex(code))


def data(content, align=8, name=".rodata", flags=ALLOC):
    return (name, PROGBITS, flags, align, content)


def load(made, resolve=None, name="kernel", machine=None):
    given = () if machine is None else (machine,)
    return native.load_objects(((name, made),), resolve or {}.__getitem__, *given)


# mov 0(%rip), %rax; add %rdi, %rax; ret: adds a constant
def adds(number):
    sections = [text("488b05000000004801f8c3"), data(struct.pack("<q", number), align=64)]
    return elf(sections, [("kernel", 1, 0), ("constant", 2, 0)], [(1, 3, 2, 2, -4)], X86)


ADDS = adds(40)
# jmp far
JUMPS = elf([text("e900000000")], [("kernel", 1, 0), ("far", 0, 0)], [(1, 1, 4, 2, -4)], X86)
# jmp *far@GOTPCREL(%rip)
JUMPS_BY_ENTRY = elf([text("ff2500000000")], [("kernel", 1, 0), ("far", 0, 0)], [(1, 2, 41, 2, -4)], X86)
# jmp *table(%rip), where a table holds the address
JUMPS_BY_TABLE = elf(
    [text("ff2500000000"), data(bytes(8), name=".data.rel.ro", flags=ALLOC | WRITE)],
    [("kernel", 1, 0), ("far", 0, 0), ("table", 2, 0)], [(1, 2, 2, 3, -4), (2, 0, 1, 2, 0)], X86,
)  # fmt: skip
# adrp x0, constant; add x0, x0, :lo12:constant; ldr x1, [x0, :lo12:constant]; bl far; adrp, ldr by the table
ARMS = elf(
    [text("00000090" "00000091" "010040f9" "00000094" "00000090" "000040f9"), data(struct.pack("<q", 40))],
    [("kernel", 1, 0), ("constant", 2, 0), ("far", 0, 0)],
    [(1, 0, 275, 2, 0), (1, 4, 277, 2, 0), (1, 8, 286, 2, 0), (1, 12, 283, 3, 0), (1, 16, 311, 3, 0),
     (1, 20, 312, 3, 0)], ARM,
)  # fmt: skip


@unittest.skipUnless(HERE == X86, "runs the code of x86-64")
class Runs(unittest.TestCase):
    def test_code_finds_its_constants(self):
        loaded = load(ADDS)
        self.assertEqual(FUNCTION(loaded.addresses[0])(2), 42)

    def test_several_objects_are_loaded_at_once(self):
        pairs = tuple(("kernel", adds(k)) for k in range(50))
        loaded = native.load_objects(pairs, {}.__getitem__)
        self.assertEqual([FUNCTION(place)(1) for place in loaded.addresses], [k + 1 for k in range(50)])
        self.assertEqual(native.load_objects((), {}.__getitem__).addresses, ())

    def test_calls_lead_out_by_every_way(self):
        far = FUNCTION(lambda value: value * 3)
        place = ctypes.cast(far, ctypes.c_void_p).value
        for made in (JUMPS, JUMPS_BY_ENTRY, JUMPS_BY_TABLE):
            asked = []
            loaded = load(made, lambda name, asked=asked: asked.append(name) or place)
            self.assertEqual(FUNCTION(loaded.addresses[0])(14), 42)
            self.assertEqual(asked, ["far"])

    def test_code_cannot_be_written(self):
        with open("/proc/self/maps") as maps:
            before = maps.read()
        loaded = load(ADDS)
        begin = loaded.addresses[0] & -4096
        with open("/proc/self/maps") as maps:
            lines = [
                line for line in maps if int(line.split("-")[0], 16) <= begin < int(line.split("-")[1].split()[0], 16)
            ]
        self.assertEqual([line.split()[1] for line in lines], ["r-xp"])
        del loaded
        gc.collect()
        with open("/proc/self/maps") as maps:
            self.assertEqual(maps.read().count("\n"), before.count("\n"))


@unittest.skipIf(HERE is None, "another system")
class Refuses(unittest.TestCase):
    def refused(self, made, resolve=None, **more):
        with self.assertRaises(ValueError):
            load(made, resolve, machine=X86, **more)

    def test_what_an_object_asks_for_must_be_known(self):
        with self.assertRaises(KeyError):
            load(JUMPS, machine=X86)

    def test_objects_of_others(self):
        self.refused(b"")
        self.refused(ARMS)
        self.refused(ADDS, name="another")
        self.refused(ADDS, name="constant")  # no code

    def test_objects_with_what_kernels_do_not_have(self):
        code, symbols = text("c3"), [("kernel", 1, 0)]
        for more in (
            data(bytes(8), name=".data", flags=ALLOC | WRITE), data(bytes(8), flags=ALLOC | THREAD),
            data(bytes(8), align=3), data(bytes(8), align=1 << 13),
            (".init_array", 14, ALLOC, 8, bytes(8)),
        ):  # fmt: skip
            self.refused(elf([code, more], symbols, [], X86))

    def test_addresses_that_cannot_be_written(self):
        code, symbols = text("488b05000000004801f8c3"), [("kernel", 1, 0), ("constant", 2, 0), ("outside", 1, 99)]
        for entry in ((1, 3, 10, 2, 0), (1, 3, 999, 2, 0), (1, 8, 2, 2, 0), (1, 1 << 63, 2, 2, 0), (1, 3, 2, 9, 0),
                      (1, 3, 2, 3, 0), (1, 3, 2, 2, 1 << 40), (1, 4, 1, 2, 0), (1, 3, 275, 2, 0)):  # fmt: skip
            self.refused(elf([code, data(bytes(8))], symbols, [entry], X86))
        load(elf([code, data(bytes(8))], symbols, [(1, 3, 2, 2, 0)], X86), machine=X86)

    def test_damaged_objects(self):
        draw, told = random.Random(0), {True: 0, False: 0}
        for made, machine in ((ADDS, X86), (JUMPS, X86), (JUMPS_BY_TABLE, X86), (ARMS, ARM)):
            for size in range(len(made)):
                self.looked_at(made[:size], machine, told)
            for place in range(len(made)):
                for value in (0, 1, 0x7F, 0x80, 0xFF, made[place] ^ 1):
                    self.looked_at(made[:place] + bytes([value]) + made[place + 1 :], machine, told)
            for _ in range(5000):
                damaged = bytearray(made)
                for _ in range(draw.choice((1, 2, 8))):
                    place = draw.randrange(0, len(made) - 8)
                    damaged[place : place + draw.choice((1, 4, 8))] = draw.randbytes(8)
                self.looked_at(bytes(damaged), machine, told)
        self.assertGreater(told[False], 10_000)

    def looked_at(self, made, machine, told):
        """It is loaded, without being run, or refused."""
        try:
            load(made, lambda name: 0x1000, machine=machine)
            told[True] += 1
        except (ValueError, UnicodeDecodeError):
            told[False] += 1


@unittest.skipIf(HERE is None, "another system")
class Arm(unittest.TestCase):
    def test_instructions_hold_the_addresses(self):
        loaded = load(ARMS, lambda name: 0x123456789ABC, machine=ARM)
        base = loaded.addresses[0]
        words = struct.unpack("<6I", ctypes.string_at(base, 24))

        def page(number):
            low, high = words[number] >> 29 & 3, words[number] >> 5 & 0x7FFFF
            value = high << 2 | low
            return ((base + 4 * number) & -4096) + 4096 * (value - (1 << 21) * (value >> 20))

        constant = page(0) + (words[1] >> 10 & 0xFFF)
        self.assertEqual(ctypes.string_at(constant, 8), struct.pack("<q", 40))
        self.assertEqual(page(0) + 8 * (words[2] >> 10 & 0xFFF), constant)
        row = base + 12 + 4 * (words[3] & 0x3FFFFFF)
        self.assertEqual(ctypes.string_at(row, 16).hex(), "5000005800021fd6" + struct.pack("<Q", 0x123456789ABC).hex())
        self.assertEqual(page(4) + 8 * (words[5] >> 10 & 0xFFF), row + 8)
        self.assertEqual(words[0] & 0x9F00001F, 0x90000000)


if __name__ == "__main__":
    unittest.main()
