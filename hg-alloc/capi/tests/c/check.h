/* What every program here starts from: a promise that is checked, and a word on stdout when it was kept. */
#ifndef CHECK_H
#define CHECK_H

#include <hg.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                    \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "%s:%d: broken promise: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            fflush(stderr);                                                                                 \
            _exit(1);                                                                                       \
        }                                                                                                   \
    } while (0)

/* An arena of a kind, 8 MiB that grow to 256 MiB. */
static inline hg_arena *make(uint32_t kind, const char *name) {
    hg_options options;
    hg_arena *arena = NULL;
    CHECK(hg_options_init(&options, sizeof options) == HG_STATUS_OK);
    options.kind = kind;
    options.name = name;
    options.size = "8m:256m";
    hg_status status = hg_arena_create(&options, &arena);
    if (status != HG_STATUS_OK) fprintf(stderr, "%s: %s (errno %d)\n", name, hg_status_text(status), errno);
    CHECK(status == HG_STATUS_OK && arena != NULL);
    return arena;
}

static inline hg_stats stats_of(hg_arena *arena) {
    hg_stats stats;
    CHECK(hg_stats_read(arena, &stats, sizeof stats) == HG_STATUS_OK && stats.struct_size == sizeof stats);
    return stats;
}

/* Waits for a child, which has to end with status 0. */
static inline void ended_well(pid_t child) {
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A small, seeded random number generator. */
static inline uint64_t draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline uint64_t seed(uint64_t n) {
    return n * 2654435761u + 88172645463325252u;
}

/* Fills a block with what only its owner knows, and looks whether it is still there. */
static inline void stamp(void *block, size_t size, uint64_t owner) {
    unsigned char *byte = (unsigned char *)block;
    for (size_t i = 0; i < size; i++) byte[i] = (unsigned char)(owner * 31 + i);
}

static inline void check_stamp(const void *block, size_t size, uint64_t owner) {
    const unsigned char *byte = (const unsigned char *)block;
    for (size_t i = 0; i < size; i++) CHECK(byte[i] == (unsigned char)(owner * 31 + i));
}

/* Whether the program runs under valgrind, which is some thirty times slower: loops are shorter there. */
static inline int is_emulated(void) {
    return getenv("EMULATED") != NULL;
}

static inline int rounds(int n) {
    return is_emulated() ? n / 40 + 1 : n;
}

static inline void kept(void) {
    puts("kept");
}

#endif
