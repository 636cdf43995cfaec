/* Maps relocatable ELF objects into this process: sections side by side, addresses filled in, then no more written to.
   Whatever an object says of itself is checked against its size before it is used. */
#include "objects.h"

#include <stddef.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    void *base; /* owned mapping */
    size_t size;
    PyObject *addresses; /* owned: of the functions, in the order of their objects */
} LoadedObjects;

static PyTypeObject *LoadedObjects_Type;

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __x86_64__
enum { HERE = EM_X86_64 };
#else
enum { HERE = EM_AARCH64 };
#endif

/* A row of an object for each of its symbols: code that jumps to the address behind it, and that address. Calls that
   lead out of the mapping go by the code, loads of a table of addresses find the address. */
enum { ROW = 16, ADDRESS = 8 };
#define NOWHERE UINT64_MAX
static const uint64_t MOST_BYTES = 1 << 27; /* of a mapping: the reach of a call on ARM */
static const uint64_t MOST_ALIGNED = 4096;

typedef struct {
    const char *data; /* borrowed from its bytes object */
    uint64_t size;
    Elf64_Shdr *sections; /* owned */
    uint64_t *places;     /* owned: where in the mapping a section lies, or NOWHERE */
    uint32_t section_count, symbol_count, symbol_section;
    uint16_t machine;
    const char *symbols, *strings, *names;
    uint64_t strings_size, names_size, rows;
} Object;

typedef struct {
    Object *objects;
    Py_ssize_t count;
    char *base; /* the mapping */
    uint64_t size;
    PyObject *resolve; /* borrowed */
} Image;

static int refuse(const char *why)
{
    PyErr_Format(PyExc_ValueError, "object code is refused: %s", why);
    return -1;
}

static bool within(uint64_t start, uint64_t length, uint64_t size)
{
    return start <= size && length <= size - start;
}

/* ---- what an object has ----------------------------------------------------------------------------------------- */

/* A table of names; the last one ends in it. */
static int read_strings(const Object *object, uint32_t number, const char **strings, uint64_t *size)
{
    const Elf64_Shdr *section = &object->sections[number];
    if (section->sh_type != SHT_STRTAB || !section->sh_size)
        return refuse("its names cannot be read");
    *strings = object->data + section->sh_offset, *size = section->sh_size;
    return (*strings)[*size - 1] == 0 ? 0 : refuse("its names do not end");
}

static int read_header(Object *object)
{
    Elf64_Ehdr head;
    if (object->size < sizeof head)
        return refuse("it is cut short");
    memcpy(&head, object->data, sizeof head);
    if (memcmp(head.e_ident, ELFMAG, SELFMAG) || head.e_ident[EI_CLASS] != ELFCLASS64
        || head.e_ident[EI_DATA] != ELFDATA2LSB || head.e_type != ET_REL || head.e_machine != object->machine)
        return refuse("it is none of this machine");
    if (head.e_shentsize != sizeof(Elf64_Shdr) || head.e_shstrndx >= head.e_shnum
        || !within(head.e_shoff, (uint64_t)head.e_shnum * sizeof(Elf64_Shdr), object->size))
        return refuse("its sections lie outside");
    object->section_count = head.e_shnum;
    object->sections = PyMem_Calloc(head.e_shnum, sizeof(Elf64_Shdr));
    object->places = PyMem_Calloc(head.e_shnum, sizeof(uint64_t));
    if (!object->sections || !object->places)
        return PyErr_NoMemory(), -1;
    memcpy(object->sections, object->data + head.e_shoff, head.e_shnum * sizeof(Elf64_Shdr));
    for (uint32_t i = 0; i < object->section_count; i++) {
        Elf64_Shdr *section = &object->sections[i];
        if (section->sh_type != SHT_NULL && section->sh_type != SHT_NOBITS
            && !within(section->sh_offset, section->sh_size, object->size))
            return refuse("a section lies outside");
    }
    return read_strings(object, head.e_shstrndx, &object->names, &object->names_size);
}

static int read_symbols(Object *object)
{
    for (uint32_t i = 1; i < object->section_count; i++) {
        if (object->sections[i].sh_type != SHT_SYMTAB)
            continue;
        if (object->symbol_section)
            return refuse("it has two tables of symbols");
        object->symbol_section = i;
    }
    Elf64_Shdr *table = &object->sections[object->symbol_section];
    if (!object->symbol_section || table->sh_entsize != sizeof(Elf64_Sym) || table->sh_size % sizeof(Elf64_Sym)
        || table->sh_size / sizeof(Elf64_Sym) > UINT32_MAX || table->sh_link >= object->section_count)
        return refuse("its symbols cannot be read");
    object->symbols = object->data + table->sh_offset;
    object->symbol_count = (uint32_t)(table->sh_size / sizeof(Elf64_Sym));
    return read_strings(object, table->sh_link, &object->strings, &object->strings_size);
}

