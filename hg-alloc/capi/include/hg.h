/*
 * hg.h: arenas of memory that can be private to a process or shared by several, that check every free, and that hg-top
 * watches live. Link with -lhg, or pkg-config --cflags --libs hg.
 *
 * This file is made from the sources of the library: changes belong there.
 *
 * Common to all functions:
 *   - Any thread may call any of them. On a shared arena so may any process that has it; each may be killed at any moment.
 *   - A program passes null or a handle of this library where an arena is wanted, and null or a zero-terminated string where a
 *     text is. Null is answered by an error, or by nothing.
 *   - Sizes are in bytes, times in nanoseconds.
 *   - Functions that answer hg_status changed nothing where it is not HG_STATUS_OK. Functions that answer a pointer say in errno
 *     why it is null. Else errno stays as it was.
 *   - From a signal handler: hg_malloc, hg_calloc, hg_aligned_alloc, hg_realloc and hg_free may be called, even if they were
 *     interrupted by it.
 */


#ifndef HG_H
#define HG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of the library that this header is of. */
#define HG_VERSION "0.1.0"

/* The same functions, told the place that they are called from. */
#define HG_MALLOC(arena, size) hg_malloc_at((arena), (size), __FILE__, __func__, __LINE__)
#define HG_CALLOC(arena, count, size) hg_calloc_at((arena), (count), (size), __FILE__, __func__, __LINE__)
#define HG_REALLOC(arena, block, size) hg_realloc_at((arena), (block), (size), __FILE__, __func__, __LINE__)
#define HG_ALIGNED_ALLOC(arena, align, size) hg_aligned_alloc_at((arena), (align), (size), __FILE__, __func__, __LINE__)
#define HG_FREE(arena, block) hg_free_at((arena), (block), __FILE__, __func__, __LINE__)


/**
 * An arena of the calling process. A forked child inherits a copy of it: blocks from before the fork are there, and can be
 * freed there.
 */
#define HG_KIND_PRIVATE 0

/**
 * An arena that is the same in the calling process and all that it forks from then on: each may free what another
 * allocated. It ends with the last of them.
 */
#define HG_KIND_SHARED 1

/**
 * A shared arena that processes of the same user open by its name; it stays until hg_arena_unlink and the last process, or a
 * restart of the machine.
 */
#define HG_KIND_NAMED 2

/**
 * What backs the memory: base pages. So does 0, the default.
 */
#define HG_TIER_BASE 1

/**
 * Transparent huge pages are asked for; the kernel may have none.
 */
#define HG_TIER_THP 3

/**
 * Pages of the hugetlb pool as long as it has some, transparent huge pages after that. For shared arenas, whose cap is then 16
 * GiB at most; others take transparent ones.
 */
#define HG_TIER_HUGETLB 4

/**
 * Lock the memory into RAM.
 */
#define HG_FLAG_PIN 1

/**
 * Blocks lie at multiples of 8 bytes in place of 16, at distances that are odd multiples of 8: hash tables that take bits of
 * addresses spread better.
 */
#define HG_FLAG_ODD_STRIDES 2

/**
 * A forked child may go on allocating from its copy of a private arena beyond what that has; else the copy takes frees, and
 * allocations as far as its memory goes.
 */
#define HG_FLAG_GROWS_INHERITED 4

/**
 * hg_arena_fd may be called for a shared arena: the library keeps a descriptor of it, close-on-exec. Named arenas need none.
 */
#define HG_FLAG_PASS 8

/**
 * No two calls are ever in a private arena at the same time, not even one in a signal handler that interrupts another: as where
 * each process has one thread that uses it. Calls are cheapest then. A thread of the library does not tick it. Of a shared arena
 * it is refused with HG_STATUS_KIND.
 */
#define HG_FLAG_SINGLE_THREADED 16

/**
 * What a function answers: HG_STATUS_OK, or why it did not do what it was asked for.
 */
