/* What every program here starts from: a promise that is checked, and a word on stdout when it was kept.
 *
 * A program runs under LD_PRELOAD of libhg_preload.so and first makes sure that the library is really there; without
 * LD_PRELOAD it runs on glibc, which is how the promises themselves are checked. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                                    \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            dprintf(2, "%s:%d: broken promise: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);    \
            _exit(1);                                                                                       \
        }                                                                                                   \
    } while (0)

/* Keeps the compiler from folding an allocation away or from warning about a call that is wrong on purpose. */
static inline void *opaque(void *p) {
    __asm__ volatile("" : "+r"(p) : : "memory");
    return p;
}

static inline size_t opaque_size(size_t n) {
    __asm__ volatile("" : "+r"(n));
    return n;
}

static inline void require_library(void) {
    if (!getenv("LD_PRELOAD")) return;
    static char maps[1 << 16];
    FILE *f = fopen("/proc/self/maps", "r");
    CHECK(f);
    int found = 0;
    while (fgets(maps, sizeof maps, f)) found |= strstr(maps, "libhg_preload.so") != NULL;
    fclose(f);
    CHECK(found);
}

#ifndef __cplusplus
/* A small, seeded random number generator for each thread. */
static inline uint64_t draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Allocates, fills, checks and frees `n` blocks of mixed sizes. */
static inline void exercise(uint64_t seed, int n) {
    enum { SLOTS = 64 };
    struct { unsigned char *p; size_t size; } slots[SLOTS] = {{0}};
    uint64_t state = seed * 2654435761u + 88172645463325252u;
    for (int i = 0; i < n; i++) {
        int s = draw(&state) % SLOTS;
        if (slots[s].p) {
            CHECK(slots[s].p[0] == (unsigned char)s && slots[s].p[slots[s].size - 1] == (unsigned char)s);
            free(slots[s].p);
            slots[s].p = NULL;
        } else {
            slots[s].size = 1 + draw(&state) % (1u << (4 + draw(&state) % 14));
            slots[s].p = malloc(slots[s].size);
            CHECK(slots[s].p);
            memset(slots[s].p, s, slots[s].size);
        }
    }
    for (int s = 0; s < SLOTS; s++) free(slots[s].p);
}
#endif

static void promise(void);

int main(void) {
    require_library();
    promise();
    puts("kept");
    return 0;
}

#endif