/* Whether a section is part of the running code: 1, 0, or -1: refused. Tables for exceptions are left out: a kernel
   raises none, and calls nothing that does. */
static int is_loaded(const Object *object, const Elf64_Shdr *section)
{
    if (!(section->sh_flags & SHF_ALLOC))
        return 0;
    if (section->sh_name >= object->names_size)
        return refuse("a section has no name");
    const char *name = object->names + section->sh_name;
    if (strcmp(name, ".eh_frame") == 0 || section->sh_type == SHT_NOTE)
        return 0;
    if (section->sh_type != SHT_PROGBITS && section->sh_type != SHT_NOBITS)
        return refuse("a section is of a kind that kernels do not have");
    if ((section->sh_flags & SHF_TLS) || ((section->sh_flags & SHF_WRITE) && strncmp(name, ".data.rel.ro", 12)))
        return refuse("it has variables");
    return 1;
}

/* Places the sections behind ``*end`` bytes of the mapping, and the rows of the symbols behind them. */
static int place_sections(Object *object, uint64_t *end)
{
    for (uint32_t i = 0; i < object->section_count; i++) {
        Elf64_Shdr *section = &object->sections[i];
        int loaded = is_loaded(object, section);
        if (loaded < 0)
            return -1;
        object->places[i] = NOWHERE;
        if (!loaded)
            continue;
        uint64_t align = section->sh_addralign ? section->sh_addralign : 1;
        if (align > MOST_ALIGNED || (align & (align - 1)) || section->sh_size > MOST_BYTES)
            return refuse("a section is too large");
        object->places[i] = (*end + align - 1) & ~(align - 1);
        *end = object->places[i] + section->sh_size;
        if (*end > MOST_BYTES)
            return refuse("it is too large");
    }
    object->rows = (*end + ROW - 1) & ~(uint64_t)(ROW - 1);
    *end = object->rows + (uint64_t)object->symbol_count * ROW;
    return *end > MOST_BYTES ? refuse("it is too large") : 0;
}

/* ---- addresses --------------------------------------------------------------------------------------------------- */

static const char *symbol_name(const Object *object, const Elf64_Sym *symbol)
{
    if (symbol->st_name < object->strings_size)
        return object->strings + symbol->st_name;
    refuse("a symbol has no name");
    return NULL;
}

static int resolved(const Image *image, const char *name, uint64_t *address)
{
    PyObject *found = PyObject_CallFunction(image->resolve, "s", name);
    if (!found)
        return -1;
    *address = PyLong_AsUnsignedLongLong(found);
    Py_DECREF(found);
    return PyErr_Occurred() ? -1 : 0;
}

/* Where the symbol of a number lies; ``*outside`` where that is not in the mapping. */
static int symbol_address(const Image *image, const Object *object, uint32_t number, uint64_t *address, bool *outside)
{
    Elf64_Sym symbol;
    if (number >= object->symbol_count)
        return refuse("it names a symbol that it does not have");
    memcpy(&symbol, object->symbols + (size_t)number * sizeof symbol, sizeof symbol);
    *outside = symbol.st_shndx == SHN_UNDEF;
    if (*outside) {
        const char *name = symbol_name(object, &symbol);
        if (!name)
            return -1;
        uint64_t kept; /* in its row, since it was asked for before */
        memcpy(&kept, image->base + object->rows + (uint64_t)number * ROW + ADDRESS, sizeof kept);
        *address = kept;
        return kept ? 0 : resolved(image, name, address);
    }
    if (symbol.st_shndx >= object->section_count || object->places[symbol.st_shndx] == NOWHERE
        || symbol.st_value > object->sections[symbol.st_shndx].sh_size)
        return refuse("a symbol lies outside");
    *address = (uint64_t)(uintptr_t)image->base + object->places[symbol.st_shndx] + symbol.st_value;
    return 0;
}

/* Where the row of a symbol lies, which is filled in. */
static uint64_t row_of(const Image *image, const Object *object, uint32_t number, uint64_t address)
{
    static const unsigned char x86[] = {0xff, 0x25, 2, 0, 0, 0, 0x0f, 0x0b}; /* jmp *2(%rip); ud2 */
    static const unsigned char arm[] = {0x50, 0, 0, 0x58, 0, 2, 0x1f, 0xd6}; /* ldr x16, .+8; br x16 */
    char *row = image->base + object->rows + (uint64_t)number * ROW;
    memcpy(row, object->machine == EM_X86_64 ? x86 : arm, ADDRESS);
    memcpy(row + ADDRESS, &address, sizeof address);
    return (uint64_t)(uintptr_t)row;
}