enum hg_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Done.
     */
    HG_STATUS_OK = 0,
    /**
     * A null pointer where none is allowed, or a number out of its range.
     */
    HG_STATUS_ARGUMENT = 1,
    /**
     * Options of another size than any that this library knows, or with fields set that it does not know.
     */
    HG_STATUS_OPTIONS = 2,
    /**
     * The size is no INIT:CAP, such as 64m:4g, from 4m to 32g.
     */
    HG_STATUS_SIZE = 3,
    /**
     * The profile cannot be read, or does not fit the size; hg_profile_check tells what is wrong with one.
     */
    HG_STATUS_PROFILE = 4,
    /**
     * A name is empty, longer than 31 bytes, or has other characters than letters, digits, '-', '_' and '.', or starts with '.'.
     */
    HG_STATUS_NAME = 5,
    /**
     * The process has as many arenas as it can have: 16.
     */
    HG_STATUS_TOO_MANY = 6,
    /**
     * The system refused memory or address space; errno says how.
     */
    HG_STATUS_MEMORY = 7,
    /**
     * An arena of that name is there already.
     */
    HG_STATUS_EXISTS = 8,
    /**
     * There is no arena of that name.
     */
    HG_STATUS_ABSENT = 9,
    /**
     * The folder of named arenas or a file in it is not this user's alone, or does not lie in memory.
     */
    HG_STATUS_UNSAFE = 10,
    /**
     * Something else lies where the arena has to be in this process.
     */
    HG_STATUS_ADDRESS_TAKEN = 11,
    /**
     * The file is no arena, or not one of this version.
     */
    HG_STATUS_NOT_AN_ARENA = 12,
    /**
     * The arena is not of a kind that can do that.
     */
    HG_STATUS_KIND = 13,
    /**
     * The system refused something else; errno says what.
     */
    HG_STATUS_SYSTEM = 14,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum hg_status hg_status;
#else
typedef int32_t hg_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * An arena. It lasts as long as the process: a handle is never given back, and forked children use the same.
 */
typedef struct hg_arena hg_arena;

/**
 * How an arena is to be made. Filled by hg_options_init, then changed. Later versions have more fields at the end; the first
 * one says how many the program knows.
 */
typedef struct {
    /**
     * Size of this structure as the program knows it, bytes: sizeof(hg_options).
     */
    size_t struct_size;
    /**
     * HG_KIND_PRIVATE, HG_KIND_SHARED or HG_KIND_NAMED.
     */
    uint32_t kind;
    /**
     * HG_FLAG_... values, or-ed.
     */
    uint32_t flags;
    /**
     * HG_TIER_...: what should back the memory; 0 for base pages.
     */
    uint32_t tier;
    /**
     * Must be 0.
     */
    uint32_t reserved;
    /**
     * What hg-top shows, at most 31 bytes of UTF-8; null for "arena". For a named arena it is the name by which others open it:
     * letters, digits, '-', '_' and '.', and no '.' first.
     */
    const char *name;
    /**
     * INIT:CAP, such as "64m:4g": committed at the start and kept, and the most it can grow to. Units k, m, g; a number
     * without one is in MiB; one size alone is both. Null: the two numbers below.
     */
    const char *size;
    /**
     * What is committed at the start and kept, bytes. Not looked at where size is given.
     */
    uint64_t init_bytes;
    /**
     * The most that the arena can grow to, bytes, 4 MiB to 32 GiB. Not looked at where size is given.
     */
    uint64_t cap_bytes;
    /**
     * When it grows ahead of demand and shrinks, such as "scale up to 2g on 70% for 3 cycles within 10 / scale down to 256m on
     * 30% for 20 cycles". Null: it grows as needed, and gives back what is idle. Somebody has to call hg_tick.
     */
    const char *profile;
    /**
     * Memory of the caller's in which all blocks are to lie; null: memory of the system. It stays the caller's, who keeps it
     * mapped as long as the arena is used, and does not touch it. For a shared arena it is mapped MAP_SHARED. The arena's
     * tables lie elsewhere.
     */
    void *memory;
    /**
     * Bytes of that memory; the part of it from the first to the last multiple of 2 MiB is used.
     */
    size_t memory_bytes;
} hg_options;

/**
 * Statistics of an arena: all of its processes together. Later versions have more fields at the end.
 */
