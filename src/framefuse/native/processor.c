/* Asks the processor what it is and can do, as compilers do: by instructions and the kernel, in microseconds. */
#include "processor.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* Leaves that say what it can do, and the registers (eax, ebx, ecx, edx) in which they say so: the others count its
   cores or tell on which of them this runs. */
static const struct {
    uint32_t leaf, part;
    const char *registers;
} LEAVES[] = {{0, 0, "bcd"},  {1, 0, "acd"},    {7, 0, "bcd"},           {7, 1, "abcd"},
              {0xd, 1, "a"}, {0x14, 0, "b"},   {0x19, 0, "b"},          {0x1e, 1, "a"},
              {0x24, 0, "b"}, {0x80000001, 0, "cd"}, {0x80000008, 0, "b"}};

static size_t ask(uint32_t leaf, uint32_t part, const char *registers, uint32_t *out)
{
    uint32_t all[4] = {0};
    size_t count = 0;
    __get_cpuid_count(leaf, part, &all[0], &all[1], &all[2], &all[3]);
    for (; registers[count]; count++)
        out[count] = all[registers[count] - 'a'];
    return count;
}

PyObject *processor_py(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    uint32_t words[64], name[13] = {0}; /* 48 letters and a zero */
    size_t count = 0;
    for (size_t i = 0; i < sizeof LEAVES / sizeof *LEAVES; i++)
        count += ask(LEAVES[i].leaf, LEAVES[i].part, LEAVES[i].registers, words + count);
    uint32_t low = 0, high = 0;
    if (words[4] & 1u << 27) /* the system saves wide registers: which */
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    words[count++] = low, words[count++] = high;
    for (uint32_t i = 0; i < 3; i++)
        ask(0x80000002 + i, 0, "abcd", name + 4 * i);
    return Py_BuildValue("sy#", (const char *)name, (const char *)words, (Py_ssize_t)(count * sizeof *words));
}
#elif defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>

PyObject *processor_py(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    uint64_t words[3] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2), 0};
    if (!(words[0] & 1 << 11)) /* the kernel answers for the register that names the processor */
        Py_RETURN_NONE;
    __asm__("mrs %0, MIDR_EL1" : "=r"(words[2]));
    return Py_BuildValue("sy#", "ARM", (const char *)words, (Py_ssize_t)sizeof words);
}
#else
PyObject *processor_py(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    Py_RETURN_NONE;
}
#endif