/* How an address is written: whole, as a distance, or into the fields of ARM's instructions. */
typedef enum { WHOLE, DISTANCE, BRANCH, PAGES, LOW } Form;
/* What is written: the symbol's address, that of code in reach that leads to it, or that of its entry in the table. */
typedef enum { SYMBOL, CALL, ENTRY } Meant;

typedef struct {
    uint16_t machine;
    uint32_t type;
    Form form;
    Meant meant;
    int bytes; /* of the field; of LOW: the unit of its number as a power of two */
} Relocation;

#ifndef R_X86_64_CODE_4_GOTPCRELX
#define R_X86_64_CODE_4_GOTPCRELX 43
#endif
static const Relocation RELOCATIONS[] = {
    {EM_X86_64, R_X86_64_PC32, DISTANCE, CALL, 4},
    {EM_X86_64, R_X86_64_PLT32, DISTANCE, CALL, 4},
    {EM_X86_64, R_X86_64_64, WHOLE, SYMBOL, 8},
    {EM_X86_64, R_X86_64_PC64, DISTANCE, SYMBOL, 8},
    {EM_X86_64, R_X86_64_GOTPCREL, DISTANCE, ENTRY, 4},
    {EM_X86_64, R_X86_64_GOTPCRELX, DISTANCE, ENTRY, 4},
    {EM_X86_64, R_X86_64_REX_GOTPCRELX, DISTANCE, ENTRY, 4},
    {EM_X86_64, R_X86_64_CODE_4_GOTPCRELX, DISTANCE, ENTRY, 4},
    {EM_AARCH64, R_AARCH64_ABS64, WHOLE, SYMBOL, 8},
    {EM_AARCH64, R_AARCH64_PREL64, DISTANCE, SYMBOL, 8},
    {EM_AARCH64, R_AARCH64_PREL32, DISTANCE, CALL, 4},
    {EM_AARCH64, R_AARCH64_CALL26, BRANCH, CALL, 4},
    {EM_AARCH64, R_AARCH64_JUMP26, BRANCH, CALL, 4},
    {EM_AARCH64, R_AARCH64_ADR_PREL_PG_HI21, PAGES, SYMBOL, 4},
    {EM_AARCH64, R_AARCH64_ADR_GOT_PAGE, PAGES, ENTRY, 4},
    {EM_AARCH64, R_AARCH64_ADD_ABS_LO12_NC, LOW, SYMBOL, 0},
    {EM_AARCH64, R_AARCH64_LDST8_ABS_LO12_NC, LOW, SYMBOL, 0},
    {EM_AARCH64, R_AARCH64_LDST16_ABS_LO12_NC, LOW, SYMBOL, 1},
    {EM_AARCH64, R_AARCH64_LDST32_ABS_LO12_NC, LOW, SYMBOL, 2},
    {EM_AARCH64, R_AARCH64_LDST64_ABS_LO12_NC, LOW, SYMBOL, 3},
    {EM_AARCH64, R_AARCH64_LDST128_ABS_LO12_NC, LOW, SYMBOL, 4},
    {EM_AARCH64, R_AARCH64_LD64_GOT_LO12_NC, LOW, ENTRY, 3},
};

static const Relocation *relocation(uint16_t machine, uint32_t type)
{
    for (size_t i = 0; i < sizeof RELOCATIONS / sizeof *RELOCATIONS; i++)
        if (RELOCATIONS[i].machine == machine && RELOCATIONS[i].type == type)
            return &RELOCATIONS[i];
    return NULL;
}

static bool fits(int64_t value, int bits)
{
    return value >= -((int64_t)1 << (bits - 1)) && value < (int64_t)1 << (bits - 1);
}

/* Puts the low ``width`` bits of a value into an instruction, at a bit. */
static uint32_t with_field(uint32_t word, uint64_t value, int width, int at)
{
    uint32_t mask = (((uint32_t)1 << width) - 1) << at;
    return (word & ~mask) | (((uint32_t)value << at) & mask);
}