typedef struct {
    /**
     * Bytes of this structure that were written.
     */
    size_t struct_size;
    /**
     * Bytes of blocks that programs have, and of those in front caches.
     */
    uint64_t live_bytes;
    /**
     * Bytes of spans and larger blocks.
     */
    uint64_t used_bytes;
    /**
     * The most that these ever were.
     */
    uint64_t used_peak_bytes;
    /**
     * Bytes that are committed: for blocks, and free for new ones.
     */
    uint64_t committed_bytes;
    /**
     * The most that was ever committed, bytes.
     */
    uint64_t committed_peak_bytes;
    /**
     * The most that may be committed, bytes: the cap, or the ceiling of the profile.
     */
    uint64_t ceiling_bytes;
    /**
     * The most that the arena was made for, bytes.
     */
    uint64_t cap_bytes;
    /**
     * What stays committed whatever the load, bytes.
     */
    uint64_t floor_bytes;
    /**
     * Bytes of spans: blocks up to 256 KiB.
     */
    uint64_t span_bytes;
    /**
     * Bytes of larger blocks.
     */
    uint64_t large_bytes;
    /**
     * Larger blocks.
     */
    uint64_t large_count;
    /**
     * Bytes of tables, committed.
     */
    uint64_t metadata_bytes;
    /**
     * Bytes locked into RAM.
     */
    uint64_t pinned_bytes;
    /**
     * Bytes in caches of CPUs that none of the processes may use.
     */
    uint64_t stranded_bytes;
    /**
     * Growths.
     */
    uint64_t grows;
    /**
     * Growths that were refused.
     */
    uint64_t grows_refused;
    /**
     * Shrinks.
     */
    uint64_t shrinks;
    /**
     * Allocations that failed.
     */
    uint64_t allocs_failed;
    /**
     * Calls that were refused, all kinds together.
     */
    uint64_t corruptions;
    /**
     * Of these, double frees.
     */
    uint64_t double_frees;
    /**
     * Critical sections that a process died in and another one put right.
     */
    uint64_t owner_deaths;
    /**
     * Blocks that only a dead process had, given back by hg_recover.
     */
    uint64_t recovered;
    /**
     * 1 while a limit of the system keeps the arena from growing, else 0.
     */
    uint32_t grow_blocked;
    /**
     * Which one: hg_cause_label has the word. Only while it is blocked.
     */
    uint32_t blocked_cause;
    /**
     * What backs the memory of the last growth: hg_tier_label has the word.
     */
    uint32_t tier;
    /**
     * 0.
     */
    uint32_t reserved;
} hg_stats;

/**
 * What a recovery found.
 */
typedef struct {
    /**
     * Threads that died with the arena in their hands.
     */
    uint64_t threads;
    /**
     * Blocks that only they had, between a cache and the program, and that are free again.
     */
    uint64_t blocks;
} hg_recovered;

/**
 * A lock of an arena was held, or waited for, longer than the threshold (HG_LOCK_STALL_US, 1000 by default).
 */
typedef struct {
    /**
     * How long so far, ns.
     */
    uint64_t ns;
    /**
     * Bytes of the blocks that the lock is for; 0 for that of the grid, which has memory for all of them.
     */
    uint32_t lock;
    /**
     * Why the thread that tells took it: hg_reason_label has the word.
     */
    uint32_t reason;
    /**
     * 1: the thread that tells waited; 0: it held the lock itself.
     */
    uint32_t waited;
    /**
     * The thread that held it, in its own pid namespace; 0 if it let go meanwhile.
     */
    uint32_t holder_tid;
} hg_lock_stall;

/**
 * A limit of the system began or ceased to keep an arena from growing.
 */
typedef struct {
    /**
     * 1: growth is blocked from now on; 0: it is not any more.
     */
    uint32_t on;
    /**
     * By what: hg_cause_label has the word.
     */
    uint32_t cause;
    /**
     * Bytes that are committed.
     */
    uint64_t committed_bytes;
} hg_grow_blocked;

/**
 * A call was refused: a double free, say.
 */
typedef struct {
    /**
     * What was wrong: hg_corruption_label has the word.
     */
    uint32_t kind;
    /**
     * Bytes of the blocks at the address, 0 where that is not known.
     */
    uint32_t block_bytes;
    /**
     * The address of the call.
     */
    void *address;
    /**
     * Where the call was made, as hg_free_at was told; else null and 0.
     */
    const char *file;
    /**
     * As file.
     */
    const char *function;
    /**
     * As file.
     */
    uint32_t line;
} hg_corruption;

/**
 * What the program wants to be told. Each function may be null. They are called by the thread that saw what happened, or by one
 * that comes after it, with no lock of this library held: they may allocate. While one runs in a thread, others of that
 * thread are left out. The structures last as long as the call.
 */
typedef struct {
    /**
     * Size of this structure as the program knows it, bytes: sizeof(hg_callbacks).
     */
    size_t struct_size;
    /**
     * Handed to each call.
     */
    void *context;
    /**
     * See hg_lock_stall.
     */
    void (*lock_stall)(void *context, hg_arena *arena, const hg_lock_stall *event);
    /**
     * See hg_grow_blocked.
     */
    void (*grow_blocked)(void *context, hg_arena *arena, const hg_grow_blocked *event);
    /**
     * See hg_corruption.
     */
    void (*corruption)(void *context, hg_arena *arena, const hg_corruption *event);
} hg_callbacks;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The text of an error code, in English, without a line's end. For a number that is none: "unknown error". Never null;
 * the text lasts for ever.
 */
