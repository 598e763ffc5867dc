/* The Python module `_native`: the kernels as functions of tensors, arrays of numbers or addresses
 * (None for NULL), sizes and scalars in the order of `kernels.h`. They run without Python's global
 * lock. Nothing is checked but the number of arguments and their kinds: the Python modules around
 * this one check dtypes, shapes and strides, and nobody else calls it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"

#define MOST_ARGUMENTS 20

union argument {
    void *address;
    ptrdiff_t size;
    float scalar;
    int number;
};

/* Where the memory of an array or a tensor begins, or what an address says. */
static void *address_of(PyObject *given)
{
    if (given == Py_None)
        return NULL;
    if (PyObject_CheckBuffer(given)) {
        Py_buffer buffer;
        if (PyObject_GetBuffer(given, &buffer, PyBUF_SIMPLE))
            return NULL;
        void *start = buffer.buf;
        PyBuffer_Release(&buffer);
        return start;
    }
    if (PyLong_Check(given))
        return PyLong_AsVoidPtr(given);
    PyObject *number = PyObject_CallMethod(given, "data_ptr", NULL);
    void *start = number ? PyLong_AsVoidPtr(number) : NULL;
    Py_XDECREF(number);
    return start;
}

/* kinds: one letter for each argument: a(ddress), s(ize), f(loat), i(nteger). */
static int converted(const char *name, const char *kinds, PyObject *const *given, Py_ssize_t count,
                     union argument *out)
{
    if (count != (Py_ssize_t)strlen(kinds)) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name,
                     (Py_ssize_t)strlen(kinds), count);
        return 0;
    }
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++)
        switch (kinds[i]) {
        case 'a': out[i].address = address_of(given[i]); break;
        case 's': out[i].size = PyLong_AsSsize_t(given[i]); break;
        case 'f': out[i].scalar = (float)PyFloat_AsDouble(given[i]); break;
        default: out[i].number = (int)PyLong_AsLong(given[i]);
        }
    return !PyErr_Occurred();
}

#define A(i) v[i].address
#define S(i) v[i].size
#define F(i) v[i].scalar
#define I(i) v[i].number