/* Writes an address at a place of the mapping; false where it has no such field. */
static bool write_address(char *at, uint64_t address, const Relocation *how)
{
    uint64_t here = (uint64_t)(uintptr_t)at;
    int64_t distance = (int64_t)(address - here);
    if (how->form == WHOLE || (how->form == DISTANCE && how->bytes == 8)) {
        uint64_t word = how->form == WHOLE ? address : (uint64_t)distance;
        memcpy(at, &word, sizeof word);
        return true;
    }
    if (how->form == DISTANCE) {
        int32_t word = (int32_t)distance;
        memcpy(at, &word, sizeof word);
        return word == distance;
    }
    uint32_t word;
    memcpy(&word, at, sizeof word);
    if (how->form == BRANCH) {
        word = with_field(word, (uint64_t)distance >> 2, 26, 0);
        if (distance & 3 || !fits(distance, 28))
            return false;
    } else if (how->form == PAGES) {
        int64_t pages = (int64_t)((address & ~UINT64_C(0xfff)) - (here & ~UINT64_C(0xfff))) / 4096;
        word = with_field(with_field(word, (uint64_t)pages, 2, 29), (uint64_t)pages >> 2, 19, 5);
        if (!fits(pages, 21))
            return false;
    } else {
        word = with_field(word, (address & 0xfff) >> how->bytes, 12, 10);
        if (address & (((uint64_t)1 << how->bytes) - 1))
            return false;
    }
    memcpy(at, &word, sizeof word);
    return true;
}

static int apply(const Image *image, const Object *object, uint32_t target, const Elf64_Rela *entry)
{
    const Relocation *how = relocation(object->machine, (uint32_t)ELF64_R_TYPE(entry->r_info));
    if (!how)
        return refuse("it has an address of a kind that kernels do not have");
    uint64_t bytes = how->form == LOW ? 4 : (uint64_t)how->bytes, address = 0;
    if (!within(entry->r_offset, bytes, object->sections[target].sh_size))
        return refuse("an address lies outside");
    char *at = image->base + object->places[target] + entry->r_offset;
    if (how->form >= BRANCH && (uintptr_t)at % 4)
        return refuse("an instruction lies between two");
    uint32_t number = (uint32_t)ELF64_R_SYM(entry->r_info);
    bool outside;
    if (symbol_address(image, object, number, &address, &outside) < 0)
        return -1;
    if (how->meant == ENTRY || outside) {
        uint64_t row = row_of(image, object, number, address);
        address = how->meant == ENTRY ? row + ADDRESS : how->meant == CALL ? row : address;
    }
    if (!write_address(at, address + (uint64_t)entry->r_addend, how))
        return refuse("an address is out of reach");
    return 0;
}

static int relocate(const Image *image, const Object *object)
{
    for (uint32_t i = 0; i < object->section_count; i++) {
        const Elf64_Shdr *section = &object->sections[i];
        if (section->sh_type != SHT_RELA && section->sh_type != SHT_REL)
            continue;
        uint32_t target = section->sh_info;
        if (target >= object->section_count)
            return refuse("addresses of a section that it does not have");
        if (object->places[target] == NOWHERE)
            continue;
        if (section->sh_type != SHT_RELA || section->sh_entsize != sizeof(Elf64_Rela)
            || section->sh_size % sizeof(Elf64_Rela) || section->sh_link != object->symbol_section
            || object->sections[target].sh_type != SHT_PROGBITS)
            return refuse("its addresses cannot be read");
        for (uint64_t at = 0; at < section->sh_size; at += sizeof(Elf64_Rela)) {
            Elf64_Rela entry;
            memcpy(&entry, object->data + section->sh_offset + at, sizeof entry);
            if (apply(image, object, target, &entry) < 0)
                return -1;
        }
    }
    return 0;
}

/* Where the function of a name begins. */
static PyObject *function_address(const Image *image, const Object *object, const char *wanted)
{
    for (uint32_t i = 1; i < object->symbol_count; i++) {
        Elf64_Sym symbol;
        memcpy(&symbol, object->symbols + (size_t)i * sizeof symbol, sizeof symbol);
        const char *name = symbol_name(object, &symbol);
        if (!name)
            return NULL;
        if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= object->section_count || strcmp(name, wanted))
            continue;
        uint64_t place = object->places[symbol.st_shndx];
        const Elf64_Shdr *section = &object->sections[symbol.st_shndx];
        if (place == NOWHERE || !(section->sh_flags & SHF_EXECINSTR) || symbol.st_value >= section->sh_size)
            break;
        return PyLong_FromUnsignedLongLong((uint64_t)(uintptr_t)image->base + place + symbol.st_value);
    }
    refuse("its function is not there");
    return NULL;
}

/* ---- the mapping ------------------------------------------------------------------------------------------------- */