const char *hg_status_text(int32_t status);

/**
 * The version of the library, such as "0.1.0". Programs were compiled with HG_VERSION of the header.
 */
const char *hg_version(void);

/**
 * Fills options with what holds where nothing is said: a private arena without a name, of base pages. bytes is
 * sizeof(hg_options). The size has to be set.
 */
hg_status hg_options_init(hg_options *options, size_t bytes);

/**
 * Looks at a profile: HG_STATUS_PROFILE if it cannot be read, and then a message says where and why, cut to bytes with its zero
 * at the end. message may be null.
 */
hg_status hg_profile_check(const char *profile,
                           char *message,
                           size_t bytes);

/**
 * Makes an arena, and writes its handle to arena; null there if there is none. With HG_KIND_NAMED, processes that call
 * hg_arena_open find it under its name from then on.
 */
hg_status hg_arena_create(const hg_options *options, hg_arena **arena);

/**
 * Opens the arena that a process of the same user made under a name, and writes its handle to arena; null there if there is
 * none. It lies at the same addresses as there. Opening one twice gives the same handle.
 */
hg_status hg_arena_open(const char *name,
                        hg_arena **arena);

/**
 * Takes the name of an arena away: nobody opens it from then on, and its memory goes when the last process that has it ends. Who
 * has it goes on.
 */
hg_status hg_arena_unlink(const char *name);

/**
 * Writes to fd a new descriptor of the arena, close-on-exec and the caller's to close, which may be passed to another process
 * of the same user, by SCM_RIGHTS say, for hg_arena_open_fd. For named arenas, and for shared ones with HG_FLAG_PASS;
 * HG_STATUS_KIND for others. HG_STATUS_ABSENT where the name was taken away, or a daemon closed the descriptor that the library
 * had kept.
 */
hg_status hg_arena_fd(const hg_arena *arena,
                      int *fd);

/**
 * Opens the arena of a descriptor that came from hg_arena_fd of another process, and writes its handle to arena; null there if
 * there is none. The descriptor stays the caller's, and is not needed any more.
 */
hg_status hg_arena_open_fd(int fd,
                           hg_arena **arena);

/**
 * Allocates size bytes, at a multiple of 16, or of 8 in an arena of odd strides. Size 0 gives a block too. Null where there is
 * no memory (errno ENOMEM) or no arena (EINVAL).
 */
void *hg_malloc(hg_arena *arena,
                size_t size);

/**
 * Allocates count times size bytes, all zero. As hg_malloc; a product too large for a number is ENOMEM.
 */
void *hg_calloc(hg_arena *arena, size_t count, size_t size);

/**
 * Makes a block larger or smaller, moving it where needed; a null block allocates, size 0 frees and answers null. Null where
 * there is no memory (ENOMEM; the old block stays as it is), no arena, or no such block (EINVAL).
 */
void *hg_realloc(hg_arena *arena,
                 void *block,
                 size_t size);

/**
 * Frees a block, whichever process allocated it. Null is allowed. What is no live block of this arena (freed already, from
 * inside a block, from elsewhere) is refused, counted, told by the corruption callback, and harms nothing.
 */
void hg_free(hg_arena *arena,
             void *block);

/**
 * Allocates size bytes at a multiple of align, a power of two up to 2 MiB; any other is EINVAL. Else as hg_malloc.
 */
void *hg_aligned_alloc(hg_arena *arena, size_t align, size_t size);

/**
 * Bytes that may be used in a live block: at least what was asked for. 0 for null, and for what is no live block of this arena
 * (refused and counted as by hg_free).
 */
size_t hg_usable_size(hg_arena *arena,
                      void *block);

/**
 * Allocates up to count blocks of size bytes into an array, and answers how many these are: fewer than count where memory ran
 * out (errno ENOMEM). 0 for a null arena or array (EINVAL). Places of the array beyond the answer are untouched.
 */
size_t hg_malloc_many(hg_arena *arena,
                      size_t size,
                      void **blocks,
                      size_t count);

/**
 * Frees the count blocks of an array, each as by hg_free: null pointers are passed over, what is no live block is refused.
 */
void hg_free_many(hg_arena *arena,
                  void *const *blocks,
                  size_t count);

/**
 * hg_malloc, told where it is called: file and function are literals, or texts that last as long as the arena, or null. HG_MALLOC
 * fills them in.
 */
