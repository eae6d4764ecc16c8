/* icount: a plugin of qemu's translator (plugin API 1, user mode) that counts a guest's instructions between marks.
 *
 * Owns counting and nothing else: which class an instruction belongs to is decided in Python, from the words written
 * here. qemu translates a guest program block by block; every block gets one counter that its own translated code
 * increments, so the price is one addition a block and the count is exact.
 *
 * The guest marks with system calls that no kernel has: MARK_BEGIN remembers the counters, MARK_END writes, for each
 * block that ran since, its runs (64 bits), its length (32 bits) and its instructions (32 bits each), in the byte
 * order of the machine.
 *
 * Argument: counts=PATH, written anew by each MARK_END.
 *
 * The declarations below repeat qemu's plugin interface, whose header no binary package holds.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_info; /* opaque: nothing in it is needed */

enum { INLINE_ADD_U64 = 0 };

typedef void (*on_translation)(plugin_id, struct qemu_plugin_tb *);
typedef void (*on_syscall)(plugin_id, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                           uint64_t, uint64_t);

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, on_translation);
void qemu_plugin_register_vcpu_syscall_cb(plugin_id, on_syscall);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int operation, void *counter, uint64_t addend);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);

EXPORT int qemu_plugin_version = 1;

enum { MARK_BEGIN = 0x5ED6E0, MARK_END = 0x5ED6E1 }; /* guest.py has the same numbers */

struct block {
    uint64_t runs;        /* incremented by translated code */
    uint64_t runs_before; /* at MARK_BEGIN */
    struct block *older;
    uint32_t length;
    uint32_t words[];
};

static struct block *newest; /* several guest threads may translate at once, so it is changed atomically */
static char *counts_path;

static void give_up(const char *what)
{
    fprintf(stderr, "icount: %s\n", what);
    _Exit(1);
}

static void count_block(plugin_id id, struct qemu_plugin_tb *translated)
{
    size_t length = qemu_plugin_tb_n_insns(translated);
    struct block *block = calloc(1, sizeof *block + length * sizeof block->words[0]);
    (void)id;
    if (!block)
        give_up("out of memory");
    block->length = (uint32_t)length;
    for (size_t i = 0; i < length; i++)
        memcpy(&block->words[i], qemu_plugin_insn_data(qemu_plugin_tb_get_insn(translated, i)), sizeof block->words[0]);
    block->older = __atomic_load_n(&newest, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(&newest, &block->older, block, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        ;
    qemu_plugin_register_vcpu_tb_exec_inline(translated, INLINE_ADD_U64, &block->runs, 1);
}

static void begin(void)
{
    for (struct block *block = newest; block; block = block->older)
        block->runs_before = block->runs;
}

static void end(void)
{
    FILE *file = fopen(counts_path, "wb");
    if (!file)
        give_up("the file of counts cannot be written");
    for (const struct block *block = newest; block; block = block->older) {
        uint64_t runs = block->runs - block->runs_before;
        if (!runs)
            continue;
        fwrite(&runs, sizeof runs, 1, file);
        fwrite(&block->length, sizeof block->length, 1, file);
        fwrite(block->words, sizeof block->words[0], block->length, file);
    }
    bool failed = ferror(file);
    if (fclose(file) || failed)
        give_up("the file of counts cannot be written: is the disk full?");
}

static void see_syscall(plugin_id id, unsigned cpu, int64_t number, uint64_t a1, uint64_t a2, uint64_t a3, uint64_t a4,
                        uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8)
{
    (void)id, (void)cpu, (void)a1, (void)a2, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
    if (number == MARK_BEGIN)
        begin();
    else if (number == MARK_END)
        end();
}

EXPORT int qemu_plugin_install(plugin_id id, const struct qemu_info *info, int argc, char **argv)
{
    (void)info;
    for (int i = 0; i < argc; i++)
        if (!strncmp(argv[i], "counts=", 7))
            counts_path = strdup(argv[i] + 7);
    if (!counts_path)
        return 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, count_block);
    qemu_plugin_register_vcpu_syscall_cb(id, see_syscall);
    return 0;
}