static int read_objects(Image *image, PyObject *pairs, uint16_t machine)
{
    for (Py_ssize_t i = 0; i < image->count; i++) {
        Object *object = &image->objects[i];
        PyObject *name, *bytes;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(pairs, i), "UO!", &name, &PyBytes_Type, &bytes))
            return -1;
        object->data = PyBytes_AS_STRING(bytes), object->size = (uint64_t)PyBytes_GET_SIZE(bytes);
        object->machine = machine;
        if (read_header(object) < 0 || read_symbols(object) < 0 || place_sections(object, &image->size) < 0)
            return -1;
    }
    return 0;
}

static int map_objects(Image *image)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    image->size = (image->size + page) & ~(page - 1); /* of no objects as well */
    void *base = mmap(NULL, image->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return PyErr_NoMemory(), -1;
    image->base = base;
    for (Py_ssize_t i = 0; i < image->count; i++) {
        Object *object = &image->objects[i];
        for (uint32_t j = 0; j < object->section_count; j++) {
            Elf64_Shdr *section = &object->sections[j];
            if (object->places[j] != NOWHERE && section->sh_type == SHT_PROGBITS)
                memcpy(image->base + object->places[j], object->data + section->sh_offset, section->sh_size);
        }
    }
    for (Py_ssize_t i = 0; i < image->count; i++)
        if (relocate(image, &image->objects[i]) < 0)
            return -1;
    if (mprotect(image->base, image->size, PROT_READ | PROT_EXEC) < 0)
        return PyErr_SetFromErrno(PyExc_OSError), -1;
    __builtin___clear_cache(image->base, image->base + image->size);
    return 0;
}

static PyObject *function_addresses(const Image *image, PyObject *pairs)
{
    PyObject *addresses = PyTuple_New(image->count);
    for (Py_ssize_t i = 0; addresses && i < image->count; i++) {
        const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(PyTuple_GET_ITEM(pairs, i), 0));
        PyObject *address = name ? function_address(image, &image->objects[i], name) : NULL;
        if (address)
            PyTuple_SET_ITEM(addresses, i, address);
        else
            Py_CLEAR(addresses);
    }
    return addresses;
}

PyObject *load_objects_py(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *pairs, *resolve;
    unsigned short machine = HERE;
    if (!PyArg_ParseTuple(args, "O!O|H", &PyTuple_Type, &pairs, &resolve, &machine))
        return NULL;
    Image image = {.count = PyTuple_GET_SIZE(pairs), .resolve = resolve};
    PyObject *addresses = NULL;
    LoadedObjects *loaded = NULL;
    image.objects = PyMem_Calloc((size_t)image.count + 1, sizeof(Object));
    if (!image.objects)
        return PyErr_NoMemory();
    if (read_objects(&image, pairs, machine) == 0 && map_objects(&image) == 0)
        addresses = function_addresses(&image, pairs);
    if (addresses)
        loaded = (LoadedObjects *)LoadedObjects_Type->tp_alloc(LoadedObjects_Type, 0);
    for (Py_ssize_t i = 0; i < image.count; i++) {
        PyMem_Free(image.objects[i].sections);
        PyMem_Free(image.objects[i].places);
    }
    PyMem_Free(image.objects);
    if (!loaded) {
        if (image.base)
            munmap(image.base, image.size);
        Py_XDECREF(addresses);
        return NULL;
    }
    loaded->base = image.base, loaded->size = image.size, loaded->addresses = addresses;
    return (PyObject *)loaded;
}

static void unmap(LoadedObjects *loaded)
{
    if (loaded->base)
        munmap(loaded->base, loaded->size);
}
#else
PyObject *load_objects_py(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args))
{
    return PyErr_Format(PyExc_NotImplementedError, "objects are loaded on Linux alone, on x86-64 and ARM");
}

static void unmap(LoadedObjects *Py_UNUSED(loaded))
{
}
#endif

static void loaded_objects_dealloc(LoadedObjects *loaded)
{
    PyTypeObject *type = Py_TYPE(loaded);
    unmap(loaded);
    Py_XDECREF(loaded->addresses);
    type->tp_free((PyObject *)loaded);
    Py_DECREF(type);
}

static PyMemberDef loaded_objects_members[] = {
    {"addresses", T_OBJECT, offsetof(LoadedObjects, addresses), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot loaded_objects_slots[] = {
    {Py_tp_dealloc, loaded_objects_dealloc},
    {Py_tp_members, loaded_objects_members},
    {Py_tp_doc, "Code that load_objects mapped; it is unmapped when this object dies."},
    {0, NULL},
};
static PyType_Spec loaded_objects_spec = {
    "framefuse._native.LoadedObjects", sizeof(LoadedObjects), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, loaded_objects_slots};

PyTypeObject *make_loaded_objects_type(PyObject *module)
{
    return LoadedObjects_Type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &loaded_objects_spec, NULL);
}