#define KERNEL(NAME, KINDS, ...)                                                                 \
    static PyObject *call_##NAME(PyObject *module, PyObject *const *given, Py_ssize_t count)     \
    {                                                                                            \
        union argument v[MOST_ARGUMENTS];                                                        \
        (void)module;                                                                            \
        if (!converted(#NAME, KINDS, given, count, v))                                           \
            return NULL;                                                                         \
        int failed = 0;                                                                          \
        Py_BEGIN_ALLOW_THREADS __VA_ARGS__;                                                      \
        Py_END_ALLOW_THREADS return failed ? PyErr_NoMemory() : Py_NewRef(Py_None);              \
    }

KERNEL(decode_step, "aaaaasffii",
       failed = decode_step(A(0), A(1), A(2), A(3), A(4), S(5), F(6), F(7), I(8), I(9)))
KERNEL(attention_pass, "aaaaaaaffiii",
       failed = attention_pass(A(0), A(1), A(2), A(3), A(4), A(5), A(6), F(7), F(8), I(9), I(10),
                               I(11)))
KERNEL(layer_qkv, "aaasssssfiii",
       failed = layer_qkv(A(0), A(1), A(2), S(3), S(4), S(5), S(6), S(7), F(8), I(9), I(10), I(11)))
KERNEL(layer_finish, "aaaassssfiii",
       failed = layer_finish(A(0), A(1), A(2), A(3), S(4), S(5), S(6), S(7), F(8), I(9), I(10),
                             I(11)))
KERNEL(linear_few_rows, "aaaaaaasssssi",
       linear_few_rows(A(0), A(1), A(2), A(3), A(4), A(5), A(6), S(7), S(8), S(9), S(10), S(11),
                       I(12)))
KERNEL(linear_fp32, "aaaassssi",
       linear_fp32(A(0), A(1), A(2), A(3), S(4), S(5), S(6), S(7), I(8)))
KERNEL(dequantise, "aaasssi", dequantise(A(0), A(1), A(2), S(3), S(4), S(5), I(6)))
KERNEL(linear_many_rows_bf16_pack, "aasssi",
       linear_many_rows_bf16_pack(A(0), A(1), S(2), S(3), S(4), I(5)))
KERNEL(linear_many_rows_bf16_product, "aaaaasssssi",
       linear_many_rows_bf16_product(A(0), A(1), A(2), A(3), A(4), S(5), S(6), S(7), S(8), S(9),
                                     I(10)))
KERNEL(linear_many_rows_bf16_gated, "aaaassssssi",
       linear_many_rows_bf16_gated(A(0), A(1), A(2), A(3), S(4), S(5), S(6), S(7), S(8), S(9),
                                   I(10)))
KERNEL(linear_many_rows_fp32_product, "aaassssi",
       linear_many_rows_fp32_product(A(0), A(1), A(2), S(3), S(4), S(5), S(6), I(7)))
KERNEL(linear_many_rows_fp32_pack, "aassi",
       linear_many_rows_fp32_pack(A(0), A(1), S(2), S(3), I(4)))
KERNEL(linear_many_rows_fp32_unpack, "aaassi",
       linear_many_rows_fp32_unpack(A(0), A(1), A(2), S(3), S(4), I(5)))
KERNEL(prefill_attention, "aaaaaaaassssssssfsii",
       prefill_attention(A(0), A(1), A(2), A(3), A(4), A(5), A(6), A(7), S(8), S(9), S(10), S(11),
                         S(12), S(13), S(14), S(15), F(16), S(17), I(18), I(19)))
KERNEL(decode_stored_layer, "asaa", decode_stored_layer(A(0), S(1), A(2), A(3)))
KERNEL(rotation_rows, "aaaaasssssssi",
       rotation_rows(A(0), A(1), A(2), A(3), A(4), S(5), S(6), S(7), S(8), S(9), S(10), S(11),
                     I(12)))
KERNEL(rotation_place_segments, "asaaaai",
       rotation_place_segments(A(0), S(1), A(2), A(3), A(4), A(5), I(6)))
KERNEL(rotation_write_with_queries, "aaaaaaasssi",
       rotation_write_with_queries(A(0), A(1), A(2), A(3), A(4), A(5), A(6), S(7), S(8), S(9),
                                   I(10)))
KERNEL(shift_gaps, "asaaaasss",
       shift_gaps(A(0), S(1), A(2), A(3), A(4), A(5), S(6), S(7), S(8)))
KERNEL(shift_rows, "aaaaassaaai",
       shift_rows(A(0), A(1), A(2), A(3), A(4), S(5), S(6), A(7), A(8), A(9), I(10)))

/* Whether this CPU runs the kernels, has bfloat16 dot products, is AMD's, and runs `linear_fp32`. */
static PyObject *cpu(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    int runs = __builtin_cpu_supports("avx512f") != 0;
    int bf16_dot = runs && __builtin_cpu_supports("avx512bf16");
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return Py_BuildValue("(iiii)", runs, bf16_dot, __builtin_cpu_is("amd") != 0, avx2);
}

#define METHOD(NAME) {#NAME, (PyCFunction)(void (*)(void))call_##NAME, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    METHOD(decode_step),
    METHOD(attention_pass),
    METHOD(layer_qkv),
    METHOD(layer_finish),
    METHOD(linear_few_rows),
    METHOD(linear_fp32),
    METHOD(dequantise),
    METHOD(linear_many_rows_bf16_pack),
    METHOD(linear_many_rows_bf16_product),
    METHOD(linear_many_rows_bf16_gated),
    METHOD(linear_many_rows_fp32_product),
    METHOD(linear_many_rows_fp32_pack),
    METHOD(linear_many_rows_fp32_unpack),
    METHOD(prefill_attention),
    METHOD(decode_stored_layer),
    METHOD(rotation_rows),
    METHOD(rotation_place_segments),
    METHOD(rotation_write_with_queries),
    METHOD(shift_gaps),
    METHOD(shift_rows),
    {"cpu", cpu, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0)
        Py_CLEAR(module);
    return module;
}