void *hg_malloc_at(hg_arena *arena,
                   size_t size,
                   const char *file,
                   const char *function,
                   uint32_t line);

/**
 * hg_calloc, told where it is called. HG_CALLOC fills that in.
 */
void *hg_calloc_at(hg_arena *arena, size_t count, size_t size, const char *file, const char *function, uint32_t line);

/**
 * hg_realloc, told where it is called. HG_REALLOC fills that in.
 */
void *hg_realloc_at(hg_arena *arena, void *block, size_t size, const char *file, const char *function, uint32_t line);

/**
 * hg_aligned_alloc, told where it is called. HG_ALIGNED_ALLOC fills that in.
 */
void *hg_aligned_alloc_at(hg_arena *arena,
                          size_t align,
                          size_t size,
                          const char *file,
                          const char *function,
                          uint32_t line);

/**
 * hg_free, told where it is called, which the report of a refused free names. HG_FREE fills that in.
 */
void hg_free_at(hg_arena *arena, void *block, const char *file, const char *function, uint32_t line);

/**
 * Bytes of spans and larger blocks: what the arena cannot give back now. Two loads; 0 for a null arena.
 */
uint64_t hg_used_bytes(const hg_arena *arena);

/**
 * Bytes of blocks that programs have, and of those in front caches: a sum over all sizes of blocks, some two hundred loads. 0 for
 * a null arena.
 */
uint64_t hg_live_bytes(const hg_arena *arena);

/**
 * Bytes that are committed. One load; 0 for a null arena.
 */
uint64_t hg_committed_bytes(const hg_arena *arena);

/**
 * The most that hg_used_bytes ever was. One load; 0 for a null arena.
 */
uint64_t hg_peak_bytes(const hg_arena *arena);

/**
 * The most that the arena can grow to, bytes. One load; 0 for a null arena.
 */
uint64_t hg_cap_bytes(const hg_arena *arena);

/**
 * Where the arena's blocks lie: the first address, and how many bytes from there. The same in every process of a shared arena,
 * and for its whole life: growth does not change it. Either pointer may be null.
 */
hg_status hg_extent(const hg_arena *arena,
                    void **first,
                    size_t *bytes);

/**
 * Whether an address lies where the arena's blocks lie, whatever is there. A comparison of addresses.
 */
bool hg_owns(const hg_arena *arena, const void *address);

/**
 * Writes the statistics of now: as much of the structure as fits bytes, which is sizeof(hg_stats). Each figure is right for some
 * moment during the call.
 */
hg_status hg_stats_read(const hg_arena *arena,
                        hg_stats *stats,
                        size_t bytes);

/**
 * Says what the calling process does, such as "SIP receiver udp:5060": hg-top shows it. At most 64 bytes of UTF-8, the rest
 * is cut. Each process says it for itself, after the fork.
 */
hg_status hg_set_role(hg_arena *arena,
                      const char *role);

/**
 * One step of maintenance: growth ahead of demand, what the profile wants, idle memory given back. To be called about once a
 * second by one process at least; a call while another is at it does nothing.
 */
void hg_tick(hg_arena *arena);

/**
 * Empties all caches and gives all free memory back to the system. Answers how many bytes that were. Milliseconds: for quiet
 * moments.
 */
uint64_t hg_trim(hg_arena *arena);

/**
 * Looks for threads of any process that died, and gives back what only they had in their hands. To be called by a parent that
 * saw a child die; the others work on meanwhile. Blocks that the dead process held as its own are not looked for: the
 * arena cannot know whether others use them. Counts go to recovered, unless that is null.
 */
hg_status hg_recover(hg_arena *arena,
                     hg_recovered *recovered);

/**
 * Sets what this process wants to be told of all its arenas, in place of what was set before; null: nothing. Forked children
 * inherit it.
 */
hg_status hg_set_callbacks(const hg_callbacks *callbacks);

/**
 * The word for a tier: what backs memory, such as "4K" or "THP". "unknown" for a number that is none. Lasts for ever.
 */
const char *hg_tier_label(uint32_t tier);

/**
 * The word for why an arena grew, shrank or was refused, such as "cgroup limit". "unknown" for a number that is none.
 * Lasts for ever.
 */
const char *hg_cause_label(uint32_t cause);

/**
 * The word for why a lock was taken, such as "refill". "unknown" for a number that is none. Lasts for ever.
 */
const char *hg_reason_label(uint32_t reason);

/**
 * The word for what was wrong with a refused call, such as "double free". "unknown" for a number that is none. Lasts
 * for ever.
 */
const char *hg_corruption_label(uint32_t kind);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HG_H */
